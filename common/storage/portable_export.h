// Writes a conversation of a store into one portable file. Takes no lock and changes nothing in the store, so it may
// run beside a server: what a manifest names never changes.
#ifndef LAYOVER_COMMON_STORAGE_PORTABLE_EXPORT_H_
#define LAYOVER_COMMON_STORAGE_PORTABLE_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/portable_stream.h"

namespace layover {

struct PortableSummary {
  std::string owner;
  std::string id;
  int64_t generation = 0;  // 0: the conversation was never saved
  int32_t n_tokens = 0;    // whose state is held
  int32_t n_segments = 0;
  uint64_t bytes = 0;  // of the portable file
};

// `file` must not exist (AlreadyExists); it appears complete or not at all. Every byte of the store's files is verified
// on the way: DataLoss names the damaged one. Unavailable: a segment is kept by another machine.
absl::StatusOr<PortableSummary> ExportConversation(const std::string& store, const std::string& folder,
                                                   const std::string& file, const PortableSecret& secret,
                                                   const PortableWriteOptions& options = {});

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_PORTABLE_EXPORT_H_
