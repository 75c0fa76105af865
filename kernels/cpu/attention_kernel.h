// What kernels/cpu/attention.cc, which cuts a step into tiles, and the tiles' arithmetic (attention_kernel.inc,
// compiled per instruction set) say to each other.
#ifndef LAYOVER_KERNELS_CPU_ATTENTION_KERNEL_H_
#define LAYOVER_KERNELS_CPU_ATTENTION_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace layover {

// The inline functions here are used by files of several instruction sets: always_inline, so that no copy is left over
// for the linker to choose (simd.h).

// Queries of one K/V head: rows [row_begin, row_begin + n_rows) of the step times heads [head_begin, head_begin +
// n_heads), in this order (heads fastest), over the key blocks [block_begin, block_end) of 64.
struct AttentionTile {
  const AttentionArgs* args = nullptr;
  const int32_t* pages = nullptr;  // page of each block of the sequence
  int kv_head = 0;
  int head_begin = 0;
  int n_heads = 0;
  int row_begin = 0;
  int n_rows = 0;
  int position = 0;  // of the first row
  int block_begin = 0;
  int block_end = 0;

  [[gnu::always_inline]] int queries() const { return n_rows * n_heads; }
};

// head_dim rounded up to whole vectors; the stride of all rows in scratch.
[[gnu::always_inline]] inline int AttentionStride(int head_dim) {
  return (head_dim + 15) / 16 * 16;
}

inline constexpr int kAttentionGroup = 6;  // queries that go through a block together

// What a tile's queries have gathered from the blocks merged so far: running maximum, sum and value sums. The same
// struct holds one block's contribution on its way to being merged. A group has a vector of 16 maxima and sums, of
// which the first kAttentionGroup are used.
struct AttentionSums {
  float* values = nullptr;  // [queries, stride]
  float* max = nullptr;     // [groups, 16]
  float* sum = nullptr;     // [groups, 16]
};

// Where they lie in memory that begins on a cache line.
[[gnu::always_inline]] inline size_t AttentionSumsFloats(int queries, int stride) {
  const int groups = (queries + kAttentionGroup - 1) / kAttentionGroup;
  return static_cast<size_t>(queries) * stride + 32 * static_cast<size_t>(groups);
}
[[gnu::always_inline]] inline AttentionSums AttentionSumsAt(float* memory, int queries, int stride) {
  const int groups = (queries + kAttentionGroup - 1) / kAttentionGroup;
  float* const max = memory + static_cast<ptrdiff_t>(queries) * stride;
  return {memory, max, max + 16 * static_cast<ptrdiff_t>(groups)};
}

// Per thread; contents do not outlive a call.
struct AttentionScratch {
  float* keys = nullptr;    // [stride][64]: a K block as floats
  float* values = nullptr;  // [64][stride]: a V block as floats
  float* block = nullptr;   // a group's scores and contribution
};

struct AttentionKernel {
  // scaled_q [queries, stride] = q * scale; sums become those of no block at all.
  void (*prepare)(const AttentionTile& tile, float* scaled_q, const AttentionSums& sums);
  // Merges the tile's blocks into sums, ascending.
  void (*attend)(const AttentionTile& tile, const float* scaled_q, const AttentionScratch& scratch,
                 const AttentionSums& sums);
  // The same in two halves, so that threads can share the blocks of one tile: what `block` contributes, and merging
  // contributions, which must happen in ascending order of blocks.
  void (*contribute)(const AttentionTile& tile, int block, const float* scaled_q, const AttentionScratch& scratch,
                     const AttentionSums& contribution);
  void (*merge)(const AttentionTile& tile, int block, const AttentionSums& contribution, const AttentionSums& sums);
  // Sinks, division by the sum, output rows.
  void (*finish)(const AttentionTile& tile, const AttentionSums& sums);
};

namespace scalar {
extern const AttentionKernel kAttention;
}
namespace avx2 {
extern const AttentionKernel kAttention;
}
namespace avx512 {
extern const AttentionKernel kAttention;
}

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_ATTENTION_KERNEL_H_
