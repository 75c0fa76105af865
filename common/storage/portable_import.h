// Takes the conversation of a portable file into a store: everything or nothing, at any crash.
#ifndef LAYOVER_COMMON_STORAGE_PORTABLE_IMPORT_H_
#define LAYOVER_COMMON_STORAGE_PORTABLE_IMPORT_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/portable_export.h"

namespace layover {

// Whose the conversation becomes, and its id; absent: as the file says.
struct ImportTarget {
  std::optional<std::string> owner;
  std::optional<std::string> id;
};

// The caller holds the store's lock. AlreadyExists if the store has the conversation; DataLoss and FailedPrecondition
// as PortableReader; InvalidArgument if the target's names are none. The summary is of what is in the store now.
absl::StatusOr<PortableSummary> ImportConversation(const std::string& store, PortableReader* reader,
                                                   const ImportTarget& target);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_PORTABLE_IMPORT_H_
