// ls, show, rm, verify, park, fork, rewind: one question to the server each.
#include <vector>

#include "common/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/offline_verbs.h"
#include "coordinator/cli/server_call.h"
#include "coordinator/http/conversation_json.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using nlohmann::ordered_json;

// A reply that is an error, as a status would not say it: kept whole, since its object goes to stdout with --json.
struct Answer {
  int exit_code = kDone;
  ordered_json body;
};

Answer Ask(const ClientOptions& options, const HttpClient& client, const HttpClient::Request& request) {
  const absl::StatusOr<HttpReply> reply = client.Send(request);
  if (!reply.ok()) return {ReportError(reply.status(), options.json), {}};
  if (ExitCodeOf(*reply) != kDone) return {ReportError(*reply, options.json), {}};
  ordered_json body = ordered_json::parse(reply->body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) return {ReportError(Internal("the server's reply is not JSON"), options.json), {}};
  return {kDone, std::move(body)};
}

// Every page of the list as one.
Answer WholeList(const ClientOptions& options, const HttpClient& client) {
  ordered_json data = ordered_json::array();
  std::string target = "/v1/kv/conversations";
  while (true) {
    Answer page = Ask(options, client, {"GET", target, {}, ""});
    if (page.exit_code != kDone) return page;
    for (ordered_json& one : page.body["data"]) data.push_back(std::move(one));
    if (!page.body["next"].is_string()) break;
    target = "/v1/kv/conversations?after=" + PercentEncode(page.body["next"].get<std::string>());
  }
  return {kDone, {{"object", "list"}, {"data", std::move(data)}, {"next", nullptr}}};
}

void ShowNothing(const ordered_json&) {}

}  // namespace

int RunList(const ClientOptions& options) {
  if (!options.store.empty()) return ListOffline(options);
  const absl::StatusOr<HttpClient> client = ClientOf(options);
  if (!client.ok()) return ReportError(client.status(), options.json);
  const Answer list = WholeList(options, *client);
  if (list.exit_code != kDone) return list.exit_code;
  if (options.json) {
    fmt::print("{}\n", ToText(list.body));
  } else {
    ShowConversationList(list.body);
  }
  return kDone;
}

int RunShow(const ClientOptions& options, const std::string& id) {
  if (!options.store.empty()) return ShowOffline(options, id);
  return CallServer(options, {"GET", ConversationTarget(id), {}, ""}, ShowConversation);
}

int RunRemove(const ClientOptions& options, const std::string& id) {
  if (!options.store.empty()) return RemoveOffline(options, id);
  return CallServer(options, {"DELETE", ConversationTarget(id), {}, ""}, ShowNothing);
}

int RunVerify(const ClientOptions& options, const std::string& id) {
  if (!options.store.empty()) return VerifyOffline(options, id);
  const absl::StatusOr<HttpClient> client = ClientOf(options);
  if (!client.ok()) return ReportError(client.status(), options.json);
  std::vector<std::string> ids = {id};
  if (id.empty()) {
    const Answer list = WholeList(options, *client);
    if (list.exit_code != kDone) return list.exit_code;
    ids.clear();
    for (const ordered_json& one : list.body.at("data")) ids.push_back(one.at("id"));
  }
  ordered_json report = {{"ok", true}, {"conversations", ordered_json::array()}};
  for (const std::string& one : ids) {
    Answer answer = Ask(options, *client, {"POST", ConversationTarget(one, "verify"), {}, ""});
    if (answer.exit_code != kDone) return answer.exit_code;
    if (answer.body["ok"] != true) report["ok"] = false;
    report["conversations"].push_back(std::move(answer.body));
  }
  return PrintVerification(options, report);
}

int PrintVerification(const ClientOptions& options, const ordered_json& report) {
  if (options.json) {
    fmt::print("{}\n", ToText(report));
  } else {
    ShowVerification(report);
  }
  return report.at("ok") == true ? kDone : kRefused;
}

int RunPark(const ClientOptions& options, const std::string& id) {
  return CallServer(options, {"POST", ConversationTarget(id, "park"), {}, ""}, ShowParked);
}

int RunFork(const ClientOptions& options, const std::string& id, const std::string& new_id) {
  return CallServer(options, {"POST", ConversationTarget(id, "fork"), {}, ToText({{"new_id", new_id}})},
                    ShowConversation);
}

int RunRewind(const ClientOptions& options, const std::string& id, int64_t to) {
  return CallServer(options, {"POST", ConversationTarget(id, "rewind"), {}, ToText({{"to", to}})}, ShowRewound);
}

}  // namespace layover
