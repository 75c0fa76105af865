// Where a K/V value lies in a page of the CPU back end, and the way between pages and canonical rows.
//
// k_pool and v_pool: [n_pages][kv_heads] head blocks. A head block of D = head_dim values for 64 tokens:
//
//            K (one lane per key: a vector of keys is loaded at once)   V (rows are added up over keys)
//   f32 f16  values [D][64]                                             values [64][D]
//   q8_0     int8   [D][64],    then f16 scales [D/32][64]              int8  [64][D],    then f16 scales [64][D/32]
//   q4_0     bytes  [D/32][16][64], then f16 scales [D/32][64]          bytes [64][D/2],  then f16 scales [64][D/32]
//
// (q4_0: byte j of a block of 32 holds elements j, low nibble, and j + 16, high nibble, as in the canonical rows.)
//
// Every token has its own bytes, and reading or writing rows touches these bytes only: threads may work on different
// rows of one page at the same time.
#ifndef LAYOVER_KERNELS_CPU_KV_PAGES_H_
#define LAYOVER_KERNELS_CPU_KV_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace layover {

// Multiple of 64 bytes, so that head blocks stay aligned.
size_t CpuKvHeadBytes(KvType type, int head_dim);

// head_dim: a multiple of 8 up to kMaxHeadDim; of 32 for q8_0 and q4_0.
bool CpuSupportsKv(KvType type, int head_dim);

// always_inline: also used by files compiled for one instruction set (simd.h).
[[gnu::always_inline]] inline uint8_t* CpuKvHead(void* pool, const KvLayer& cache, int page, int kv_head) {
  const size_t head_bytes = CpuKvHeadBytes(cache.type, cache.head_dim);
  return static_cast<uint8_t*>(pool) + (static_cast<size_t>(page) * cache.kv_heads + kv_head) * head_bytes;
}

// The four state operations of Stream, same contract.
void CpuReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows);
void CpuWriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows, const void* v_rows);
void CpuCopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows);
void CpuZeroKvPage(const KvLayer& cache, int page);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_KV_PAGES_H_
