// Text to token ids and back to bytes, for byte-level BPE ("gpt2") and SentencePiece-style ("llama") vocabularies.
//
// What must stay true:
//  - Ids equal llama.cpp's for the same file and text, except that a control token never comes out of plain text: not
//  by
//    merging, not by any other way than the special-token split with `parse_special`.
//  - Encoding costs O(n log n) for any text; no input makes it quadratic.
//  - Immutable after it is made: every const method may be called from several threads at once.
#ifndef LAYOVER_COORDINATOR_TEXT_TOKENIZER_H_
#define LAYOVER_COORDINATOR_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/text/tokenizer_spec.h"

namespace layover {

struct EncodeOptions {
  bool add_special = true;     // BOS and EOS, where the model wants them
  bool parse_special = false;  // text that spells a control token becomes that token
};

// A part of a text: a control token, or the plain text between two.
struct ControlSplit {
  std::string_view text;
  int32_t id = -1;  // the control token; -1: plain text
};

class Tokenizer {
 public:
  // InvalidArgument names what is wrong or unknown: the model type, the pre-tokenizer, a merge, a special id.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSpec(TokenizerSpec spec);
  ~Tokenizer();

  // Bytes that are not UTF-8 are read as U+FFFD. User-defined tokens are matched whatever the options say.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const;

  // Cuts a text at the control tokens that `parse_special` would see. The parts, joined, are the text.
  std::vector<ControlSplit> SplitAtControlTokens(std::string_view text) const;

  // What a token adds to the output, as raw bytes (perhaps half a character). Control, unknown and unused tokens add
  // nothing unless `show_special`. An id outside the vocabulary gives nothing.
  std::string_view TokenBytes(int32_t id, bool show_special = false) const;
  // The vocabulary's own spelling (byte-level tokens in their mapped alphabet).
  std::string_view TokenText(int32_t id) const;
  TokenType Type(int32_t id) const;

  bool IsEog(int32_t id) const;      // ends a generation
  bool IsControl(int32_t id) const;  // control or unknown: never made from plain text
  // All ids for which IsEog, ascending: what `ignore_eos` bans.
  std::span<const int32_t> EogIds() const;
  // The spellings that must never reach the model as tokens out of a user's text.
  std::span<const std::string> ControlTexts() const;

  int32_t n_vocab() const;  // tokens in the vocabulary; logits rows beyond it are padding
  int32_t bos_id() const;   // -1: none
  int32_t eos_id() const;
  bool add_bos() const;
  bool add_eos() const;
  bool drops_leading_space() const;  // decoding a whole text drops the first piece's leading space (SPM)
  std::string_view model() const;    // "gpt2" | "llama"
  std::string_view pre() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_TOKENIZER_H_
