// Token bytes to UTF-8 text, streaming and at once.
#ifndef LAYOVER_COORDINATOR_TEXT_DETOKENIZER_H_
#define LAYOVER_COORDINATOR_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/text/utf8.h"

namespace layover {

class Tokenizer;

// Tokens carry pieces of characters. Push gives back whole characters only and holds at most 3 bytes; what can never
// become a character (stray continuation bytes, overlong forms, surrogates, beyond U+10FFFF) becomes U+FFFD at once,
// one for each maximal broken part. All that comes out, joined, is valid UTF-8 and does not depend on how the bytes
// were cut.
class StreamingDetokenizer {
 public:
  std::string Push(std::string_view token_bytes);
  // At the end of a generation: an unfinished character becomes one U+FFFD.
  std::string Flush();

 private:
  std::string held_;
};

// The text of whole ids; ids outside the vocabulary add nothing. Control tokens show only if `show_special`.
std::string Detokenize(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool show_special);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_DETOKENIZER_H_
