#include "coordinator/http/request_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/status.h"
#include "coordinator/http/error_json.h"
#include "coordinator/text/request_json.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxTokensAsked = std::numeric_limits<int32_t>::max();  // more than any context; larger is cut to it
constexpr double kSmallestTopP = 1e-6;                                    // what 0 means: the likeliest token alone

const ordered_json* Find(const ordered_json& body, const char* name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

// An integer too large for 64 bits is held as its digits and is no number here: every range is smaller.
bool NumberOf(const ordered_json& value, double* number) {
  if (!value.is_number()) return false;
  *number = value.get<double>();
  return true;
}

bool ToInteger(const ordered_json& value, int64_t* out) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  if (value.is_number_integer()) {
    *out = value.get<int64_t>();
    return true;
  }
  double number = 0;
  if (!NumberOf(value, &number) || number != std::floor(number) || std::fabs(number) > 9e15) return false;
  *out = static_cast<int64_t>(number);  // 16.0, as some clients write it
  return true;
}

// Of [lo, hi]; absent leaves *out.
absl::Status ReadInteger(const ordered_json& body, const char* name, int64_t lo, int64_t hi, int64_t* out) {
  const ordered_json* value = Find(body, name);
  if (value == nullptr) return absl::OkStatus();
  int64_t number = 0;
  if (!ToInteger(*value, &number) || number < lo || number > hi) {
    return BadField(name, fmt::format("expected an integer from {} to {}", lo, hi));
  }
  *out = number;
  return absl::OkStatus();
}

absl::Status ReadNumber(const ordered_json& body, const char* name, double lo, double hi, float* out) {
  const ordered_json* value = Find(body, name);
  if (value == nullptr) return absl::OkStatus();
  double number = 0;
  if (!NumberOf(*value, &number) || !(number >= lo && number <= hi)) {
    return BadField(name, fmt::format("expected a number from {} to {}", lo, hi));
  }
  *out = static_cast<float>(number);
  return absl::OkStatus();
}

uint64_t DrawSeed() {
  std::random_device source;
  return (static_cast<uint64_t>(source()) << 32) | source();
}

// --------------------------------------------------------------------------------------------------------- the sampler

absl::Status ReadSeed(const ordered_json& body, uint64_t* seed) {
  const ordered_json* value = Find(body, "seed");
  int64_t number = -1;
  if (value != nullptr && value->is_number_unsigned()) {
    *seed = value->get<uint64_t>();
    return absl::OkStatus();
  }
  if (value != nullptr && !ToInteger(*value, &number)) return BadField("seed", "expected a 64-bit integer");
  *seed = number == -1 ? DrawSeed() : static_cast<uint64_t>(number);
  return absl::OkStatus();
}

// One entry of logit_bias: a number, or false for "never".
absl::Status AddBias(int64_t id, const ordered_json& bias, const FieldBounds& bounds, SamplerSpec& sampler) {
  if (id < 0 || id >= bounds.n_vocab) {
    return BadField("logit_bias", fmt::format("{} is no token id; allowed is 0 to {}", id, bounds.n_vocab - 1));
  }
  double number = 0;
  if (bias.is_boolean() && !bias.get<bool>()) {
    sampler.banned.push_back(static_cast<int32_t>(id));
  } else if (NumberOf(bias, &number) && number >= -100 && number <= 100) {
    sampler.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(number));
  } else {
    return BadField("logit_bias", fmt::format("the bias of {} must be a number from -100 to 100, or false", id));
  }
  return absl::OkStatus();
}

absl::Status ReadBiasObject(const ordered_json& object, const FieldBounds& bounds, SamplerSpec& sampler) {
  for (const auto& [key, bias] : object.items()) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) return BadField("logit_bias", "its keys must be token ids");
    RETURN_IF_ERROR(AddBias(id, bias, bounds, sampler));
  }
  return absl::OkStatus();
}

// The other server's form: [[id, bias], ...].
absl::Status ReadBiasArray(const ordered_json& array, const FieldBounds& bounds, SamplerSpec& sampler) {
  for (const ordered_json& pair : array) {
    int64_t id = 0;
    if (!pair.is_array() || pair.size() != 2 || !ToInteger(pair[0], &id)) {
      return BadField("logit_bias", "an array must hold pairs of a token id and a bias");
    }
    RETURN_IF_ERROR(AddBias(id, pair[1], bounds, sampler));
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const ordered_json& body, const FieldBounds& bounds, SamplerSpec& sampler) {
  const ordered_json* value = Find(body, "logit_bias");
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return absl::OkStatus();
  if (!value->is_object() && !value->is_array()) {
    return BadField("logit_bias", "expected an object of token id to bias, or an array of pairs");
  }
  if (value->size() > static_cast<size_t>(limits::kMaxLogitBias)) {
    return BadField("logit_bias", fmt::format("at most {} entries", limits::kMaxLogitBias));
  }
  return value->is_object() ? ReadBiasObject(*value, bounds, sampler) : ReadBiasArray(*value, bounds, sampler);
}

absl::Status ReadSampler(const ordered_json& body, const FieldBounds& bounds, SamplerSpec& sampler) {
  RETURN_IF_ERROR(ReadNumber(body, "temperature", 0, 100, &sampler.temperature));
  RETURN_IF_ERROR(ReadNumber(body, "top_p", 0, 1, &sampler.top_p));
  RETURN_IF_ERROR(ReadNumber(body, "min_p", 0, 1, &sampler.min_p));
  RETURN_IF_ERROR(ReadNumber(body, "presence_penalty", -2, 2, &sampler.presence_penalty));
  RETURN_IF_ERROR(ReadNumber(body, "frequency_penalty", -2, 2, &sampler.frequency_penalty));
  RETURN_IF_ERROR(ReadNumber(body, "repetition_penalty", 0.01, 100, &sampler.repeat_penalty));
  RETURN_IF_ERROR(ReadNumber(body, "repeat_penalty", 0.01, 100, &sampler.repeat_penalty));
  sampler.top_p = std::max(sampler.top_p, static_cast<float>(kSmallestTopP));
  int64_t top_k = 0;
  RETURN_IF_ERROR(ReadInteger(body, "top_k", -1, std::numeric_limits<int32_t>::max(), &top_k));
  sampler.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  RETURN_IF_ERROR(ReadSeed(body, &sampler.seed));
  return ReadLogitBias(body, bounds, sampler);
}

// ----------------------------------------------------------------------------------------------------- the other
// fields

absl::Status ReadStop(const ordered_json& body, std::vector<std::string>& stop) {
  const ordered_json* value = Find(body, "stop");
  if (value == nullptr) return absl::OkStatus();
  const ordered_json list = value->is_array() ? *value : ordered_json::array({*value});
  if (list.size() > static_cast<size_t>(limits::kMaxStopStrings)) {
    return BadField("stop", fmt::format("at most {} strings", limits::kMaxStopStrings));
  }
  for (const ordered_json& item : list) {
    if (!item.is_string()) return BadField("stop", "expected a string or an array of strings");
    std::string text = item.get<std::string>();
    if (text.size() > limits::kMaxStopStringBytes) {
      return BadField("stop", fmt::format("a stop string has at most {} bytes", limits::kMaxStopStringBytes));
    }
    if (!text.empty()) stop.push_back(std::move(text));
  }
  return absl::OkStatus();
}

// The smaller of max_tokens and max_completion_tokens, where -1 is without end.
absl::Status ReadMaxTokens(const ordered_json& body, int64_t* max_tokens) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    int64_t given = -1;
    RETURN_IF_ERROR(ReadInteger(body, name, -1, INT64_MAX, &given));
    if (given == -1) continue;
    given = std::min(given, kMaxTokensAsked);
    *max_tokens = *max_tokens == -1 ? given : std::min(*max_tokens, given);
  }
  return absl::OkStatus();
}

// A number in text completions; in chat a bool with top_logprobs beside it. Both forms are taken in both.
absl::Status ReadLogprobs(const ordered_json& body, int* top_logprobs) {
  int64_t top = -1;
  RETURN_IF_ERROR(ReadInteger(body, "top_logprobs", 0, limits::kMaxTopLogprobs, &top));
  const ordered_json* value = Find(body, "logprobs");
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) {
    if (top > 0) return BadField("top_logprobs", "needs logprobs: true");
    return absl::OkStatus();
  }
  if (!value->is_boolean()) RETURN_IF_ERROR(ReadInteger(body, "logprobs", 0, limits::kMaxTopLogprobs, &top));
  *top_logprobs = static_cast<int>(std::max<int64_t>(top, 0));
  return absl::OkStatus();
}

absl::Status ReadStreamFields(const ordered_json& body, CompletionFields& fields) {
  RETURN_IF_ERROR(ReadBool(body, "stream", &fields.stream));
  if (const ordered_json* options = Find(body, "stream_options"); options != nullptr) {
    if (!options->is_object()) return BadField("stream_options", "expected an object");
    RETURN_IF_ERROR(ReadBool(*options, "include_usage", &fields.include_usage));
  }
  if (Find(body, "sse_ping_interval") != nullptr) {
    float seconds = 0;
    RETURN_IF_ERROR(ReadNumber(body, "sse_ping_interval", -1, 3600, &seconds));
    fields.ping_interval = std::chrono::milliseconds(static_cast<int64_t>(std::max(seconds, 0.0f) * 1000));
  }
  return absl::OkStatus();
}

// What is refused, rather than ignored, because the reply would not be what was asked for.
absl::Status RefuseUnsupported(const ordered_json& body, CompletionKind kind) {
  int64_t n = 1;
  RETURN_IF_ERROR(ReadInteger(body, "n", 1, 1, &n));
  if (const ordered_json* format = Find(body, "response_format"); format != nullptr) {
    const bool is_text = format->is_object() && format->contains("type") && format->at("type") == "text";
    if (!is_text) return BadField("response_format", "only {\"type\": \"text\"} is supported");
  }
  if (kind == CompletionKind::kText) {
    RETURN_IF_ERROR(ReadInteger(body, "best_of", 1, 1, &n));
    bool echo = false;
    RETURN_IF_ERROR(ReadBool(body, "echo", &echo));
    if (echo) return BadField("echo", "is not supported");
    std::string suffix;
    RETURN_IF_ERROR(ReadString(body, "suffix", &suffix));
    if (!suffix.empty()) return BadField("suffix", "is not supported");
    return absl::OkStatus();
  }
  for (const char* legacy : {"functions", "function_call"}) {
    if (Find(body, legacy) != nullptr) return BadField(legacy, "is not supported; use tools");
  }
  const ordered_json* choice = Find(body, "tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    return BadField("tool_choice", "only \"none\" and \"auto\" are supported");
  }
  if (const ordered_json* modalities = Find(body, "modalities"); modalities != nullptr) {
    if (*modalities != ordered_json::array({"text"})) return BadField("modalities", "only [\"text\"] is supported");
  }
  return absl::OkStatus();
}

// OpenAI's field is what templates know as a variable of the same name; one that stands among the variables wins.
absl::Status MoveReasoningEffort(ordered_json& body) {
  const ordered_json* effort = Find(body, "reasoning_effort");
  if (effort == nullptr) return absl::OkStatus();
  if (!effort->is_string()) return BadField("reasoning_effort", "expected a string");
  const ordered_json* variables = Find(body, "chat_template_kwargs");
  if (variables != nullptr && (!variables->is_object() || variables->contains("reasoning_effort"))) {
    return absl::OkStatus();
  }
  const ordered_json text = *effort;
  body["chat_template_kwargs"]["reasoning_effort"] = text;
  return absl::OkStatus();
}

absl::Status CheckMessage(const ordered_json& message, size_t index) {
  const std::string param = fmt::format("messages[{}]", index);
  if (!message.is_object()) return BadField(param, "expected an object");
  const ordered_json* role = Find(message, "role");
  if (role == nullptr || !role->is_string()) return BadField(param + ".role", "expected a string");
  const ordered_json* content = Find(message, "content");
  if (content == nullptr || content->is_string()) return absl::OkStatus();
  if (!content->is_array()) return BadField(param + ".content", "expected a string or an array of text parts");
  for (size_t i = 0; i < content->size(); ++i) {
    const ordered_json& part = (*content)[i];
    const std::string part_param = fmt::format("{}.content[{}]", param, i);
    if (!part.is_object()) return BadField(part_param, "expected an object");
    const ordered_json* type = Find(part, "type");
    if (type == nullptr || *type != "text") return BadField(part_param, "only parts of type \"text\" are supported");
    const ordered_json* text = Find(part, "text");
    if (text == nullptr || !text->is_string()) return BadField(part_param + ".text", "expected a string");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ordered_json> ParseBody(std::string_view body) {
  ASSIGN_OR_RETURN(ordered_json parsed, ParseRequestJson(body));
  if (!parsed.is_object()) return InvalidArgument("the request's body must be a JSON object");
  RETURN_IF_ERROR(MoveReasoningEffort(parsed));
  return parsed;
}

absl::StatusOr<CompletionFields> ReadCompletionFields(const ordered_json& body, CompletionKind kind,
                                                      const FieldBounds& bounds) {
  CompletionFields fields;
  RETURN_IF_ERROR(RefuseUnsupported(body, kind));
  RETURN_IF_ERROR(ReadStreamFields(body, fields));
  RETURN_IF_ERROR(ReadSampler(body, bounds, fields.sampler));
  RETURN_IF_ERROR(ReadStop(body, fields.stop));
  RETURN_IF_ERROR(ReadMaxTokens(body, &fields.max_tokens));
  RETURN_IF_ERROR(ReadLogprobs(body, &fields.top_logprobs));
  RETURN_IF_ERROR(ReadBool(body, "return_tokens", &fields.return_tokens));
  RETURN_IF_ERROR(ReadBool(body, "return_row_digests", &fields.return_row_digests));
  RETURN_IF_ERROR(ReadBool(body, "ignore_eos", &fields.ignore_eos));
  RETURN_IF_ERROR(ReadBool(body, "cache_prompt", &fields.cache_prompt));
  int64_t id_slot = -1;
  RETURN_IF_ERROR(ReadInteger(body, "id_slot", -1, bounds.sessions - 1, &id_slot));
  fields.id_slot = static_cast<int>(id_slot);
  if (Find(body, "conversation_id") != nullptr) {
    RETURN_IF_ERROR(ReadString(body, "conversation_id", &fields.conversation_id));
    RETURN_IF_ERROR(CheckConversationId(fields.conversation_id, "conversation_id"));
  }
  return fields;
}

absl::StatusOr<ChatFields> ReadChatFields(const ordered_json& body) {
  ChatFields chat;
  chat.messages = Find(body, "messages");
  if (chat.messages == nullptr || !chat.messages->is_array() || chat.messages->empty()) {
    return BadField("messages", "expected an array with at least one message");
  }
  for (size_t i = 0; i < chat.messages->size(); ++i) RETURN_IF_ERROR(CheckMessage((*chat.messages)[i], i));
  chat.tools = Find(body, "tools");
  if (chat.tools != nullptr && !chat.tools->is_array()) return BadField("tools", "expected an array");
  if (chat.tools != nullptr && chat.tools->empty()) chat.tools = nullptr;
  chat.kwargs = Find(body, "chat_template_kwargs");
  if (chat.kwargs != nullptr && !chat.kwargs->is_object())
    return BadField("chat_template_kwargs", "expected an object");
  return chat;
}

absl::StatusOr<TextPrompt> ReadTextPrompt(const ordered_json& body, const FieldBounds& bounds) {
  TextPrompt out;
  RETURN_IF_ERROR(ReadBool(body, "parse_special", &out.parse_special));
  const ordered_json* prompt = Find(body, "prompt");
  // Some clients wrap the one prompt in a list.
  if (prompt != nullptr && prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) {
    prompt = &prompt->front();
  }
  if (prompt != nullptr && prompt->is_string()) {
    out.prompt = prompt->get<std::string>();
    return out;
  }
  if (prompt == nullptr || !prompt->is_array() || prompt->empty()) {
    return BadField("prompt", "expected a string or an array of token ids");
  }
  if (prompt->front().is_string() || prompt->front().is_array()) return BadField("prompt", "one prompt per request");
  ASSIGN_OR_RETURN(out.prompt, ReadTokenIds(*prompt, "prompt", bounds.n_vocab));
  return out;
}

absl::StatusOr<std::string> ConversationIdOf(const HttpRequest& request, const std::string& from_body) {
  const std::string* header = request.Header("x-conversation-id");
  if (header == nullptr) return from_body;
  RETURN_IF_ERROR(CheckConversationId(*header, "X-Conversation-Id"));
  return *header;
}

absl::Status CheckConversationId(std::string_view id, std::string_view param) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (id.empty() || id.size() > static_cast<size_t>(limits::kMaxConversationIdBytes) || !printable) {
    return BadField(param, fmt::format("a conversation's id is 1 to {} printable ASCII characters",
                                       limits::kMaxConversationIdBytes));
  }
  return absl::OkStatus();
}

absl::Status ReadBool(const ordered_json& body, const char* name, bool* out) {
  const ordered_json* value = Find(body, name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return BadField(name, "expected true or false");
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(const ordered_json& body, const char* name, std::string* out) {
  const ordered_json* value = Find(body, name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return BadField(name, "expected a string");
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const ordered_json& value, std::string_view param, int64_t n_vocab) {
  if (!value.is_array()) return BadField(param, "expected an array of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const ordered_json& item : value) {
    int64_t id = 0;
    if (!ToInteger(item, &id) || id < 0 || id >= n_vocab) {
      return BadField(param, fmt::format("[{}] is no token id; allowed is 0 to {}", ids.size(), n_vocab - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace layover
