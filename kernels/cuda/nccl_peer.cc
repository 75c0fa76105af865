#include "kernels/cuda/nccl_peer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/check.h"
#include "common/status.h"

namespace layover::gpu {
namespace {

constexpr int kRanks = 2;

// NCCL may see that the other rank died before the coordinator says so; then this one is not at fault.
constexpr std::chrono::milliseconds kVerdict(limits::kPeerVerdictMs);

}  // namespace

absl::StatusOr<std::string> NewNcclId(int card) {
  ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  UseCard(card);
  NcclUniqueId id;
  if (const int result = nccl->get_unique_id(&id); result != kNcclSuccess) {
    return Unavailable("link nccl: an id cannot be made: {}", nccl->get_error_string(result));
  }
  return std::string(id.internal, sizeof(id.internal));
}

NcclPeer::NcclPeer(int card, int rank, const NcclApi& nccl)
    : card_(card), rank_(rank), nccl_(nccl), copies_(NewQueue(card)), queue_(NewQueue(card)) {}

absl::StatusOr<std::unique_ptr<NcclPeer>> NcclPeer::Join(int card, const std::string& id, int rank, size_t most_bytes) {
  LAYOVER_CHECK(rank == 0 || rank == 1);
  NcclUniqueId unique;
  if (id.size() != sizeof(unique.internal))
    return InvalidArgument("an NCCL id has {} bytes, not {}", sizeof(unique.internal), id.size());
  std::memcpy(unique.internal, id.data(), id.size());
  ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  std::unique_ptr<NcclPeer> peer(new NcclPeer(card, rank, *nccl));
  if (rank == 0) {
    for (Outgoing& outgoing : peer->outgoing_) {
      ASSIGN_OR_RETURN(outgoing.buffer, GpuBuffer::Allocate(card, most_bytes));
    }
  }
  UseCard(card);
  NcclConfig config;
  config.blocking = 0;
  const int result = nccl->comm_init_rank_config(&peer->comm_, kRanks, unique, rank, &config);
  if (result != kNcclSuccess && result != kNcclInProgress) return peer->Failure("the two cards cannot meet", result);
  return peer;
}

NcclPeer::~NcclPeer() {
  Abort();
}

void NcclPeer::Abort() {
  if (comm_ == nullptr) return;
  UseCard(card_);
  nccl_.comm_abort(comm_);
  comm_ = nullptr;
}

absl::Status NcclPeer::Failure(std::string_view what, int result) const {
  return Unavailable("link nccl: {}: {}", what, nccl_.get_error_string(result));
}

absl::StatusOr<bool> NcclPeer::Connected() {
  if (comm_ == nullptr) return Aborted("link nccl: given up");
  int state = kNcclSuccess;
  int result = nccl_.comm_get_async_error(comm_, &state);
  if (result == kNcclSuccess) result = state;
  if (result == kNcclInProgress) return false;
  if (result != kNcclSuccess) return Failure("the two cards cannot meet", result);
  return true;
}

absl::Status NcclPeer::Wait(const std::function<bool()>& done, const std::function<bool()>& given_up) {
  std::chrono::steady_clock::time_point failed_at{};
  int failure = kNcclSuccess;
  for (int look = 0;; ++look) {
    if (failure == kNcclSuccess && done()) return absl::OkStatus();
    if (given_up()) {
      Abort();
      return Aborted("link nccl: the other stage is gone");
    }
    int state = kNcclSuccess;
    if (failure == kNcclSuccess && nccl_.comm_get_async_error(comm_, &state) == kNcclSuccess && state != kNcclSuccess &&
        state != kNcclInProgress) {
      failure = state;
      failed_at = std::chrono::steady_clock::now();
    }
    if (failure != kNcclSuccess && std::chrono::steady_clock::now() - failed_at > kVerdict) {
      Abort();
      return Failure("a hop", failure);
    }
    if (look > limits::kRingSpins) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

absl::Status NcclPeer::WaitTaken(std::string_view what, int result, const std::function<bool()>& given_up) {
  if (result == kNcclSuccess) return absl::OkStatus();
  if (result != kNcclInProgress) return Failure(what, result);
  const auto taken = [this] {
    int state = kNcclInProgress;
    return nccl_.comm_get_async_error(comm_, &state) == kNcclSuccess && state == kNcclSuccess;
  };
  return Wait(taken, given_up);
}

absl::Status NcclPeer::Send(const void* data, size_t bytes, const std::function<bool()>& given_up) {
  LAYOVER_CHECK(rank_ == 0);
  if (comm_ == nullptr) return Aborted("link nccl: given up");
  UseCard(card_);
  Outgoing& outgoing = outgoing_[next_++ % outgoing_.size()];
  if (bytes > outgoing.buffer->bytes())
    return Internal("a hop of {} bytes, {} were planned for", bytes, outgoing.buffer->bytes());
  if (outgoing.sent != nullptr) RETURN_IF_ERROR(Wait([&] { return outgoing.sent->Done(); }, given_up));
  outgoing.sent.reset();
  copies_->CopyOnDevice(outgoing.buffer->data(), data, bytes);
  RETURN_IF_ERROR(copies_->Synchronize());
  const int result = nccl_.send(outgoing.buffer->data(), bytes, kNcclInt8, 1, comm_, CudaStream(queue_.get()));
  RETURN_IF_ERROR(WaitTaken("send", result, given_up));
  outgoing.sent = queue_->Record();
  return absl::OkStatus();
}

absl::Status NcclPeer::Receive(void* data, size_t bytes, const std::function<bool()>& given_up) {
  LAYOVER_CHECK(rank_ == 1);
  if (comm_ == nullptr) return Aborted("link nccl: given up");
  UseCard(card_);
  const int result = nccl_.recv(data, bytes, kNcclInt8, 0, comm_, CudaStream(queue_.get()));
  RETURN_IF_ERROR(WaitTaken("receive", result, given_up));
  const std::unique_ptr<QueueEvent> received = queue_->Record();
  RETURN_IF_ERROR(Wait([&] { return received->Done(); }, given_up));
  return queue_->Synchronize();  // its errors
}

}  // namespace layover::gpu
