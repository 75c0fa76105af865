// Activations from GPU to GPU over NCCL. The hop's ring carries no payload here, but the header of each hop: it wakes
// the receiver, says what it is to receive (so that no receiving kernel spins on a GPU before there is something to
// receive), and tells both ends when the epoch is over, which ends every wait.
//
// In each epoch the two ends meet anew: the sender makes an id (Offer), the coordinator hands it to the receiver
// (Join), both become connected in their own time (Poll).
#ifndef LAYOVER_STAGE_WORKER_LINKS_NCCL_LINK_H_
#define LAYOVER_STAGE_WORKER_LINKS_NCCL_LINK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/hop_ring.h"
#include "kernels/ops.h"
#include "stage_worker/links/data_link.h"
#include "stage_worker/links/ring_end.h"

namespace layover {

// How one end of a hop meets the other.
class NcclMeeting {
 public:
  NcclMeeting(Device& device, int rank, size_t most_bytes) : device_(device), rank_(rank), most_bytes_(most_bytes) {}

  void Leave();
  absl::Status Begin(const std::string& id);
  // It has begun and is not connected yet: Poll is to be called again and again.
  bool under_way() const { return peer_ != nullptr && !connected_; }
  // True when it has become connected. DeadlineExceeded after limits::kPeerConnectMs.
  absl::StatusOr<bool> Poll();
  PeerLink* peer() const { return connected_ ? peer_.get() : nullptr; }

 private:
  Device& device_;
  const int rank_;
  const size_t most_bytes_;
  std::unique_ptr<PeerLink> peer_;
  bool connected_ = false;
  absl::Status failure_;
  std::chrono::steady_clock::time_point deadline_;
};

class NcclSender : public DataSender {
 public:
  // `hop`: the stage it leads to; no hop has more than `most_bytes`.
  NcclSender(Device& device, uint32_t hop, size_t most_bytes)
      : device_(device), ring_(device, hop), meeting_(device, 0, most_bytes) {}

  void Renew(uint32_t epoch, const wire::RingAddress& ring) override;
  absl::Status Send(const wire::FrameHeader& header, const float* rows, Stream& stream) override;

  // Once in an epoch, after Renew: the id for the other end; empty if it has been given. The meeting begins.
  absl::StatusOr<std::string> Offer();
  NcclMeeting& meeting() { return meeting_; }

 private:
  Device& device_;
  RingEnd<wire::RingWriter> ring_;
  NcclMeeting meeting_;
  bool offer_due_ = false;
};

class NcclReceiver : public DataReceiver {
 public:
  NcclReceiver(Device& device, uint32_t hop, size_t most_bytes) : ring_(device, hop), meeting_(device, 1, most_bytes) {}

  void Renew(uint32_t epoch, const wire::RingAddress& ring) override;
  bool BeginWait(std::vector<wire::PollItem>* items) override;
  absl::Status Drain() override;
  bool Has(uint64_t seq) const override;
  absl::Status Take(const Wanted& wanted, float* rows, Stream& stream) override;

  absl::Status Join(const std::string& id) { return meeting_.Begin(id); }
  NcclMeeting& meeting() { return meeting_; }

 private:
  RingEnd<wire::RingReader> ring_;
  NcclMeeting meeting_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_LINKS_NCCL_LINK_H_
