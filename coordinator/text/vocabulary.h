// The tokens of a model: spellings, types, lookup by spelling, the bytes each stands for, and which end a generation.
// Made once, immutable.
#ifndef LAYOVER_COORDINATOR_TEXT_VOCABULARY_H_
#define LAYOVER_COORDINATOR_TEXT_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/status.h"
#include "coordinator/text/tokenizer_spec.h"

namespace layover {

// The 256 spellings of single bytes in the alphabet of byte-level vocabularies: printable Latin-1 stands for itself,
// the other 68 bytes, ascending, for U+0100, U+0101, ...
const std::array<std::string, 256>& ByteAlphabet();

class Vocabulary {
 public:
  // Takes tokens, types and special ids of `spec`. InvalidArgument names the token that is doubled or of a bad type.
  static absl::StatusOr<std::unique_ptr<Vocabulary>> Create(const TokenizerSpec& spec);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < size(); }
  // -1: no such token.
  int32_t Find(std::string_view text) const;
  // As Find, for what plain text may become: never a control or unknown token.
  int32_t FindPlain(std::string_view text) const;
  // The token of one byte in plain text: its letter of the byte alphabet, or `<0xXX>`; -1: none.
  int32_t ByteToken(unsigned char byte) const { return byte_tokens_[byte]; }

  const std::string& Text(int32_t id) const { return tokens_[id].text; }
  TokenType Type(int32_t id) const { return tokens_[id].type; }
  bool IsControl(int32_t id) const {
    return tokens_[id].type == TokenType::kControl || tokens_[id].type == TokenType::kUnknown;
  }
  bool IsEog(int32_t id) const { return tokens_[id].is_eog; }
  bool IsHidden(int32_t id) const { return tokens_[id].is_hidden; }
  const std::string& Bytes(int32_t id) const { return tokens_[id].bytes; }
  const std::vector<int32_t>& EogIds() const { return eog_ids_; }
  size_t LongestTextBytes() const { return longest_text_bytes_; }

 private:
  struct Token {
    std::string text;
    std::string bytes;
    TokenType type = TokenType::kNormal;
    bool is_eog = false;
    bool is_hidden = false;  // not part of the visible output
  };

  absl::Status AddTokens(const TokenizerSpec& spec);
  void RetypeByText(int32_t eos_id);
  bool IsMarkup(int32_t id) const;  // ordinary text that is spelled as another model's end token
  void CollectEog(const TokenizerSpec& spec);
  void FillBytes();
  std::string BytesOf(const Token& token) const;

  bool is_byte_level_ = false;
  std::vector<Token> tokens_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // keys point into tokens_
  std::array<int32_t, 256> byte_tokens_;
  std::vector<int32_t> eog_ids_;
  size_t longest_text_bytes_ = 0;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_VOCABULARY_H_
