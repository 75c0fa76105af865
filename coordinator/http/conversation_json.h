// The JSON of conversations, saves and restores: the same from the server and from the command line's offline verbs.
#ifndef LAYOVER_COORDINATOR_HTTP_CONVERSATION_JSON_H_
#define LAYOVER_COORDINATOR_HTTP_CONVERSATION_JSON_H_

#include <string_view>

#include "coordinator/service.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

std::string_view ConversationStateName(ConversationState state);  // "active", "idle", ...

// `detail`: as `show` has it, with branch_list, segments, last_save and divergence.
nlohmann::ordered_json ConversationJson(const ConversationInfo& info, bool detail);
nlohmann::ordered_json ConversationListJson(const ConversationPage& page);
nlohmann::ordered_json DeletedJson(std::string_view id);
nlohmann::ordered_json SaveJson(const SaveResult& result);
nlohmann::ordered_json RestoreJson(const RestoreResult& result);
nlohmann::ordered_json ParkJson(const ParkResult& result);
nlohmann::ordered_json RewindJson(const RewindResult& result);
nlohmann::ordered_json VerifyJson(const VerifyResult& result);
nlohmann::ordered_json ProgressJson(const TransferProgress& progress);
nlohmann::ordered_json HealthJson(const HealthReport& report);

// Compact text; bytes that are not UTF-8 become U+FFFD, so it never fails.
std::string ToText(const nlohmann::ordered_json& value);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_CONVERSATION_JSON_H_
