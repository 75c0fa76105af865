// A store without a server: what `ls show verify rm export import gc --store DIR` do. They see the conversations of all
// owners.
//
// What changes a store takes its lock: Aborted, naming the holder, while a server has it.
#ifndef LAYOVER_COORDINATOR_STORE_OFFLINE_H_
#define LAYOVER_COORDINATOR_STORE_OFFLINE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/garbage.h"
#include "common/storage/portable_export.h"
#include "common/storage/portable_import.h"
#include "coordinator/service.h"

namespace layover {

// Which conversation is meant. Without an owner: the only one of that id.
struct StoredId {
  std::string id;
  std::optional<std::string> owner;
};

// Errors: NotFound names the store or the id; InvalidArgument if several owners have a conversation of that id.
absl::StatusOr<std::vector<ConversationInfo>> ListStore(const std::string& store);  // by id
absl::StatusOr<ConversationInfo> ShowStored(const std::string& store, const StoredId& wanted);
// An empty id: every conversation.
absl::StatusOr<std::vector<VerifyResult>> VerifyStore(const std::string& store, const StoredId& wanted);
absl::Status RemoveStored(const std::string& store, const StoredId& wanted);

// Changes nothing and takes no lock, so it works beside a server. `file` must not exist.
absl::StatusOr<PortableSummary> ExportStored(const std::string& store, const StoredId& wanted, const std::string& file,
                                             const PortableSecret& secret);
// The store is made if there is none; not before the file has been opened and its key proved right.
absl::StatusOr<PortableSummary> ImportStored(const std::string& store, const std::string& file,
                                             const PortableSecret& secret, const ImportTarget& target);
// What nothing needs: removed, or with `dry_run` only listed.
absl::StatusOr<std::vector<GarbageFile>> CollectStored(const std::string& store, bool dry_run);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_STORE_OFFLINE_H_
