#include "coordinator/http/completion_json.h"

#include <cmath>
#include <utility>

#include "coordinator/http/conversation_json.h"
#include "coordinator/text/detokenizer.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

constexpr char kNoLogprob[] = "-9999";

// ,"token":"...","bytes":[...]: as text in which broken parts show as U+FFFD, and the bytes themselves.
std::string TokenAsText(int32_t id, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.TokenBytes(id, /*show_special=*/true);
  std::string out = fmt::format(R"("token":{},"bytes":[)", JsonString(ToValidUtf8(bytes)));
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(static_cast<unsigned char>(bytes[i]));
  }
  return out + ']';
}

double PerSecond(int64_t count, double ms) {
  return ms > 0 ? 1e3 * static_cast<double>(count) / ms : 0.0;
}
double PerToken(int64_t count, double ms) {
  return count > 0 ? ms / static_cast<double>(count) : 0.0;
}

void AppendItem(std::string& list, std::string_view item) {
  if (!list.empty()) list += ',';
  list += item;
}

}  // namespace

std::string ReplyHead::Open() const {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{})", JsonString(id), object, created,
                     JsonString(model));
}

std::string JsonString(std::string_view text) {
  return ToText(nlohmann::ordered_json(text));
}

std::string JsonFloat(float value) {
  return std::isfinite(value) ? fmt::format("{}", value) : kNoLogprob;
}

std::string UsageText(const Usage& usage) {
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}},)"
      R"("completion_tokens_details":{{"reasoning_tokens":0}}}})",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
}

std::string TimingsText(const Timings& timings) {
  const nlohmann::ordered_json json = {{"cache_n", timings.cache_n},
                                       {"restored_n", timings.restored_n},
                                       {"recomputed_n", timings.recomputed_n},
                                       {"prompt_n", timings.prompt_n},
                                       {"prompt_ms", timings.prompt_ms},
                                       {"prompt_per_token_ms", PerToken(timings.prompt_n, timings.prompt_ms)},
                                       {"prompt_per_second", PerSecond(timings.prompt_n, timings.prompt_ms)},
                                       {"predicted_n", timings.predicted_n},
                                       {"predicted_ms", timings.predicted_ms},
                                       {"predicted_per_token_ms", PerToken(timings.predicted_n, timings.predicted_ms)},
                                       {"predicted_per_second", PerSecond(timings.predicted_n, timings.predicted_ms)},
                                       {"restore_ms", timings.restore_ms},
                                       {"queue_ms", timings.queue_ms}};
  return ToText(json);
}

std::string LogprobText(const GeneratedToken& token, const Tokenizer& tokenizer) {
  std::string out = fmt::format(R"({{"id":{},{},"logprob":{},"top_logprobs":[)", token.id,
                                TokenAsText(token.id, tokenizer), JsonFloat(token.logprob));
  std::string top;
  for (const auto& [id, logprob] : token.top_logprobs) {
    AppendItem(top, fmt::format(R"({{"id":{},{},"logprob":{}}})", id, TokenAsText(id, tokenizer), JsonFloat(logprob)));
  }
  return out + top + "]}";
}

void TokenExtras::Add(const GeneratedToken& token, const Tokenizer& tokenizer) {
  if (!with_ids_ && !with_logprobs_ && !with_digests_) return;
  ++count_;
  if (with_ids_) AppendItem(ids_, std::to_string(token.id));
  if (with_logprobs_) AppendItem(logprobs_, LogprobText(token, tokenizer));
  if (with_digests_) AppendItem(digests_, fmt::format(R"("{}")", token.row.Hex()));
}

std::string TokenExtras::Take() {
  count_ = 0;
  std::string out;
  if (with_ids_) out += fmt::format(R"(,"token_ids":[{}])", std::exchange(ids_, ""));
  if (with_logprobs_) out += fmt::format(R"(,"logprobs":{{"content":[{}]}})", std::exchange(logprobs_, ""));
  if (with_digests_) out += fmt::format(R"(,"row_xxh3":[{}])", std::exchange(digests_, ""));
  return out;
}

}  // namespace layover
