// A stream that does nothing: with it a forward pass only says what scratch memory it takes (arena.h).
#ifndef LAYOVER_STAGE_WORKER_MODELS_NULL_STREAM_H_
#define LAYOVER_STAGE_WORKER_MODELS_NULL_STREAM_H_

#include <memory>

#include "kernels/ops.h"

namespace layover {

class NullStream : public Stream {
 public:
  void EmbedRows(const EmbedRowsArgs&) override {}
  void RmsNorm(const RmsNormArgs&) override {}
  void PrepareActivation(const PrepareActivationArgs&) override {}
  void MatMul(const MatMulArgs&) override {}
  void RopeAngles(const RopeAnglesArgs&) override {}
  void Rope(const RopeArgs&) override {}
  void StoreKv(const StoreKvArgs&) override {}
  void Attention(const AttentionArgs&) override {}
  void Gated(const GatedArgs&) override {}
  void GatherRows(const GatherRowsArgs&) override {}
  void TopK(const TopKArgs&) override {}
  void CausalConv(const CausalConvArgs&) override {}
  void GatedDeltaNet(const GatedDeltaNetArgs&) override {}
  void MoeRoute(const MoeRouteArgs&) override {}
  void MoeMatMul(const MoeMatMulArgs&) override {}
  void MoeCombine(const MoeCombineArgs&) override {}
  void ReadKvRows(const KvLayer&, int, int, int, void*, void*) override {}
  void WriteKvRows(const KvLayer&, int, int, int, const void*, const void*) override {}
  void CopyKvPage(const KvLayer&, int, int, int) override {}
  void ZeroKvPage(const KvLayer&, int) override {}
  void CopyToDevice(void*, const void*, size_t) override {}
  void CopyToHost(void*, const void*, size_t) override {}
  void Zero(void*, size_t) override {}
  std::unique_ptr<Event> Record() override { return nullptr; }
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_NULL_STREAM_H_
