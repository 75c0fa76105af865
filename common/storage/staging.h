// Where a conversation is put together before it appears in a store: STORE/import.tmp, laid out like a store itself, so
// that whatever reads, writes or verifies a conversation works there too. It appears by one rename.
#ifndef LAYOVER_COMMON_STORAGE_STAGING_H_
#define LAYOVER_COMMON_STORAGE_STAGING_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layover {

inline constexpr std::string_view kStagingName = "import.tmp";

// STORE/import.tmp: a store by itself.
std::string StagingPath(const std::string& store);

// Its files, relative to STORE, whatever a crash left of it.
absl::StatusOr<std::vector<std::string>> ListStaging(const std::string& store);
// Removes it with all that is in it. Success if there is none.
absl::Status RemoveStaging(const std::string& store);
// STORE/import.tmp/c/FOLDER, new and empty; what was left of an older one is removed.
absl::Status PrepareStaging(const std::string& store, const std::string& folder);

// Makes STORE/import.tmp/c/FOLDER, complete and synced, the store's folder, in one step and durably. `kept`: files that
// STORE/c/FOLDER holds for others (none: there is no such folder); they stay. An error leaves the store as it was.
absl::Status PublishStaged(const std::string& store, const std::string& folder, std::span<const std::string> kept);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_STAGING_H_
