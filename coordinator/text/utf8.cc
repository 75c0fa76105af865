#include "coordinator/text/utf8.h"

#include "common/check.h"

namespace layover {
namespace {

bool IsContinuation(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

// Length that a lead byte announces; 0: it cannot begin a character.
size_t AnnouncedLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte.
bool SecondByteFits(unsigned char lead, unsigned char second) {
  if (!IsContinuation(second)) return false;
  switch (lead) {
    case 0xE0:
      return second >= 0xA0;
    case 0xED:
      return second <= 0x9F;
    case 0xF0:
      return second >= 0x90;
    case 0xF4:
      return second <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = AnnouncedLength(byte(0));
  if (length == 0) return {Utf8Kind::kBroken, 1};
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Kind::kUnfinished, i};
    const bool fits = i == 1 ? SecondByteFits(byte(0), byte(1)) : IsContinuation(byte(i));
    if (!fits) return {Utf8Kind::kBroken, i};
  }
  return {Utf8Kind::kCharacter, length};
}

uint32_t DecodeUtf8(std::string_view text, size_t bytes) {
  LAYOVER_CHECK(bytes >= 1 && bytes <= 4 && bytes <= text.size());
  const auto lead = static_cast<unsigned char>(text[0]);
  if (bytes == 1) return lead;
  uint32_t code_point = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) code_point = code_point << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  return code_point;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto tail = [&](int shift) { out->push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F))); };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xF0 | code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Kind::kCharacter) return false;
    text.remove_prefix(step.bytes);
  }
  return true;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    out += step.kind == Utf8Kind::kCharacter ? bytes.substr(0, step.bytes) : kReplacementCharacter;
    bytes.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace layover
