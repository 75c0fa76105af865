// The CPU back end: memory of this machine, weights packed for its vector instructions, streams that run operations at
// once on the caller's thread and the pool's. The instruction set is chosen when the device is opened and never changes
// a bit of a result (kernels/README.md says how).
#ifndef LAYOVER_KERNELS_CPU_CPU_DEVICE_H_
#define LAYOVER_KERNELS_CPU_CPU_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/prefault.h"
#include "kernels/ops.h"

namespace layover {

class CpuDevice : public Device {
 public:
  // The instruction set is options.isa, else the environment's LAYOVER_CPU_ISA, else the best there is.
  // InvalidArgument for an unknown name or a thread count outside [1, kMaxThreadsPerStage]; Unavailable for an
  // instruction set that this machine does not have.
  static absl::StatusOr<std::unique_ptr<CpuDevice>> Open(const DeviceOptions& options);

  CpuIsa isa() const { return isa_; }
  int threads() const { return threads_; }

  std::string Name() const override { return "cpu"; }
  std::string NumericsFingerprint() const override;
  bool Supports(OpFamily family) const override;
  bool SupportsWeight(WeightType type) const override;
  bool SupportsKv(KvType type, int head_dim) const override;
  int64_t MemoryBytes() const override;

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(const WeightSource& source) override;

  size_t PackedWeightBytes(WeightType type, int experts, int rows, int cols) const override;
  size_t ActivationBytes(ActivationFormat format, int n_rows, int dim) const override;
  size_t KvPoolBytes(KvType type, int n_pages, int kv_heads, int head_dim) const override;

  // Each compute stream has its own pool of options.threads threads; a copy stream works on its caller's thread alone.
  std::unique_ptr<Stream> NewComputeStream() override;
  std::unique_ptr<Stream> NewCopyStream() override;

 private:
  CpuDevice(CpuIsa isa, int threads) : isa_(isa), threads_(threads) {}

  const CpuIsa isa_;
  const int threads_;
  CpuWeightArena arena_;                                              // own lock
  const std::shared_ptr<Prefault> prefault_ = std::make_shared<Prefault>();  // own lock; shared with the streams
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_CPU_DEVICE_H_
