// UTF-8, one character at a time, as the Unicode standard's table of well-formed sequences has it.
#ifndef LAYOVER_COORDINATOR_TEXT_UTF8_H_
#define LAYOVER_COORDINATOR_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace layover {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : uint8_t {
  kCharacter,   // `bytes` bytes are one character
  kBroken,      // the first `bytes` bytes can never begin a character, whatever follows
  kUnfinished,  // all `bytes` bytes left may begin one
};

struct Utf8Step {
  Utf8Kind kind;
  size_t bytes;
};

// What stands at text[0]; `text` is not empty.
Utf8Step NextUtf8(std::string_view text);

// Code point of the character at text[0], which NextUtf8 has called kCharacter.
uint32_t DecodeUtf8(std::string_view text, size_t bytes);

void AppendUtf8(uint32_t code_point, std::string* out);

bool IsValidUtf8(std::string_view text);

// A copy in which every broken part is one U+FFFD.
std::string ToValidUtf8(std::string_view bytes);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_UTF8_H_
