// The steps of attention.cu that a warp does by itself, and how a page comes into shared memory.
#ifndef LAYOVER_KERNELS_CUDA_ATTENTION_STEPS_H_
#define LAYOVER_KERNELS_CUDA_ATTENTION_STEPS_H_

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kv_layout.h"

namespace layover::gpu {

inline constexpr int kDims = 64;                       // of K or V in shared memory at a time
inline constexpr float kNoMaximum = -0x1.fffffep127f;  // of no keys

// Keys [begin, end) of a block that a query sees; none if begin >= end.
struct Visible {
  int begin;
  int end;
};

__device__ __forceinline__ Visible VisibleKeys(int position, int window, int block) {
  const int first = window > 0 ? position - window + 1 : 0;
  return {MaxInt(first - block * kKeys, 0), MinInt(position + 1 - block * kKeys, kKeys)};
}

// Values of a 16-byte unit as floats, `stride` apart.
__device__ __forceinline__ void DecodeUnit(KvType type, const uint4& unit, float scale, float* out, int stride) {
  switch (type) {
    case KvType::kF32:
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) out[i * stride] = __uint_as_float(WordOf(unit, i));
      return;
    case KvType::kF16:
      GPU_UNROLL
      for (int i = 0; i < 8; ++i) {
        out[i * stride] = HalfToFloat(static_cast<uint16_t>(WordOf(unit, i / 2) >> (i % 2 * 16)));
      }
      return;
    case KvType::kQ8_0:
      GPU_UNROLL
      for (int i = 0; i < 16; ++i) {
        out[i * stride] = static_cast<float>(static_cast<int8_t>(WordOf(unit, i / 4) >> (i % 4 * 8))) * scale;
      }
      return;
    case KvType::kQ4_0:
      GPU_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int byte = WordOf(unit, i / 4) >> (i % 4 * 8) & 255;
        out[i * stride] = static_cast<float>((byte & 15) - 8) * scale;
        out[(i + 16) * stride] = static_cast<float>((byte >> 4) - 8) * scale;
      }
      return;
  }
}

__device__ __forceinline__ int ValuesOfUnit(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kF16 ? 8 : type == KvType::kQ8_0 ? 16 : 32;
}

// Dims [64 chunk, 64 chunk + 64) of a page's head as floats: K as [64 dims][64 keys], V as [64 keys][64 dims].
__device__ __forceinline__ void Stage(const KvLayer& cache, bool is_k, const uint8_t* head, int chunk, float* stage) {
  const int per_unit = ValuesOfUnit(cache.type);
  const int row_bytes = ValueBytesOfRow(cache.type, cache.head_dim), scales = ScalesOfRow(cache.type, cache.head_dim);
  const int units = (MinInt(cache.head_dim - chunk * kDims, kDims) + per_unit - 1) / per_unit;
  for (int i = static_cast<int>(threadIdx.x); i < units * kKeys; i += static_cast<int>(blockDim.x)) {
    const int key = is_k ? i % kKeys : i / units;
    const int in_chunk = is_k ? i / kKeys : i % units;
    const int unit = chunk * kDims / per_unit + in_chunk;
    float scale = 0.0f;
    if (scales > 0) {
      const int at = ScaleAt(is_k, row_bytes, scales, key, unit * per_unit / kKvBlock);
      scale = HalfToFloat(*reinterpret_cast<const uint16_t*>(head + at));
    }
    const uint4 values = Load16<uint4>(head + ValueAt(is_k, row_bytes, key, unit * 16));
    const int d = in_chunk * per_unit;
    DecodeUnit(cache.type, values, scale, is_k ? stage + d * kKeys + key : stage + key * kDims + d, is_k ? kKeys : 1);
  }
}

// One query's scores, two a lane, in place to weights; the block's maximum and sum in all lanes.
__device__ __forceinline__ void Softmax(const Visible& visible, int lane, float (&s)[2], float* max_out,
                                        float* sum_out) {
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int key = lane + 32 * j;
    if (key < visible.begin || key >= visible.end) s[j] = kMinusInfinity;
  }
  // Vectors of sixteen: this lane has one of keys 0-15 and 16-31 and one of 32-47 and 48-63.
  const float other_low = __shfl_xor_sync(kAllLanes, s[0], 16), other_high = __shfl_xor_sync(kAllLanes, s[1], 16);
  const bool lower = lane < 16;
  float max = Max(Max(lower ? s[0] : other_low, lower ? other_low : s[0]),
                  Max(lower ? s[1] : other_high, lower ? other_high : s[1]));
  GPU_UNROLL
  for (int step = 8; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, max, step);
    max = (lane & step) == 0 ? Max(max, other) : Max(other, max);
  }
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int key = lane + 32 * j;
    s[j] = key < visible.begin || key >= visible.end ? 0.0f : Exp(s[j] - max);
  }
  const float low = s[0] + __shfl_xor_sync(kAllLanes, s[0], 16);
  const float high = s[1] + __shfl_xor_sync(kAllLanes, s[1], 16);
  *max_out = max;
  *sum_out = TreeSum(low + high);
}

// Merging a block's maximum m and sum l into M and L; answers with the factors of the old value sums and the block's.
__device__ __forceinline__ void Merge(float m, float l, float* max, float* sum, float* old_factor,
                                      float* block_factor) {
  const float merged = Max(m, *max);
  *old_factor = Exp(*max - merged);
  *block_factor = Exp(m - merged);
  *max = merged;
  *sum = fmaf(l, *block_factor, *sum * *old_factor);
}

// What value sums are multiplied by at the end, first by *factor, then by *inverse.
__device__ __forceinline__ void Finish(const float* sinks, int head, float max, float sum, float* factor,
                                       float* inverse) {
  *factor = 1.0f;
  if (sinks != nullptr) {
    const float sink = sinks[head];
    const float merged = sink > max ? sink : max;
    *factor = Exp(max - merged);
    sum = fmaf(sum, *factor, Exp(sink - merged));
  }
  *inverse = 1.0f / sum;
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_ATTENTION_STEPS_H_
