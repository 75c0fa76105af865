// A stream of the CUDA back end: arguments are checked as far as the host can see them, then kernels are put in a
// queue. What lies on the card (ids, slices, page tables) is not looked at.
#ifndef LAYOVER_KERNELS_CUDA_GPU_STREAM_H_
#define LAYOVER_KERNELS_CUDA_GPU_STREAM_H_

#include <memory>

#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/lot_queue.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace layover::gpu {

class GpuStream : public Stream {
 public:
  GpuStream(int card, int multiprocessors, QueueRank rank = QueueRank::kAhead);

  void EmbedRows(const EmbedRowsArgs& args) override;
  void RmsNorm(const RmsNormArgs& args) override;
  void PrepareActivation(const PrepareActivationArgs& args) override;
  void MatMul(const MatMulArgs& args) override;
  void RopeAngles(const RopeAnglesArgs& args) override;
  void Rope(const RopeArgs& args) override;
  void StoreKv(const StoreKvArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void Gated(const GatedArgs& args) override;
  void GatherRows(const GatherRowsArgs& args) override;
  void TopK(const TopKArgs& args) override;

  void CausalConv(const CausalConvArgs& args) override;
  void GatedDeltaNet(const GatedDeltaNetArgs& args) override;
  void MoeRoute(const MoeRouteArgs& args) override;
  void MoeMatMul(const MoeMatMulArgs& args) override;
  void MoeCombine(const MoeCombineArgs& args) override;

  void ReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows) override;
  void WriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows,
                   const void* v_rows) override;
  void CopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows) override;
  void ZeroKvPage(const KvLayer& cache, int page) override;

  void CopyToDevice(void* dst, const void* host, size_t bytes) override;
  void CopyToHost(void* host, const void* src, size_t bytes) override;
  void Zero(void* dst, size_t bytes) override;

  std::unique_ptr<Event> Record() override;
  absl::Status Synchronize() override;

  void Replay(const GraphKey& key, const std::function<void()>& enqueue) override;
  ReplayCounts Replays() const override { return graphs_.counts(); }

 private:
  // Memory of the card for the stream's own use, at least so large; null, and the stream's error set, if there is none.
  // The contents are those of the last user, which ran before.
  void* Scratch(size_t bytes, std::unique_ptr<GpuBuffer>* buffer);

  const int card_;
  const int multiprocessors_;
  absl::Status error_;
  std::unique_ptr<GpuBuffer> attention_scratch_;
  std::unique_ptr<GpuBuffer> expert_groups_;
  std::unique_ptr<GpuBuffer> top_k_scratch_;
  LotQueue queue_;     // goes before the buffers: it waits for what uses them
  GraphCache graphs_;  // and before it what it runs
};

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_GPU_STREAM_H_
