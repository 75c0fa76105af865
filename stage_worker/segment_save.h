// From a session's pages and slots, or from a parked image, into a segment file: what segment_restore.h reads.
#ifndef LAYOVER_STAGE_WORKER_SEGMENT_SAVE_H_
#define LAYOVER_STAGE_WORKER_SEGMENT_SAVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/segment_writer.h"
#include "common/wire/messages.h"
#include "stage_worker/park_store.h"
#include "stage_worker/session_table.h"
#include "stage_worker/state_pieces.h"

namespace layover {

// What a save's branch is written from: a session cut at its length, or a parked image.
struct BranchSource {
  StageSession session;
  std::shared_ptr<const ParkImage> image;
  const std::vector<int32_t>& tokens() const { return image != nullptr ? image->tokens() : session.tokens; }
};

struct SaveSettings {
  int stage = 0;
  std::string directory;  // where the file goes
  BlockIoOptions io;
  // A device copies as many pieces as share a buffer together; pages in host memory are best digested one by one, as
  // they come.
  bool pieces_together = false;
  std::function<bool()> cancelled;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;
};

// Reads through a copy stream, which is idle again when this returns. An error, or Cancelled: the file is gone.
absl::StatusOr<SegmentSummary> SaveToSegment(Stream& stream, const StatePieces& pieces, const wire::SaveSession& save,
                                             const std::vector<BranchSource>& sources, const SaveSettings& settings);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_SEGMENT_SAVE_H_
