// Failures as HTTP: the one place where a Status becomes a code, an OpenAI error object and retry headers.
#ifndef LAYOVER_COORDINATOR_HTTP_ERROR_JSON_H_
#define LAYOVER_COORDINATOR_HTTP_ERROR_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "coordinator/http/http_message.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

// 400 for InvalidArgument, 404 for NotFound, ... (common/status.h); Unauthenticated 401, PermissionDenied 403,
// AlreadyExists 409.
int HttpStatusOf(const absl::Status& status);
// For an error object in an event stream, whose HTTP status was 200: by its "type".
int HttpStatusOfType(std::string_view type);

// {"message", "type", "param", "code"} and, where the status has them, "file", "stage", "field". Without the outer
// {"error": ...}. A context overflow carries its numbers as "n_prompt_tokens" and "n_ctx" (ContextOverflow).
nlohmann::ordered_json ErrorObject(const absl::Status& status);

// The whole reply: {"error": {...}}, with Retry-After on 503 and x-should-retry: false where a retry cannot help.
HttpReply ErrorReply(const absl::Status& status);

// For what no Status says (405, 408, 413, 431, 503 of the listener, ...).
HttpReply ErrorReply(int http_status, std::string_view message, std::string_view code = "");

// A 400 that names the field of the request.
absl::Status BadField(std::string_view param, std::string_view message);
// The 400 of a prompt that does not fit; its text is public interface.
absl::Status ContextOverflow(int64_t n_prompt_tokens, int64_t n_ctx);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_ERROR_JSON_H_
