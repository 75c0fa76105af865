// Binds the files of a conversation to another folder: what an import does where they cannot stay as they are
// (docs/storage_format.md section 7.5). Records and token ids do not change, what names and guards them does.
#ifndef LAYOVER_COMMON_STORAGE_REBIND_H_
#define LAYOVER_COMMON_STORAGE_REBIND_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/storage/file_names.h"
#include "common/storage/segment_format.h"

namespace layover {

// The file is a segment with `was` for its header and `index_digest` for its index (DataLoss if it is not); afterwards
// it is one of `conversation` and `generation`, synced. Returns the new index digest. `path` already has the new name.
absl::StatusOr<Digest> RebindSegment(const std::string& path, const SegmentHeader& was, const Digest& index_digest,
                                     const FolderDigest& conversation, int64_t generation);

// Writes `from`/journal, which must be whole, as `to`/journal with another owner and id in its open frame. `to` is the
// folder of these and exists. The new file is synced, its folder is not.
absl::Status RebindJournal(const std::string& from, const std::string& to, const std::string& owner,
                           const std::string& id);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_REBIND_H_
