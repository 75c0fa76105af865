// The CUDA back end as a Device, the same for a card and for the emulation (runtime.h says which). Its results are the
// CPU back end's to the bit: same contract, same order of every sum.
#ifndef LAYOVER_KERNELS_CUDA_GPU_DEVICE_H_
#define LAYOVER_KERNELS_CUDA_GPU_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/ops.h"

namespace layover::gpu {

// Memory of the card.
class GpuBuffer : public DeviceBuffer {
 public:
  static absl::StatusOr<std::unique_ptr<GpuBuffer>> Allocate(int card, size_t bytes);
  ~GpuBuffer() override;

 private:
  GpuBuffer(int card, void* data, size_t bytes) : card_(card) {
    data_ = data;
    bytes_ = bytes;
  }
  const int card_;
};

class GpuPackedWeight : public PackedWeight {
 public:
  std::unique_ptr<GpuBuffer> data;
  CodeTable table;
};

class GpuDevice : public Device {
 public:
  // Unavailable, saying what is missing.
  static absl::StatusOr<std::unique_ptr<GpuDevice>> Open(int card);

  std::string Name() const override;
  std::string NumericsFingerprint() const override;
  bool Supports(OpFamily family) const override;
  bool SupportsWeight(WeightType type) const override;
  bool SupportsKv(KvType type, int head_dim) const override;
  int64_t MemoryBytes() const override { return info_.memory_bytes; }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(const WeightSource& source) override;

  size_t PackedWeightBytes(WeightType type, int experts, int rows, int cols) const override;
  size_t ActivationBytes(ActivationFormat format, int n_rows, int dim) const override;
  size_t KvPoolBytes(KvType type, int n_pages, int kv_heads, int head_dim) const override;

  std::unique_ptr<Stream> NewComputeStream() override;
  std::unique_ptr<Stream> NewCopyStream() override;

  bool PinHost(void* memory, size_t bytes) override { return PinHostMemory(card_, memory, bytes); }
  void UnpinHost(void* memory) override { UnpinHostMemory(card_, memory); }
  absl::StatusOr<std::string> NewPeerId() override;
  absl::StatusOr<std::unique_ptr<PeerLink>> JoinPeer(const std::string& id, int rank, size_t most_bytes) override;

 private:
  GpuDevice(int card, CardInfo info) : card_(card), info_(std::move(info)) {}

  const int card_;
  const CardInfo info_;
};

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_GPU_DEVICE_H_
