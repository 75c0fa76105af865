#include "coordinator/text/detokenizer.h"

#include "coordinator/text/tokenizer.h"

namespace layover {

std::string StreamingDetokenizer::Push(std::string_view token_bytes) {
  held_ += token_bytes;
  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Kind::kUnfinished) break;
    out += step.kind == Utf8Kind::kCharacter ? rest.substr(0, step.bytes) : kReplacementCharacter;
    rest.remove_prefix(step.bytes);
  }
  held_ = std::string(rest);
  return out;
}

std::string StreamingDetokenizer::Flush() {
  std::string out = ToValidUtf8(held_);
  held_.clear();
  return out;
}

std::string Detokenize(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool show_special) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id, show_special);
  const bool begins_with_bos = !ids.empty() && ids[0] == tokenizer.bos_id();
  if (tokenizer.drops_leading_space() && !begins_with_bos && bytes.starts_with(' ')) bytes.erase(0, 1);
  return ToValidUtf8(bytes);
}

}  // namespace layover
