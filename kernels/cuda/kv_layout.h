// Where a K/V value lies in a page on the card. k_pool and v_pool are [n_pages][kv_heads] head blocks of 64 tokens; of
// a head's canonical row (KvType in ops.h) the values and the scales stand apart:
//
//   K   values [units of 16 bytes][64 tokens][16 bytes]   a lane per key loads 16 bytes, neighbours next to each other
//       scales [head_dim / 32][64] f16                    q8_0, q4_0
//   V   values [64 tokens][value bytes of a row]          added up over keys
//       scales [64][head_dim / 32] f16
//
// Every token has its own bytes, two at least, so a copy stream may move some rows of a page while others are written.
#ifndef LAYOVER_KERNELS_CUDA_KV_LAYOUT_H_
#define LAYOVER_KERNELS_CUDA_KV_LAYOUT_H_

#include "kernels/cuda/gpu.h"
#include "kernels/ops.h"

namespace layover::gpu {

inline constexpr int kKeys = kPageTokens;
inline constexpr int kKvBlock = 32;  // values that share a scale

__host__ __device__ __forceinline__ int ScalesOfRow(KvType type, int head_dim) {
  return type == KvType::kQ8_0 || type == KvType::kQ4_0 ? head_dim / kKvBlock : 0;
}
__host__ __device__ __forceinline__ int ValueBytesOfRow(KvType type, int head_dim) {
  switch (type) {
    case KvType::kF32:
      return head_dim * 4;
    case KvType::kF16:
      return head_dim * 2;
    case KvType::kQ8_0:
      return head_dim;
    default:
      return head_dim / 2;
  }
}
__host__ __device__ __forceinline__ int HeadRowBytes(KvType type, int head_dim) {
  return ValueBytesOfRow(type, head_dim) + 2 * ScalesOfRow(type, head_dim);
}
__host__ __device__ __forceinline__ int HeadBytes(KvType type, int head_dim) {
  return HeadRowBytes(type, head_dim) * kKeys;
}

__device__ __forceinline__ uint8_t* HeadOf(const KvLayer& cache, bool is_k, int page, int head) {
  const long long at = static_cast<long long>(page) * cache.kv_heads + head;
  return static_cast<uint8_t*>(is_k ? cache.k_pool : cache.v_pool) + at * HeadBytes(cache.type, cache.head_dim);
}

// Offsets in a head block: of byte `at` of a token's values, and of scale `block`.
__device__ __forceinline__ int ValueAt(bool is_k, int row_bytes, int token, int at) {
  return is_k ? (at / 16 * kKeys + token) * 16 + at % 16 : token * row_bytes + at;
}
__device__ __forceinline__ int ScaleAt(bool is_k, int row_bytes, int scales, int token, int block) {
  return row_bytes * kKeys + 2 * (is_k ? block * kKeys + token : token * scales + block);
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_KV_LAYOUT_H_
