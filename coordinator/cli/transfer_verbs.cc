// save and restore: on a terminal with a progress bar, fed by the server's event stream.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "common/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/server_call.h"
#include "coordinator/http/conversation_json.h"
#include "coordinator/http/error_json.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

void ShowProgress(const ordered_json& progress) {
  static constexpr int kCells = 30;
  const auto done = progress.value("bytes_done", int64_t{0});
  const auto total = std::max<int64_t>(progress.value("bytes_total", int64_t{0}), 1);
  const int filled = static_cast<int>(std::clamp<int64_t>(done * kCells / total, 0, kCells));
  fmt::print(stderr, "\r{} [{:#<{}}{:{}}] {} of {}   ", progress.value("verb", ""), "", filled, "", kCells - filled,
             BytesText(done), BytesText(total));
}

// Runs the transfer as an event stream; the reply then looks as if it had come whole.
absl::StatusOr<HttpReply> Watch(const HttpClient& client, HttpClient::Request request) {
  request.target += "?stream=true";
  std::optional<HttpReply> last;
  ASSIGN_OR_RETURN(HttpReply reply, client.Stream(request, [&last](std::string_view data) {
    const ordered_json event = ordered_json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) return true;  // [DONE]
    if (event.contains("progress")) ShowProgress(event.at("progress"));
    if (event.contains("result")) last = HttpReply{200, {}, ToText(event.at("result"))};
    if (event.contains("error")) {
      last = HttpReply{HttpStatusOfType(event.at("error").value("type", "")), {}, std::string(data)};
    }
    return true;
  }));
  if (reply.status != 200) return reply;
  fmt::print(stderr, "\r{:70}\r", "");
  if (!last.has_value()) return Unavailable("the server's reply broke off");
  return *std::move(last);
}

int Transfer(const ClientOptions& options, const HttpClient::Request& request, ShowJson show) {
  if (isatty(STDERR_FILENO) == 0) return CallServer(options, request, show);
  const absl::StatusOr<HttpClient> client = ClientOf(options);
  if (!client.ok()) return ReportError(client.status(), options.json);
  const absl::StatusOr<HttpReply> reply = Watch(*client, request);
  if (!reply.ok()) return ReportError(reply.status(), options.json);
  if (ExitCodeOf(*reply) != kDone) return ReportError(*reply, options.json);
  if (options.json) {
    fmt::print("{}\n", reply->body);
  } else {
    show(ordered_json::parse(reply->body));
  }
  return kDone;
}

}  // namespace

int RunSave(const ClientOptions& options, const std::string& id) {
  return Transfer(options, {"POST", ConversationTarget(id, "save"), {}, ""}, ShowSaved);
}

int RunRestore(const ClientOptions& options, const std::string& id, bool prove) {
  return Transfer(options, {"POST", ConversationTarget(id, "restore"), {}, ToText({{"prove", prove}})}, ShowRestored);
}

}  // namespace layover
