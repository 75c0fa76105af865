// The body of a completion request as one validated struct. Every field is checked here, once: types, ranges, counts.
// A wrong one is InvalidArgument with the field's name as `param`; null counts as absent; unknown fields are ignored.
#ifndef LAYOVER_COORDINATOR_HTTP_REQUEST_FIELDS_H_
#define LAYOVER_COORDINATOR_HTTP_REQUEST_FIELDS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/limits.h"
#include "common/wire/sampler_spec.h"
#include "coordinator/http/http_message.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

// What the ranges depend on.
struct FieldBounds {
  int64_t n_vocab = 0;
  int sessions = 1;
};

// What chat and text completions share.
struct CompletionFields {
  bool stream = false;
  bool include_usage = false;
  SamplerSpec sampler;  // the seed is drawn here where none was given
  std::vector<std::string> stop;
  int64_t max_tokens = -1;  // -1: to the end of the context
  int top_logprobs = -1;    // -1: none
  bool return_tokens = false;
  bool return_row_digests = false;
  bool ignore_eos = false;
  bool cache_prompt = true;
  int id_slot = -1;
  std::string conversation_id;                             // empty: anonymous
  std::optional<std::chrono::milliseconds> ping_interval;  // zero: no pings
};

// The parts of a chat request; the JSON is held by the parsed body, which must outlive them.
struct ChatFields {
  const nlohmann::ordered_json* messages = nullptr;  // a non-empty array of objects, with text content only
  const nlohmann::ordered_json* tools = nullptr;     // null: none
  const nlohmann::ordered_json* kwargs = nullptr;    // null: none
};

struct TextPrompt {
  std::variant<std::string, std::vector<int32_t>> prompt;
  bool parse_special = false;  // a string's control-token look-alikes become control tokens
};

// The body of a request as a JSON object; `reasoning_effort` stands among `chat_template_kwargs` in it.
absl::StatusOr<nlohmann::ordered_json> ParseBody(std::string_view body);

enum class CompletionKind { kChat, kText };
absl::StatusOr<CompletionFields> ReadCompletionFields(const nlohmann::ordered_json& body, CompletionKind kind,
                                                      const FieldBounds& bounds);
absl::StatusOr<ChatFields> ReadChatFields(const nlohmann::ordered_json& body);
absl::StatusOr<TextPrompt> ReadTextPrompt(const nlohmann::ordered_json& body, const FieldBounds& bounds);

// The header X-Conversation-Id, which wins, or what the body said. InvalidArgument: not 1..256 printable ASCII.
absl::StatusOr<std::string> ConversationIdOf(const HttpRequest& request, const std::string& from_body);
absl::Status CheckConversationId(std::string_view id, std::string_view param);

// One field of an object, for the smaller endpoints. Absent or null leaves *out as it is.
absl::Status ReadBool(const nlohmann::ordered_json& body, const char* name, bool* out);
absl::Status ReadString(const nlohmann::ordered_json& body, const char* name, std::string* out);
// An array of ids in [0, n_vocab).
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const nlohmann::ordered_json& value, std::string_view param,
                                                  int64_t n_vocab);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_REQUEST_FIELDS_H_
