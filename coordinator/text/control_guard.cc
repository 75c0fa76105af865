#include "coordinator/text/control_guard.h"

#include <algorithm>
#include <bitset>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/limits.h"
#include "common/status.h"
#include "coordinator/text/utf8.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kFirstPrivateUse = 0xE000;
constexpr uint32_t kPrivateUseEnd = 0xF900;
using PrivateUseSet = std::bitset<kPrivateUseEnd - kFirstPrivateUse>;

constexpr std::string_view kAsciiSpace = " \t\n\v\f\r";

char FoldAscii(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

int HexValue(std::string_view digits) {
  int value = 0;
  for (const char c : digits) {
    const char folded = FoldAscii(c);
    const int digit = folded >= '0' && folded <= '9'   ? folded - '0'
                      : folded >= 'a' && folded <= 'f' ? folded - 'a' + 10
                                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Notes the private-use characters of a text, plain and spelled \uXXXX.
void NotePrivateUse(std::string_view text, PrivateUseSet* used) {
  const auto note = [&](int64_t code_point) {
    if (code_point >= kFirstPrivateUse && code_point < kPrivateUseEnd) used->set(code_point - kFirstPrivateUse);
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 6 <= text.size() && text[i + 1] == 'u') note(HexValue(text.substr(i + 2, 4)));
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0xEE || lead > 0xEF) continue;
    const Utf8Step step = NextUtf8(text.substr(i));
    if (step.kind == Utf8Kind::kCharacter) note(DecodeUtf8(text.substr(i), step.bytes));
  }
}

// `values` that are nested too deep are refused later; here the walk just stops.
void NotePrivateUse(const Json& value, int depth, PrivateUseSet* used) {
  if (depth > limits::kMaxJsonDepth) return;
  if (value.is_string()) NotePrivateUse(value.get_ref<const std::string&>(), used);
  if (value.is_array()) {
    for (const Json& element : value) NotePrivateUse(element, depth + 1, used);
  }
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
    NotePrivateUse(key, used);
    NotePrivateUse(member, depth + 1, used);
  }
}

// Rests of control tokens whose beginning the template writes and then leaves the literal: a proper prefix, followed
// (white space aside) by a quote or a brace.
std::vector<std::string> CompletionsOf(std::span<const std::string> control_texts, std::string_view source) {
  std::set<std::string> completions;
  for (const std::string& control : control_texts) {
    for (size_t begin = source.find(control[0]); begin != std::string_view::npos;
         begin = source.find(control[0], begin + 1)) {
      for (size_t n = 1; n < control.size() && begin + n <= source.size() && source[begin + n - 1] == control[n - 1];
           ++n) {
        const size_t after = source.find_first_not_of(kAsciiSpace, begin + n);
        const char next = after == std::string_view::npos ? '\0' : source[after];
        if (next == '\'' || next == '"' || next == '{') completions.insert(control.substr(n));
      }
    }
  }
  return {completions.begin(), completions.end()};
}

// What Python's str.strip takes away.
bool IsPythonSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

struct Extent {
  size_t begin = 0;  // of the first character that is no space; the text's size if there is none
  size_t end = 0;    // after the last one
};

Extent StrippedExtent(std::string_view text) {
  Extent extent{text.size(), 0};
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(i));
    const bool is_space = step.kind == Utf8Kind::kCharacter && IsPythonSpace(DecodeUtf8(text.substr(i), step.bytes));
    if (!is_space) {
      extent.begin = std::min(extent.begin, i);
      extent.end = i + step.bytes;
    }
    i += step.bytes;
  }
  return extent;
}

// Names that templates look up. They spell no control token, and a marker in one would hide the member from the
// template.
bool IsProtocolKey(std::string_view key) {
  static constexpr std::string_view kKeys[] = {
      "role",        "content",  "name",       "type",         "text",
      "id",          "index",    "function",   "arguments",    "parameters",
      "description", "tools",    "tool_calls", "tool_call_id", "reasoning_content",
      "reasoning",   "thinking", "properties", "required",     "items",
      "enum",        "strict",   "refusal",
  };
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

std::vector<std::string> GuardedTexts(std::span<const std::string> control_texts) {
  std::vector<std::string> guarded;
  std::copy_if(control_texts.begin(), control_texts.end(), std::back_inserter(guarded), ControlGuard::CanGuard);
  return guarded;
}

}  // namespace

SpellingTrie::SpellingTrie(std::span<const std::string> spellings) : is_end_{false}, has_children_{false} {
  for (const std::string& spelling : spellings) {
    int32_t node = 0;
    for (const char c : spelling) {
      int32_t child = Child(node, FoldAscii(c));
      if (child == kNone) {
        child = static_cast<int32_t>(is_end_.size());
        is_end_.push_back(false);
        has_children_.push_back(false);
        has_children_[node] = true;
        children_[static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(FoldAscii(c))] = child;
      }
      node = child;
    }
    is_end_[node] = node != 0;
  }
}

int32_t SpellingTrie::Child(int32_t node, char c) const {
  const auto it = children_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c));
  return it == children_.end() ? kNone : it->second;
}

SpellingTrie::Walk SpellingTrie::WalkFrom(std::string_view text) const {
  Walk walk;
  int32_t node = 0;
  for (const char c : text) {
    node = Child(node, FoldAscii(c));
    if (node == kNone) return walk;
    ++walk.reached_bytes;
    if (is_end_[node]) walk.longest = walk.reached_bytes;
  }
  walk.is_inside = walk.reached_bytes > 0 && has_children_[node];
  return walk;
}

bool ControlGuard::CanGuard(std::string_view control_text) {
  return !control_text.empty() && NextUtf8(control_text).bytes < control_text.size();
}

ControlGuard::ControlGuard(std::span<const std::string> control_texts, const std::string& template_source)
    : template_source_(template_source),
      control_texts_(GuardedTexts(control_texts)),
      spellings_(control_texts_),
      completions_(CompletionsOf(control_texts_, template_source_)) {}

absl::StatusOr<ControlGuard::Marker> ControlGuard::MarkerFor(std::span<const Json* const> values) const {
  PrivateUseSet used;
  NotePrivateUse(template_source_, &used);
  for (const std::string& text : control_texts_) NotePrivateUse(text, &used);
  for (const Json* value : values) {
    if (value != nullptr) NotePrivateUse(*value, 0, &used);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used.test(i)) return Marker(this, kFirstPrivateUse + static_cast<uint32_t>(i));
  }
  return InvalidArgument("the request uses every private-use character (U+E000 to U+F8FF)");
}

ControlGuard::Marker::Marker(const ControlGuard* guard, uint32_t code_point)
    : guard_(guard), escaped_(fmt::format("\\u{:04x}", code_point)) {
  AppendUtf8(code_point, &marker_);
}

bool ControlGuard::Marker::CompletesBeginning(std::string_view text) const {
  const SpellingTrie::Walk walk = guard_->completions_.WalkFrom(text);
  return walk.longest > 0 || walk.is_inside;
}

std::string ControlGuard::Marker::GuardString(std::string_view text) const {
  const Extent stripped = StrippedExtent(text);
  std::string guarded;
  guarded.reserve(text.size());
  size_t break_at = std::string_view::npos;  // where the marker of the spelling entered last goes
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_head = i == 0 || i == stripped.begin;
    const bool is_completion = is_head && (CompletesBeginning(text.substr(i)) ||
                                           (i < stripped.end && CompletesBeginning(text.substr(i, stripped.end - i))));
    if (i == break_at || is_completion) guarded += marker_;
    const SpellingTrie::Walk walk = guard_->spellings_.WalkFrom(text.substr(i));
    const bool is_tail = walk.is_inside || (i < stripped.end && i + walk.reached_bytes >= stripped.end);
    if (walk.longest > 0 || is_tail) break_at = i + NextUtf8(text.substr(i)).bytes;
    guarded.push_back(text[i]);
  }
  if (break_at == text.size()) guarded += marker_;
  return guarded;
}

absl::StatusOr<Json> ControlGuard::Marker::GuardAt(const Json& value, int depth) const {
  if (depth > limits::kMaxJsonDepth) return InvalidArgument("JSON: nested deeper than {}", limits::kMaxJsonDepth);
  if (value.is_string()) return Json(GuardString(value.get_ref<const std::string&>()));
  if (value.is_array()) {
    Json guarded = Json::array();
    for (const Json& element : value) {
      ASSIGN_OR_RETURN(Json one, GuardAt(element, depth + 1));
      guarded.push_back(std::move(one));
    }
    return guarded;
  }
  if (value.is_object()) {
    Json guarded = Json::object();
    auto& members = guarded.get_ref<Json::object_t&>();
    for (const auto& [key, member] : value.get_ref<const Json::object_t&>()) {
      ASSIGN_OR_RETURN(Json one, GuardAt(member, depth + 1));
      members.emplace_back(IsProtocolKey(key) ? key : GuardString(key), std::move(one));
    }
    return guarded;
  }
  return value;
}

absl::StatusOr<Json> ControlGuard::Marker::Guard(const Json& value) const {
  return GuardAt(value, 0);
}

absl::StatusOr<Json> ControlGuard::Marker::GuardMessages(const Json& messages) const {
  Json guarded = Json::array();
  for (const Json& message : messages) {
    ASSIGN_OR_RETURN(Json one, GuardAt(message, 1));
    if (const auto role = message.find("role"); role != message.end()) one["role"] = *role;
    guarded.push_back(std::move(one));
  }
  return guarded;
}

std::string ControlGuard::Marker::Remove(std::string_view rendered) const {
  return absl::StrReplaceAll(ToAbsl(rendered), {{marker_, ""}, {escaped_, ""}});
}

}  // namespace layover
