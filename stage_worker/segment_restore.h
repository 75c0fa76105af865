// From segment files into a session's pages and slots: reads only what belongs to this stage's layers, proves it by
// digests and token ids, and writes it where the restore says.
#ifndef LAYOVER_STAGE_WORKER_SEGMENT_RESTORE_H_
#define LAYOVER_STAGE_WORKER_SEGMENT_RESTORE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/segment_reader.h"
#include "common/wire/messages.h"
#include "stage_worker/state_pieces.h"

namespace layover {

struct RestoreHooks {
  // Opens a segment, wherever it is kept.
  std::function<absl::StatusOr<std::unique_ptr<SegmentReader>>(const wire::SegmentRef&, const SegmentExpectations&)> open;
  std::function<bool()> cancelled;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> tick;
};

// Fills the pages and slots of the restore, through a copy stream, which is idle again when this returns; they are zeroed
// first. Adds the bytes read from files to *bytes_read.
// DataLoss or FailedPrecondition, with the part named, if anything is missing, damaged or of another history.
absl::Status FillFromSegments(Stream& stream, const StatePieces& pieces, const wire::RestoreSession& restore,
                              const RestoreHooks& hooks, int64_t* bytes_read);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_SEGMENT_RESTORE_H_
