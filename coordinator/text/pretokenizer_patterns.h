// Which regular expressions stand behind a value of `tokenizer.ggml.pre`. Data only.
#ifndef LAYOVER_COORDINATOR_TEXT_PRETOKENIZER_PATTERNS_H_
#define LAYOVER_COORDINATOR_TEXT_PRETOKENIZER_PATTERNS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace layover {

struct PreTokenizerFamily {
  std::vector<std::string_view> names;
  // In order. `\s` means Unicode's White_Space.
  std::vector<std::string> patterns;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  bool add_bos = false;        // default where the file does not say
};

// Null if no family has that name.
const PreTokenizerFamily* FindPreTokenizerFamily(std::string_view name);
std::span<const PreTokenizerFamily> AllPreTokenizerFamilies();

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_PRETOKENIZER_PATTERNS_H_
