#include "kernels/cuda/gpu_stream.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "kernels/cuda/kernels.h"

namespace layover::gpu {
namespace {

constexpr size_t kAttentionScratchBytes = 32 * limits::kMiB;  // 256 blocks of 64 keys of a token of 32 heads of 128

class GpuEvent : public Event {
 public:
  explicit GpuEvent(std::unique_ptr<QueueEvent> event) : event_(std::move(event)) {}
  bool Done() const override { return event_->Done(); }

 private:
  const std::unique_ptr<QueueEvent> event_;
};

void CheckKvLayer(const KvLayer& cache) {
  LAYOVER_CHECK(cache.k_pool != nullptr && cache.v_pool != nullptr && cache.kv_heads > 0 && cache.head_dim > 0);
  const bool blocked = cache.type == KvType::kQ8_0 || cache.type == KvType::kQ4_0;
  LAYOVER_CHECK(cache.head_dim % (blocked ? 32 : 8) == 0 && cache.head_dim <= limits::kMaxHeadDim);
}

void CheckRows(const KvLayer& cache, int page, int row_begin, int row_end) {
  CheckKvLayer(cache);
  LAYOVER_CHECK(page >= 0 && page < cache.n_pages);
  LAYOVER_CHECK(row_begin >= 0 && row_begin < row_end && row_end <= kPageTokens);
}

CardWeight OnCard(const PackedWeight& weight) {
  const auto& packed = static_cast<const GpuPackedWeight&>(weight);
  return {packed.data->data(), packed.table};
}

}  // namespace

GpuStream::GpuStream(int card, int multiprocessors, QueueRank rank)
    : card_(card), multiprocessors_(multiprocessors), queue_(card, rank, limits::kKvLotBytes), graphs_(*queue_.get()) {}

void GpuStream::EmbedRows(const EmbedRowsArgs& args) {
  LAYOVER_CHECK(args.table != nullptr && args.table->experts == 1);
  if (args.n_rows > 0) LaunchEmbedRows(args, OnCard(*args.table), queue_.get());
}

void GpuStream::RmsNorm(const RmsNormArgs& args) {
  LAYOVER_CHECK(args.dim > 0 && args.x_stride >= args.dim && args.y_stride >= args.dim);
  if (args.n_rows > 0) LaunchRmsNorm(args, queue_.get());
}

void GpuStream::PrepareActivation(const PrepareActivationArgs& args) {
  LAYOVER_CHECK(args.dim > 0 && args.x_stride >= args.dim);
  if (args.n_rows <= 0) return;
  if (args.format == ActivationFormat::kF32) return LaunchPrepareF32(args, queue_.get());
  LAYOVER_CHECK(args.dim % 32 == 0);
  LaunchPrepareA16(args, queue_.get());
}

void GpuStream::MatMul(const MatMulArgs& args) {
  if (args.n_rows <= 0) return;
  LAYOVER_CHECK(args.weight != nullptr && args.weight->experts == 1 && args.out_stride >= args.weight->rows);
  if (args.weight->activation == ActivationFormat::kA16) {
    LaunchMatMulInteger(args, OnCard(*args.weight), queue_.get());
  } else {
    LaunchMatMulFloat(args, OnCard(*args.weight), queue_.get());
  }
}

void GpuStream::RopeAngles(const RopeAnglesArgs& args) {
  if (args.n_rows > 0 && args.n_pairs > 0) LaunchRopeAngles(args, queue_.get());
}

void GpuStream::Rope(const RopeArgs& args) {
  LAYOVER_CHECK(2 * args.n_pairs <= args.head_dim && args.x_stride >= args.heads * args.head_dim);
  if (args.n_rows > 0 && args.n_pairs > 0) LaunchRope(args, queue_.get());
}

void GpuStream::StoreKv(const StoreKvArgs& args) {
  CheckKvLayer(args.cache);
  LAYOVER_CHECK(args.stride >= args.cache.kv_heads * args.cache.head_dim);
  if (args.slices.n_rows > 0) LaunchStoreKv(args, queue_.get());
}

void GpuStream::Attention(const AttentionArgs& args) {
  CheckKvLayer(args.cache);
  LAYOVER_CHECK(args.heads > 0 && args.heads % args.cache.kv_heads == 0 && args.window >= 0);
  LAYOVER_CHECK(args.q_stride >= args.heads * args.cache.head_dim);
  LAYOVER_CHECK(args.out_stride >= args.heads * args.cache.head_dim);
  if (args.slices.n_rows <= 0) return;
  AttentionScratch scratch;
  scratch.multiprocessors = multiprocessors_;
  const size_t wanted = AttentionScratchFloats(args, multiprocessors_) * sizeof(float);
  if (wanted > 0) {
    scratch.memory = static_cast<float*>(Scratch(std::min(wanted, kAttentionScratchBytes), &attention_scratch_));
    if (scratch.memory != nullptr) scratch.floats = attention_scratch_->bytes() / sizeof(float);
  }
  LaunchAttention(args, scratch, queue_.get());
}

void GpuStream::Gated(const GatedArgs& args) {
  LAYOVER_CHECK(args.gate_stride >= args.dim && args.out_stride >= args.dim);
  if (args.up != nullptr) {
    LAYOVER_CHECK(args.up_stride >= args.dim);
  } else {
    LAYOVER_CHECK(args.kind != GateKind::kClampedSwiglu);
  }
  if (args.n_rows > 0 && args.dim > 0) LaunchGated(args, queue_.get());
}

void GpuStream::GatherRows(const GatherRowsArgs& args) {
  if (args.n_rows > 0 && args.dim > 0) LaunchGatherRows(args, queue_.get());
}

void GpuStream::TopK(const TopKArgs& args) {
  LAYOVER_CHECK(args.k > 0 && args.k <= limits::kMaxTopK && args.dim > 0 && args.x_stride >= args.dim);
  if (args.n_rows <= 0) return;
  const size_t bytes = TopKScratchBytes(args);
  void* const scratch = bytes > 0 ? Scratch(bytes, &top_k_scratch_) : nullptr;
  if (bytes == 0 || scratch != nullptr) LaunchTopK(args, scratch, queue_.get());
}

void GpuStream::CausalConv(const CausalConvArgs& args) {
  LAYOVER_CHECK(args.channels > 0 && args.taps >= 1 && args.taps <= limits::kMaxConvTaps && args.out != args.u);
  if (args.slices.n_rows > 0) LaunchCausalConv(args, queue_.get());
}

void GpuStream::GatedDeltaNet(const GatedDeltaNetArgs& args) {
  LAYOVER_CHECK(args.dim > 0 && args.dim <= limits::kMaxHeadDim && args.key_heads > 0 && args.value_heads > 0);
  LAYOVER_CHECK(args.value_heads % args.key_heads == 0);
  if (args.slices.n_rows > 0) LaunchGatedDeltaNet(args, queue_.get());
}

void GpuStream::MoeRoute(const MoeRouteArgs& args) {
  LAYOVER_CHECK(args.k > 0 && args.k <= args.experts && args.experts <= limits::kMaxExperts);
  if (args.n_rows > 0) LaunchMoeRoute(args, queue_.get());
}

void GpuStream::MoeMatMul(const MoeMatMulArgs& args) {
  LAYOVER_CHECK(args.weight != nullptr && args.k > 0);
  if (args.n_rows <= 0) return;
  const size_t bytes = ExpertGroupsBytes(args);
  void* const groups = bytes > 0 ? Scratch(bytes, &expert_groups_) : nullptr;
  if (bytes > 0 && groups == nullptr) return;
  if (args.weight->activation == ActivationFormat::kA16) {
    LaunchMoeMatMulInteger(args, OnCard(*args.weight), groups, queue_.get());
  } else {
    LaunchMoeMatMulFloat(args, OnCard(*args.weight), groups, queue_.get());
  }
}

void GpuStream::MoeCombine(const MoeCombineArgs& args) {
  LAYOVER_CHECK(args.k > 0 && args.dim > 0);
  if (args.n_rows > 0) LaunchMoeCombine(args, queue_.get());
}

void* GpuStream::Scratch(size_t bytes, std::unique_ptr<GpuBuffer>* buffer) {
  if (*buffer != nullptr && (*buffer)->bytes() >= bytes) return (*buffer)->data();
  LAYOVER_CHECK(!graphs_.capturing());  // what is captured has run before, and found its memory
  graphs_.DropGraphs();
  const absl::Status before = queue_->Synchronize();  // what still uses the old one
  if (error_.ok()) error_ = before;
  buffer->reset();
  auto larger = GpuBuffer::Allocate(card_, bytes);
  if (!larger.ok()) {
    if (error_.ok()) error_ = larger.status();
    return nullptr;
  }
  *buffer = std::move(larger).value();
  return (*buffer)->data();
}

void GpuStream::ReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows) {
  CheckRows(cache, page, row_begin, row_end);
  if (k_rows != nullptr) queue_.Read({cache, true, page, row_begin, row_end}, static_cast<uint8_t*>(k_rows));
  if (v_rows != nullptr) queue_.Read({cache, false, page, row_begin, row_end}, static_cast<uint8_t*>(v_rows));
}

void GpuStream::WriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows,
                            const void* v_rows) {
  CheckRows(cache, page, row_begin, row_end);
  if (k_rows != nullptr) queue_.Write({cache, true, page, row_begin, row_end}, static_cast<const uint8_t*>(k_rows));
  if (v_rows != nullptr) queue_.Write({cache, false, page, row_begin, row_end}, static_cast<const uint8_t*>(v_rows));
}

void GpuStream::CopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows) {
  CheckKvLayer(cache);
  LAYOVER_CHECK(src_page >= 0 && src_page < cache.n_pages && dst_page >= 0 && dst_page < cache.n_pages);
  LAYOVER_CHECK(src_page != dst_page && rows >= 0 && rows <= kPageTokens);
  LaunchCopyKvPage(cache, src_page, dst_page, rows, queue_.get());
}

void GpuStream::ZeroKvPage(const KvLayer& cache, int page) {
  CheckRows(cache, page, 0, kPageTokens);
  const size_t bytes = KvRowBytes(cache.type, cache.kv_heads, cache.head_dim) * kPageTokens;
  queue_->Fill(static_cast<uint8_t*>(cache.k_pool) + static_cast<size_t>(page) * bytes, 0, bytes);
  queue_->Fill(static_cast<uint8_t*>(cache.v_pool) + static_cast<size_t>(page) * bytes, 0, bytes);
}

void GpuStream::CopyToDevice(void* dst, const void* host, size_t bytes) {
  queue_->CopyToDevice(dst, host, bytes);
}
void GpuStream::CopyToHost(void* host, const void* src, size_t bytes) {
  queue_->CopyToHost(host, src, bytes);
}
void GpuStream::Zero(void* dst, size_t bytes) {
  queue_->Fill(dst, 0, bytes);
}

std::unique_ptr<Event> GpuStream::Record() {
  return std::make_unique<GpuEvent>(queue_->Record());
}

absl::Status GpuStream::Synchronize() {
  const absl::Status status = queue_.Synchronize();
  return error_.ok() ? status : error_;
}

void GpuStream::Replay(const GraphKey& key, const std::function<void()>& enqueue) {
  (void)queue_.get();  // what is gathered goes first
  const absl::Status replayed = graphs_.Replay(key, enqueue);
  if (error_.ok()) error_ = replayed;
}

}  // namespace layover::gpu
