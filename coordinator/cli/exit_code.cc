#include "coordinator/cli/exit_code.h"

#include <string>

#include "common/status.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

// The "error" object of a reply; empty if it has none.
ordered_json ErrorOf(const HttpReply& reply) {
  const ordered_json body = ordered_json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("error") || !body.at("error").is_object()) return ordered_json::object();
  return body.at("error");
}

std::string TextOf(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kDone;
    case absl::StatusCode::kInvalidArgument:
      return kUsage;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kDataLoss:
      return kRefused;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kNotReady;
    default:
      return kFailed;
  }
}

ExitCode ExitCodeOfSetup(const absl::Status& status) {
  if (status.ok()) return kDone;
  return absl::IsInvalidArgument(status) ? kUsage : kFailed;
}

ExitCode ExitCodeOf(const HttpReply& reply) {
  if (reply.status >= 200 && reply.status < 300) return kDone;
  if (reply.status == 404) return kNotFound;
  if (reply.status == 422) return kRefused;
  if (reply.status == 409) return TextOf(ErrorOf(reply), "code") == "identity_mismatch" ? kRefused : kFailed;
  if (reply.status == 503) return kNotReady;
  return kFailed;
}

ExitCode ReportError(const absl::Status& status, bool json) {
  fmt::print(stderr, "layover: {}\n", ToStd(status.message()));
  if (json) fmt::print("{}\n", ToText({{"error", ErrorObject(status)}}));
  return ExitCodeOf(status);
}

ExitCode ReportError(const HttpReply& reply, bool json) {
  const ordered_json error = ErrorOf(reply);
  const std::string message = TextOf(error, "message");
  fmt::print(stderr, "layover: {}\n", message.empty() ? fmt::format("the server answered {}", reply.status) : message);
  if (json) fmt::print("{}\n", ToText({{"error", error}}));
  return ExitCodeOf(reply);
}

}  // namespace layover
