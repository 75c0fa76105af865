// An end of a hop's ring, epoch by epoch, its memory pinned for the device where that helps (and unpinned before it is
// unmapped). A ring that cannot be opened is an error only when a step needs it: a Reset that was overtaken by the next
// epoch names a ring that is gone.
#ifndef LAYOVER_STAGE_WORKER_LINKS_RING_END_H_
#define LAYOVER_STAGE_WORKER_LINKS_RING_END_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/log.h"
#include "common/status.h"
#include "common/wire/hop_ring.h"
#include "common/wire/socket.h"
#include "kernels/ops.h"

namespace layover {

template <typename End>  // wire::RingWriter or wire::RingReader
class RingEnd {
 public:
  RingEnd(Device& device, uint32_t hop) : device_(device), hop_(hop) {}
  ~RingEnd() { Drop(); }
  RingEnd(const RingEnd&) = delete;
  RingEnd& operator=(const RingEnd&) = delete;

  // False if it has this epoch already.
  bool Renew(uint32_t epoch, const wire::RingAddress& ring) {
    if (epoch == epoch_) return false;
    Drop();
    epoch_ = epoch;
    auto end = End::Open(ring, hop_, epoch);
    status_ = end.status();
    if (!end.ok()) {
      LogWarning("{}", ToStd(status_.message()));
      return true;
    }
    end_ = *std::move(end);
    pinned_ = device_.PinHost(end_->memory().data(), end_->memory().size());
    return true;
  }

  // Null if it is not open; then status() says why.
  End* get() const { return end_.get(); }
  absl::Status status() const {
    if (end_ != nullptr || !status_.ok()) return status_;
    return Internal("hop {} has no ring yet", hop_);
  }

 private:
  void Drop() {
    if (end_ != nullptr && pinned_) device_.UnpinHost(end_->memory().data());
    end_.reset();
  }

  Device& device_;
  const uint32_t hop_;
  uint32_t epoch_ = 0;
  absl::Status status_;
  std::unique_ptr<End> end_;
  bool pinned_ = false;
};

// Looks for a hop for about as long as waking a sleeper costs; then, unless one has come, says in the ring that the
// reader sleeps and adds what wakes it. False: one is there.
bool BeginRingWait(wire::RingReader& reader, std::vector<wire::PollItem>* items);

// Where the next hop's payload goes; while the ring is full, waits until the next stage has taken one. Proofs add steps to
// those that the scheduler has under way, so a sender may be that far ahead. Aborted when the epoch is over.
absl::StatusOr<std::byte*> WaitForRoom(wire::RingWriter& writer);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_LINKS_RING_END_H_
