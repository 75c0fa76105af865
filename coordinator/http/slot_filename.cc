#include "coordinator/http/slot_filename.h"

#include "common/limits.h"
#include "common/status.h"
#include "coordinator/text/utf8.h"

namespace layover {
namespace {

// Path separators and what looks like them or like a full stop, what Windows does not allow, and what cannot be seen.
bool IsForbidden(uint32_t code_point) {
  static constexpr std::string_view kAscii = "/\\:*?\"<>|";
  if (code_point < 0x20 || (code_point >= 0x7F && code_point <= 0x9F)) return true;
  if (code_point < 0x80) return kAscii.find(static_cast<char>(code_point)) != std::string_view::npos;
  return code_point == 0xFF0E || code_point == 0x2215 || code_point == 0x2216 || code_point == 0xFFFD ||
         code_point == 0xFEFF;
}

bool IsGoodName(std::string_view name) {
  if (name.empty() || name.size() > limits::kMaxSlotFilenameBytes) return false;
  if (name.front() == ' ' || name.back() == ' ' || name.back() == '.') return false;
  if (name.find("..") != std::string_view::npos) return false;
  while (!name.empty()) {
    const Utf8Step step = NextUtf8(name);
    if (step.kind != Utf8Kind::kCharacter || IsForbidden(DecodeUtf8(name, step.bytes))) return false;
    name.remove_prefix(step.bytes);
  }
  return true;
}

std::string Encoded(std::string_view name) {
  std::string id;
  for (const char c : name) {
    if (c >= 0x20 && c <= 0x7E && c != '%') {
      id += c;
    } else {
      id += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return id;
}

}  // namespace

absl::StatusOr<std::string> ConversationIdOfSlotFile(std::string_view filename) {
  if (IsGoodName(filename)) {
    std::string id = Encoded(filename);
    if (id.size() <= static_cast<size_t>(limits::kMaxConversationIdBytes)) return id;
  }
  return WithPart(InvalidArgument("Invalid filename: expected a plain name of at most {} bytes, without path "
                                  "separators, \"..\" or control characters",
                                  limits::kMaxSlotFilenameBytes),
                  {.param = "filename"});
}

}  // namespace layover
