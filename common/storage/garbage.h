// What a store holds that nothing needs: listed, and removed as a start would remove it.
#ifndef LAYOVER_COMMON_STORAGE_GARBAGE_H_
#define LAYOVER_COMMON_STORAGE_GARBAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace layover {

struct GarbageFile {
  std::string file;  // FOLDER/NAME, or a path below import.tmp/
  uint64_t bytes = 0;
  bool operator==(const GarbageFile&) const = default;
};

// The caller holds the store's lock. DataLoss naming the conversation if any manifest or journal cannot be read: it
// might name what looks like garbage, so nothing is removed then. Sorted by file.
absl::StatusOr<std::vector<GarbageFile>> FindGarbage(const std::string& store);

// Removes what FindGarbage lists, and does what else a start does (CleanStore). Returns what is gone now.
absl::StatusOr<std::vector<GarbageFile>> CollectGarbage(const std::string& store);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_GARBAGE_H_
