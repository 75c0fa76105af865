// A stream of the CPU back end: runs every operation at once and returns when it is done, so Synchronize() has nothing
// to wait for and events are born done. The arithmetic is in the operations' own files; here arguments are checked
// against the contract and work is spread over the pool.
#ifndef LAYOVER_KERNELS_CPU_CPU_STREAM_H_
#define LAYOVER_KERNELS_CPU_CPU_STREAM_H_

#include <memory>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/moe_matmul.h"
#include "kernels/cpu/prefault.h"
#include "kernels/cpu/recurrent_ops.h"
#include "kernels/cpu/store_kv.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layover {

class CpuStream : public Stream {
 public:
  // `threads` 1 (a copy stream, always) starts no thread. `prefault` may be null.
  CpuStream(CpuIsa isa, int threads, std::shared_ptr<Prefault> prefault = nullptr);

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

 private:
  // Rows a thread should take at least, so that handing them over is worth it; `row_cost` is about nanoseconds a row.
  int RowGrain(int n_rows, int row_cost) const;

  const CpuIsa isa_;
  const std::shared_ptr<Prefault> prefault_;
  ThreadPool pool_;
  CpuStoreKv store_kv_;
  CpuAttention attention_;
  CpuRecurrentOps recurrent_;
  CpuMoeMatMul moe_matmul_;
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_CPU_STREAM_H_
