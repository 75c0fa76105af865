// A hop between two cards over NCCL: a communicator of two ranks. It is non-blocking, so that a rank that dies, at any
// moment, leaves this one able to abort; nothing here waits without looking at `given_up`.
//
// A communicator for each hop, not one for all stages: within one, NCCL would put a stage's send behind the receive
// that it has issued before, which waits for a step that waits for this send.
#ifndef LAYOVER_KERNELS_CUDA_NCCL_PEER_H_
#define LAYOVER_KERNELS_CUDA_NCCL_PEER_H_

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/limits.h"
#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace layover::gpu {

absl::StatusOr<std::string> NewNcclId(int card);

class NcclPeer : public PeerLink {
 public:
  static absl::StatusOr<std::unique_ptr<NcclPeer>> Join(int card, const std::string& id, int rank, size_t most_bytes);
  ~NcclPeer() override;

  absl::StatusOr<bool> Connected() override;
  absl::Status Send(const void* data, size_t bytes, const std::function<bool()>& given_up) override;
  absl::Status Receive(void* data, size_t bytes, const std::function<bool()>& given_up) override;

 private:
  NcclPeer(int card, int rank, const NcclApi& nccl);

  absl::Status Failure(std::string_view what, int result) const;
  // Until `done` answers true: looks at the communicator's own errors and at `given_up` meanwhile.
  absl::Status Wait(const std::function<bool()>& done, const std::function<bool()>& given_up);
  // Until the communicator has put its last call on the stream.
  absl::Status WaitTaken(std::string_view what, int result, const std::function<bool()>& given_up);
  void Abort();

  const int card_;
  const int rank_;
  const NcclApi& nccl_;
  NcclComm* comm_ = nullptr;

  // What is sent is copied first, so that a sender need not wait for the receiver: one buffer is filled while the other
  // is still under way.
  struct Outgoing {
    std::unique_ptr<GpuBuffer> buffer;
    std::unique_ptr<QueueEvent> sent;
  };
  std::array<Outgoing, limits::kPeerBuffers> outgoing_;
  size_t next_ = 0;
  std::unique_ptr<Queue> copies_;
  std::unique_ptr<Queue> queue_;  // the library's
};

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_NCCL_PEER_H_
