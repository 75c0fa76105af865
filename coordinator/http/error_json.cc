#include "coordinator/http/error_json.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

constexpr absl::string_view kOverflowUrl = "layover/context-overflow";  // payload: "PROMPT_TOKENS CONTEXT"
constexpr char kRetryAfterSeconds[] = "2";

struct CodeRow {
  absl::StatusCode code;
  int http_status;
  const char* default_code;  // of the error object; empty: null
};
constexpr CodeRow kCodes[] = {
    {absl::StatusCode::kInvalidArgument, 400, ""},
    {absl::StatusCode::kUnauthenticated, 401, "invalid_api_key"},
    {absl::StatusCode::kPermissionDenied, 403, ""},
    {absl::StatusCode::kNotFound, 404, "conversation_not_found"},
    {absl::StatusCode::kFailedPrecondition, 409, "identity_mismatch"},
    {absl::StatusCode::kAborted, 409, "conversation_busy"},
    {absl::StatusCode::kAlreadyExists, 409, "conversation_exists"},
    {absl::StatusCode::kDataLoss, 422, "image_damaged"},
    {absl::StatusCode::kInternal, 500, ""},
    {absl::StatusCode::kUnimplemented, 501, ""},
    {absl::StatusCode::kUnavailable, 503, ""},
    {absl::StatusCode::kDeadlineExceeded, 504, ""},
    {absl::StatusCode::kResourceExhausted, 507, "no_space"},
};
constexpr CodeRow kOtherCode = {absl::StatusCode::kUnknown, 500, ""};

const CodeRow& RowOf(const absl::Status& status) {
  for (const CodeRow& row : kCodes) {
    if (row.code == status.code()) return row;
  }
  return kOtherCode;
}

struct TypeRow {
  int http_status;
  std::string_view type;
};
// The first row of a type is the status that stands for it where only the type is known.
constexpr TypeRow kTypes[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                              {403, "permission_error"},      {404, "not_found_error"},
                              {504, "timeout_error"},         {408, "timeout_error"},
                              {409, "conflict_error"},        {413, "request_too_large"},
                              {431, "request_too_large"},     {422, "unprocessable_entity_error"},
                              {429, "rate_limit_error"},      {500, "server_error"},
                              {501, "not_supported_error"},   {503, "unavailable_error"},
                              {507, "insufficient_storage"}};

std::string_view TypeOf(int http_status) {
  for (const TypeRow& row : kTypes) {
    if (row.http_status == http_status) return row.type;
  }
  return http_status >= 500 ? "server_error" : "invalid_request_error";
}

ordered_json TextOrNull(std::string_view text) {
  return text.empty() ? ordered_json() : ordered_json(text);
}

HttpReply ReplyOf(int http_status, const ordered_json& error) {
  HttpReply reply{http_status, {{"Content-Type", "application/json"}}, ToText({{"error", error}})};
  if (http_status == 503) reply.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  // The official clients repeat 409 and everything from 500 by themselves; for these that cannot help.
  if (http_status == 409 || http_status == 501 || http_status == 507) {
    reply.headers.emplace_back("x-should-retry", "false");
  }
  if (http_status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

void AddOverflow(const absl::Status& status, ordered_json& error) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kOverflowUrl);
  if (!payload.has_value()) return;
  const std::vector<std::string> numbers = absl::StrSplit(std::string(*payload), ' ');
  int64_t n_prompt_tokens = 0;
  int64_t n_ctx = 0;
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &n_prompt_tokens) || !absl::SimpleAtoi(numbers[1], &n_ctx)) {
    return;
  }
  error["n_prompt_tokens"] = n_prompt_tokens;
  error["n_ctx"] = n_ctx;
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  return RowOf(status).http_status;
}

int HttpStatusOfType(std::string_view type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.http_status;
  }
  return 500;
}

ordered_json ErrorObject(const absl::Status& status) {
  const CodeRow& row = RowOf(status);
  const StatusPart part = PartOf(status).value_or(StatusPart{});
  ordered_json error = {{"message", ToStd(status.message())},
                        {"type", TypeOf(row.http_status)},
                        {"param", TextOrNull(part.param)},
                        {"code", TextOrNull(part.code.empty() ? row.default_code : part.code)}};
  if (!part.file.empty()) error["file"] = part.file;
  if (part.stage >= 0) error["stage"] = part.stage;
  if (!part.field.empty()) error["field"] = part.field;
  AddOverflow(status, error);
  return error;
}

HttpReply ErrorReply(const absl::Status& status) {
  return ReplyOf(HttpStatusOf(status), ErrorObject(status));
}

HttpReply ErrorReply(int http_status, std::string_view message, std::string_view code) {
  return ReplyOf(http_status,
                 {{"message", message}, {"type", TypeOf(http_status)}, {"param", nullptr}, {"code", TextOrNull(code)}});
}

absl::Status BadField(std::string_view param, std::string_view message) {
  return WithPart(InvalidArgument("{}: {}", param, message), {.param = std::string(param)});
}

absl::Status ContextOverflow(int64_t n_prompt_tokens, int64_t n_ctx) {
  absl::Status status = InvalidArgument(
      "This model's maximum context length is {} tokens; the request exceeds the available context size ({} prompt "
      "tokens).",
      n_ctx, n_prompt_tokens);
  status.SetPayload(kOverflowUrl, absl::Cord(fmt::format("{} {}", n_prompt_tokens, n_ctx)));
  return WithPart(std::move(status), {.code = "context_length_exceeded"});
}

}  // namespace layover
