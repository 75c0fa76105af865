// One request of a verb to the server, and how a conversation or a verification is shown to people.
#ifndef LAYOVER_COORDINATOR_CLI_SERVER_CALL_H_
#define LAYOVER_COORDINATOR_CLI_SERVER_CALL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/cli/verbs.h"
#include "coordinator/http/http_client.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

absl::StatusOr<HttpClient> ClientOf(const ClientOptions& options);

// "/v1/kv/conversations/ID[/verb]", the id percent-encoded.
std::string ConversationTarget(const std::string& id, std::string_view verb = "");

// Sends it and prints the reply: with --json as it came, else by `show`. Any error is printed; returns the exit code.
using ShowJson = void (*)(const nlohmann::ordered_json& reply);
int CallServer(const ClientOptions& options, const HttpClient::Request& request, ShowJson show);

// "12.3 MiB"
std::string BytesText(int64_t bytes);

void ShowConversationList(const nlohmann::ordered_json& list);
void ShowConversation(const nlohmann::ordered_json& conversation);
void ShowVerification(const nlohmann::ordered_json& verification);  // {ok, conversations}
void ShowParked(const nlohmann::ordered_json& result);
void ShowRewound(const nlohmann::ordered_json& result);
void ShowSaved(const nlohmann::ordered_json& result);
void ShowRestored(const nlohmann::ordered_json& result);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CLI_SERVER_CALL_H_
