#include "stage_worker/links/nccl_link.h"

#include <algorithm>

#include "common/limits.h"
#include "common/status.h"

namespace layover {

void NcclMeeting::Leave() {
  connected_ = false;
  failure_ = absl::OkStatus();
  peer_.reset();
}

absl::Status NcclMeeting::Begin(const std::string& id) {
  Leave();
  ASSIGN_OR_RETURN(peer_, device_.JoinPeer(id, rank_, most_bytes_));
  deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(limits::kPeerConnectMs);
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclMeeting::Poll() {
  if (!under_way()) return false;
  const auto now = std::chrono::steady_clock::now();
  if (failure_.ok()) {
    const absl::StatusOr<bool> connected = peer_->Connected();
    if (connected.ok() && *connected) return connected_ = true;
    if (!connected.ok()) {
      // The other end may have died, which is not this one's fault: then a Reset comes.
      failure_ = connected.status();
      deadline_ = std::min(deadline_, now + std::chrono::milliseconds(limits::kPeerVerdictMs));
    }
  }
  if (now < deadline_) return false;
  if (!failure_.ok()) return failure_;
  return DeadlineExceeded("link nccl: the other card has not been met within {} s", limits::kPeerConnectMs / 1000);
}

void NcclSender::Renew(uint32_t epoch, const wire::RingAddress& ring) {
  if (!ring_.Renew(epoch, ring)) return;
  meeting_.Leave();
  offer_due_ = true;
}

absl::StatusOr<std::string> NcclSender::Offer() {
  if (!offer_due_) return std::string();
  offer_due_ = false;
  ASSIGN_OR_RETURN(std::string id, device_.NewPeerId());
  RETURN_IF_ERROR(meeting_.Begin(id));
  return id;
}

absl::Status NcclSender::Send(const wire::FrameHeader& header, const float* rows, Stream& stream) {
  wire::RingWriter* const writer = ring_.get();
  if (writer == nullptr) return ring_.status();
  if (meeting_.peer() == nullptr) return Internal("step {}: the hop's ends have not met", header.seq);
  RETURN_IF_ERROR(stream.Synchronize());
  RETURN_IF_ERROR(WaitForRoom(*writer).status());
  const size_t bytes = sizeof(float) * size_t{header.n_rows} * size_t{header.dim};
  RETURN_IF_ERROR(meeting_.peer()->Send(rows, bytes, [writer] { return writer->closed(); }));
  writer->Publish(header);
  return absl::OkStatus();
}

void NcclReceiver::Renew(uint32_t epoch, const wire::RingAddress& ring) {
  if (ring_.Renew(epoch, ring)) meeting_.Leave();
}

bool NcclReceiver::BeginWait(std::vector<wire::PollItem>* items) {
  return ring_.get() == nullptr || BeginRingWait(*ring_.get(), items);
}

absl::Status NcclReceiver::Drain() {
  if (ring_.get() != nullptr) ring_.get()->EndWait();
  return absl::OkStatus();
}

bool NcclReceiver::Has(uint64_t) const {
  return ring_.get() == nullptr || ring_.get()->HasFront();
}

absl::Status NcclReceiver::Take(const Wanted& wanted, float* rows, Stream&) {
  wire::RingReader* const reader = ring_.get();
  if (reader == nullptr) return ring_.status();
  if (meeting_.peer() == nullptr) return Internal("step {}: the hop's ends have not met", wanted.seq);
  if (!reader->HasFront()) return Internal("the hop of step {} has not come", wanted.seq);
  ASSIGN_OR_RETURN(const wire::FrameHeader header, reader->Front());
  RETURN_IF_ERROR(CheckFrame(header, wanted));
  const size_t bytes = sizeof(float) * size_t{header.n_rows} * size_t{header.dim};
  // Complete on the device when it returns, so that what follows on any stream finds the rows.
  RETURN_IF_ERROR(meeting_.peer()->Receive(rows, bytes, [reader] { return reader->closed(); }));
  reader->Pass();
  reader->FreePassed();
  return absl::OkStatus();
}

}  // namespace layover
