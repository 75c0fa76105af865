// Finds the spellings of special tokens in a text.
//
// Rule (llama.cpp's): the longest spelling first, over the whole text; for each, every occurrence from left to right
// that does not touch one already taken. Here done in one walk over the text plus work per occurrence, not once per
// token.
#ifndef LAYOVER_COORDINATOR_TEXT_SPECIAL_TOKENS_H_
#define LAYOVER_COORDINATOR_TEXT_SPECIAL_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace layover {

struct SpecialToken {
  std::string text;
  int32_t id = -1;
  bool is_control = false;  // taken only where control tokens are parsed
};

struct SpecialMatch {
  size_t begin = 0;  // bytes
  size_t end = 0;
  int32_t id = -1;
  bool is_control = false;
};

class SpecialTokens {
 public:
  // Of equal spellings the first given is taken; empty ones are ignored.
  explicit SpecialTokens(std::vector<SpecialToken> tokens);

  // Matches in text order, not overlapping.
  std::vector<SpecialMatch> Find(std::string_view text, bool parse_control) const;

 private:
  // A trie: node and byte to node; node 0 is the root.
  int32_t Child(int32_t node, unsigned char byte) const;

  std::vector<SpecialToken> tokens_;  // longest first
  std::vector<int32_t> token_at_;     // per node: index into tokens_, or -1
  std::array<int32_t, 256> root_children_;
  absl::flat_hash_map<uint64_t, int32_t> children_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_SPECIAL_TOKENS_H_
