#include "kernels/cuda/gpu_device.h"

#include <utility>
#include <vector>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "kernels/cuda/activation_layout.h"
#include "kernels/cuda/gpu_stream.h"
#include "kernels/cuda/nccl_peer.h"
#include "kernels/cuda/pack_weight.h"

namespace layover::gpu {
namespace {

// Goes up when any float of the back end may come out otherwise than before.
constexpr int kArithmeticVersion = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<GpuBuffer>> GpuBuffer::Allocate(int card, size_t bytes) {
  ASSIGN_OR_RETURN(void* const data, AllocateOnDevice(card, bytes));
  return std::unique_ptr<GpuBuffer>(new GpuBuffer(card, data, bytes));
}

GpuBuffer::~GpuBuffer() {
  FreeOnDevice(card_, data_);
}

absl::StatusOr<std::unique_ptr<GpuDevice>> GpuDevice::Open(int card) {
  ASSIGN_OR_RETURN(CardInfo info, OpenCard(card));
  return std::unique_ptr<GpuDevice>(new GpuDevice(card, std::move(info)));
}

std::string GpuDevice::Name() const {
  return fmt::format("{}:{}", BackEndKind(), card_);
}

// The contract leaves no float to the machine, so neither the card nor the emulation is part of it.
std::string GpuDevice::NumericsFingerprint() const {
  return fmt::format("gpu-{}", kArithmeticVersion);
}

bool GpuDevice::Supports(OpFamily) const {
  return true;
}
bool GpuDevice::SupportsWeight(WeightType type) const {
  return gpu::SupportsWeight(type);
}
bool GpuDevice::SupportsKv(KvType type, int head_dim) const {
  const int multiple = type == KvType::kQ8_0 || type == KvType::kQ4_0 ? 32 : 8;
  return head_dim > 0 && head_dim <= limits::kMaxHeadDim && head_dim % multiple == 0;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> GpuDevice::Allocate(size_t bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<GpuBuffer> buffer, GpuBuffer::Allocate(card_, bytes));
  const std::unique_ptr<Queue> queue = NewQueue(card_);
  queue->Fill(buffer->data(), 0, bytes);
  RETURN_IF_ERROR(queue->Synchronize());
  return buffer;
}

absl::StatusOr<std::unique_ptr<PackedWeight>> GpuDevice::PackWeight(const WeightSource& source) {
  RETURN_IF_ERROR(CheckWeightSource(source));
  auto weight = std::make_unique<GpuPackedWeight>();
  weight->type = source.type;
  weight->experts = source.experts;
  weight->rows = source.rows;
  weight->cols = source.cols;
  weight->activation = ActivationOf(source.type);
  weight->table = TableOf(source.type);
  weight->device_bytes = PackedBytes(source.type, source.experts, source.rows, source.cols);
  ASSIGN_OR_RETURN(weight->data, GpuBuffer::Allocate(card_, weight->device_bytes));
  std::vector<uint8_t> packed(weight->device_bytes);
  gpu::PackWeight(source, packed.data());
  const std::unique_ptr<Queue> queue = NewQueue(card_);
  queue->CopyToDevice(weight->data->data(), packed.data(), packed.size());
  RETURN_IF_ERROR(queue->Synchronize());
  return weight;
}

size_t GpuDevice::PackedWeightBytes(WeightType type, int experts, int rows, int cols) const {
  return PackedBytes(type, experts, rows, cols);
}

size_t GpuDevice::ActivationBytes(ActivationFormat format, int n_rows, int dim) const {
  LAYOVER_CHECK(n_rows >= 0 && dim > 0);
  const size_t rows = static_cast<size_t>(n_rows);
  if (format == ActivationFormat::kF32) return rows * static_cast<size_t>(dim) * sizeof(float);
  LAYOVER_CHECK(dim % 32 == 0);
  return rows * static_cast<size_t>(dim / 32) * kA16BlockBytes;
}

size_t GpuDevice::KvPoolBytes(KvType type, int n_pages, int kv_heads, int head_dim) const {
  return KvRowBytes(type, kv_heads, head_dim) * kPageTokens * static_cast<size_t>(n_pages);
}

std::unique_ptr<Stream> GpuDevice::NewComputeStream() {
  return std::make_unique<GpuStream>(card_, info_.multiprocessors);
}
std::unique_ptr<Stream> GpuDevice::NewCopyStream() {
  return std::make_unique<GpuStream>(card_, info_.multiprocessors, QueueRank::kBehind);
}

absl::StatusOr<std::string> GpuDevice::NewPeerId() {
  return NewNcclId(card_);
}
absl::StatusOr<std::unique_ptr<PeerLink>> GpuDevice::JoinPeer(const std::string& id, int rank, size_t most_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<PeerLink> peer, NcclPeer::Join(card_, id, rank, most_bytes));
  return peer;
}

}  // namespace layover::gpu
