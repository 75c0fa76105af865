// The part of the store that lies with stages on other machines: which host keeps what a stage wrote, who can read it,
// and what those stages are told to remove. The engine's thread uses it.
//
// What must stay true: a stage is told to remove a segment only when no manifest of the store names it any more, and
// nothing at all while some manifest is unreadable.
#ifndef LAYOVER_COORDINATOR_REMOTE_SEGMENTS_H_
#define LAYOVER_COORDINATOR_REMOTE_SEGMENTS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/manifest.h"
#include "common/storage/remote_segment.h"
#include "common/storage/store_layout.h"
#include "common/topology.h"
#include "coordinator/stage_group.h"
#include "coordinator/store_thread.h"

namespace layover {

// The store's number, which names its folder on other machines: made once, kept in STORE/store_id. The caller holds the
// store's lock.
absl::StatusOr<std::string> EnsureStoreId(const std::string& store);

bool HasRemoteStages(const Topology& topology);

class RemoteSegments {
 public:
  // All outlive it; `names` belongs to the store thread.
  RemoteSegments(const Topology& topology, StageGroup* stages, StoreThread* store_thread, SegmentNames* names);

  // Empty: the coordinator's own store.
  const std::string& HostOf(int stage) const { return topology_.stages[static_cast<size_t>(stage)].host; }
  // Ok if some stage runs where the segment is kept, from which the others can read it; else FailedPrecondition with
  // the file and the host named.
  absl::Status CheckReach(const ManifestSegment& segment) const;
  // The folder has this manifest now, or none: on the store thread, or before it does anything.
  void SetNames(const std::string& folder, const Manifest* manifest) { remote_names_.Set(folder, manifest); }
  // For VerifyConversation, on one thread.
  RemoteOpener Opener() const;
  // A segment of a save that came to nothing, written by `stage`; `path` is STORE/c/FOLDER/FILE.
  void Remove(int stage, const std::string& path);
  // Every stage is up: what crashes and removals without a server have left on other machines goes.
  void Sweep();
  // What lost its last name since the last call.
  void RemoveDropped();

 private:
  class Reader;

  void Tell(const std::string& host, const wire::ToStage& message);

  const Topology& topology_;
  StageGroup* const stages_;
  StoreThread* const store_thread_;
  SegmentNames* const names_;
  RemoteNames remote_names_;  // the store thread's, as names_
  const bool any_;            // remote stages
  const std::shared_ptr<Reader> reader_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_REMOTE_SEGMENTS_H_
