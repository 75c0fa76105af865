// The verbs that read or change a store itself, without a server (--store DIR, or the store of a server on this
// machine).
#ifndef LAYOVER_COORDINATOR_CLI_OFFLINE_VERBS_H_
#define LAYOVER_COORDINATOR_CLI_OFFLINE_VERBS_H_

#include <string>

#include "coordinator/cli/verbs.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

int ListOffline(const ClientOptions& options);
int ShowOffline(const ClientOptions& options, const std::string& id);
int RemoveOffline(const ClientOptions& options, const std::string& id);
int VerifyOffline(const ClientOptions& options, const std::string& id);  // empty id: every conversation

int ExportOffline(const ClientOptions& options, const std::string& id, const FileOptions& file);
int ImportOffline(const ClientOptions& options, const ImportOptions& import);
int CollectOffline(const ClientOptions& options, bool dry_run);

// Prints {ok, conversations}; 4 if it is not ok.
int PrintVerification(const ClientOptions& options, const nlohmann::ordered_json& report);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CLI_OFFLINE_VERBS_H_
