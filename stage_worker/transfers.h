// Saves and restores of one stage, behind its steps: one thread writes segments, one reads them, each with a copy stream
// of its own. What they are given stays true while they run: a save's pages do not change below its length (the
// coordinator pins them), a restore's pages belong to nobody else until its receipt.
//
// The results come back through the mailbox, in any order; exactly one receipt per transfer.
#ifndef LAYOVER_STAGE_WORKER_TRANSFERS_H_
#define LAYOVER_STAGE_WORKER_TRANSFERS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "common/mailbox.h"
#include "common/segment_link/own_store.h"
#include "common/segment_link/segment_link.h"
#include "common/storage/segment_reader.h"
#include "common/wire/messages.h"
#include "stage_worker/copy_buffers.h"
#include "stage_worker/kv_pages.h"
#include "stage_worker/park_store.h"
#include "stage_worker/segment_save.h"
#include "stage_worker/session_table.h"
#include "stage_worker/state_pieces.h"

namespace layover {

// What the worker needs to say once a restore has come in: the session itself.
struct TransferResult {
  wire::FromStage message;                 // SaveReceipt, RestoreReceipt, ParkReceipt or TransferTick
  uint64_t restored_session = 0;           // of a restore or unpark, done or failed
  StageSession session;
};

// Where a stage's segments are kept.
struct SegmentHome {
  std::string host;               // of a remote stage; empty: on the coordinator's machine, where paths are used as they come
  std::unique_ptr<OwnStore> own;  // of a remote stage; null: nothing is kept
  std::map<std::string, std::unique_ptr<SegmentLink>> elsewhere;  // by host; the restore thread's
};

class Transfers {
 public:
  // Saving takes what decoding leaves: of the processors by its priority; of the memory's bandwidth, which decoding
  // needs most, by resting this many times as long as it works while steps run.
  static constexpr int kSaveNiceness = 10;
  static constexpr int kSaveRest = 32;

  Transfers(Device& device, const KvPages& pages, const RecurrentState& states, int stage,
            Mailbox<TransferResult>* results);
  // Before anything is asked of it, on a remote stage.
  void SetHome(SegmentHome home) { home_ = std::move(home); }
  ~Transfers();  // cancels what runs and waits for it

  void Save(const wire::SaveSession& save, std::vector<BranchSource> sources);
  void Restore(const wire::RestoreSession& restore);
  void Park(const wire::ParkSession& park, StageSession session);
  void Unpark(const wire::UnparkSession& unpark);
  void DropPark(const wire::DropPark& drop);
  std::shared_ptr<const ParkImage> Parked(uint64_t park) const { return parked_.Get(park); }
  // The save's file goes; its receipt, if it is still to come, says Cancelled.
  void AbortSave(const wire::AbortSave& abort);
  // Of a remote stage's own store.
  void RemoveSegments(const wire::RemoveSegments& remove);
  void SweepSegments(const wire::SweepSegments& sweep);
  // A step runs on what saving needs too: it makes way for a while.
  void NoteStep() {
    const int64_t number = steps_;
    step_times_[static_cast<size_t>(number) % kPaceSteps] = std::chrono::steady_clock::now().time_since_epoch().count();
    steps_ = number + 1;
  }
  // Cancels everything, forgets what is parked, and returns when nothing runs any more.
  void CancelAll();

 private:
  // One thread and its queue.
  class Lane {
   public:
    explicit Lane(int niceness);  // beyond the process's own, as of nice(1)
    ~Lane();
    void Run(std::function<void()> job);
    void WaitIdle();

   private:
    void Loop();
    const int niceness_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;  // guarded by mutex_
    bool busy_ = false;                       // guarded by mutex_
    bool stop_ = false;                       // guarded by mutex_
    std::thread thread_;
  };

  // A lane's copy stream: made by the lane's thread when it is first wanted, and kept, as what it has on the device is.
  class LaneStream {
   public:
    explicit LaneStream(Device& device) : device_(device) {}
    Stream& Get();
    // At a job's end. A stream's error is for good, so the next job gets another.
    void Check();

   private:
    Device& device_;
    std::unique_ptr<Stream> stream_;
  };

  bool Cancelled(uint64_t save) const;
  void MakeWay(int64_t steps_before, std::chrono::steady_clock::time_point* since) const;
  wire::SaveReceipt DoSave(const wire::SaveSession& save, const std::vector<BranchSource>& sources);
  absl::Status WriteSegment(const wire::SaveSession& save, const std::vector<BranchSource>& sources, wire::SaveReceipt* receipt);
  absl::StatusOr<std::string> DirectoryFor(const wire::SaveSession& save);
  absl::StatusOr<std::unique_ptr<SegmentReader>> OpenSegment(const wire::SegmentRef& ref,
                                                             const SegmentExpectations& expected) const;
  TransferResult DoUnpark(const wire::UnparkSession& unpark);
  absl::Status Fill(const ParkImage& image, const wire::UnparkSession& unpark);
  BlockIoOptions IoOptions() const;
  TransferResult DoRestore(const wire::RestoreSession& restore);

  const StatePieces pieces_;
  const int stage_;
  Mailbox<TransferResult>* const results_;
  SegmentHome home_;  // constant once set
  ParkStore parked_;
  std::atomic<bool> cancel_all_{false};
  // Written by the main thread: how many steps ran, and when the last ones did.
  static constexpr int64_t kPaceSteps = 4;
  std::atomic<int64_t> steps_{0};
  std::array<std::atomic<std::chrono::steady_clock::rep>, kPaceSteps> step_times_{};
  mutable std::mutex mutex_;
  std::set<uint64_t> aborted_saves_;  // guarded by mutex_
  // Null where pages lie in host memory anyway.
  const std::unique_ptr<CopyBuffers> buffers_;
  LaneStream save_stream_;
  LaneStream restore_stream_;
  // A save waits for nobody, a restore has a client waiting.
  Lane save_lane_{kSaveNiceness};
  Lane restore_lane_{0};
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_TRANSFERS_H_
