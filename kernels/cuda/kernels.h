// The kernels of the CUDA back end as functions that put them in a queue. Arguments are checked by gpu_stream.cc; sizes
// of zero never come here. What each computes, and in which order, is the contract of kernels/ops.h to the bit: the
// same sums in the same order as the CPU back end, whatever the number of rows.
#ifndef LAYOVER_KERNELS_CUDA_KERNELS_H_
#define LAYOVER_KERNELS_CUDA_KERNELS_H_

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/ops.h"

namespace layover::gpu {

void LaunchRmsNorm(const RmsNormArgs& args, Queue* queue);
void LaunchRopeAngles(const RopeAnglesArgs& args, Queue* queue);
void LaunchRope(const RopeArgs& args, Queue* queue);
void LaunchGated(const GatedArgs& args, Queue* queue);
void LaunchGatherRows(const GatherRowsArgs& args, Queue* queue);

// Scratch: keys on their way between launches.
size_t TopKScratchBytes(const TopKArgs& args);
void LaunchTopK(const TopKArgs& args, void* scratch, Queue* queue);

// kA16 (the layout: activation_layout.h).
void LaunchPrepareA16(const PrepareActivationArgs& args, Queue* queue);
// kF32: rows without their stride.
void LaunchPrepareF32(const PrepareActivationArgs& args, Queue* queue);

// `weights` is what the table or weight in `args` is on the card.
void LaunchEmbedRows(const EmbedRowsArgs& args, const CardWeight& weights, Queue* queue);
void LaunchMatMulInteger(const MatMulArgs& args, const CardWeight& weights, Queue* queue);
void LaunchMatMulFloat(const MatMulArgs& args, const CardWeight& weights, Queue* queue);

// The bits are MatMul's with each row's expert. `groups` is memory of ExpertGroupsBytes(args), which for one model is 0
// or always the same.
size_t ExpertGroupsBytes(const MoeMatMulArgs& args);
void LaunchMoeMatMulInteger(const MoeMatMulArgs& args, const CardWeight& weights, void* groups, Queue* queue);
void LaunchMoeMatMulFloat(const MoeMatMulArgs& args, const CardWeight& weights, void* groups, Queue* queue);
void LaunchMoeRoute(const MoeRouteArgs& args, Queue* queue);
void LaunchMoeCombine(const MoeCombineArgs& args, Queue* queue);
void LaunchCausalConv(const CausalConvArgs& args, Queue* queue);
void LaunchGatedDeltaNet(const GatedDeltaNetArgs& args, Queue* queue);

void LaunchStoreKv(const StoreKvArgs& args, Queue* queue);

// Rows of a page's K or V, and where they stand as canonical rows in a lot.
struct KvLotPart {
  uint8_t* pool = nullptr;  // k_pool or v_pool
  uint32_t at = 0;          // byte in the lot, a multiple of KvLotAlignment
  int32_t page = 0;
  int32_t kv_heads = 0;
  int16_t head_dim = 0;
  uint8_t row_begin = 0;  // of the page
  uint8_t rows = 0;
  uint8_t type = 0;  // KvType
  uint8_t is_k = 0;
};
// What one kernel moves. It is an argument by value, for which every card has 4 KiB.
inline constexpr int kKvLotParts = 126;
struct KvLotRows {
  uint8_t* rows = nullptr;  // the lot, in device memory
  int32_t n_parts = 0;
  KvLotPart parts[kKvLotParts];
};
static_assert(sizeof(KvLotRows) <= 4096);
inline size_t KvLotAlignment(KvType type) {
  return type == KvType::kF32 || type == KvType::kF16 ? 16 : 2;
}
void LaunchGatherKv(const KvLotRows& lot, Queue* queue);   // pages to lot
void LaunchScatterKv(const KvLotRows& lot, Queue* queue);  // lot to pages
void LaunchCopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows, Queue* queue);

// Scratch that lets blocks of keys be shared by many multiprocessors; a wave of blocks at a time where it is small.
struct AttentionScratch {
  float* memory = nullptr;
  size_t floats = 0;
  int multiprocessors = 0;
};
// So many do for all blocks in one wave; 0 where blocks are not shared. With fewer there are more waves, or none.
size_t AttentionScratchFloats(const AttentionArgs& args, int multiprocessors);
void LaunchAttention(const AttentionArgs& args, const AttentionScratch& scratch, Queue* queue);

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_KERNELS_H_
