// Takes the conversation of a portable file into a store: everything or nothing, at any crash.
#ifndef LAYOVER_COMMON_STORAGE_PORTABLE_IMPORT_H_
#define LAYOVER_COMMON_STORAGE_PORTABLE_IMPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/storage/portable_export.h"

namespace layover {

// The caller holds the store's lock. `as_id` empty: under its own id. AlreadyExists if the store has the conversation;
// DataLoss and FailedPrecondition as PortableReader; InvalidArgument if as_id is no id. The summary is of what is in
// the store now.
absl::StatusOr<PortableSummary> ImportConversation(const std::string& store, PortableReader* reader,
                                                   const std::string& as_id);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_PORTABLE_IMPORT_H_
