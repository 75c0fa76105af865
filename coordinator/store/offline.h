// A store without a server: what `ls show verify rm --store DIR` do. They see the conversations of all owners.
#ifndef LAYOVER_COORDINATOR_STORE_OFFLINE_H_
#define LAYOVER_COORDINATOR_STORE_OFFLINE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/service.h"

namespace layover {

// Errors: NotFound names the store or the id; InvalidArgument if several owners have a conversation of that id.
absl::StatusOr<std::vector<ConversationInfo>> ListStore(const std::string& store);  // by id
absl::StatusOr<ConversationInfo> ShowStored(const std::string& store, const std::string& id);
// An empty id: every conversation.
absl::StatusOr<std::vector<VerifyResult>> VerifyStore(const std::string& store, const std::string& id);
// Takes the store's lock: Aborted, naming the holder, while a server has it.
absl::Status RemoveStored(const std::string& store, const std::string& id);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_STORE_OFFLINE_H_
