// How kernels read the integer weight types (weight_layout.h): a lane's share of a chunk, loaded in 16-byte pieces, and
// of each of its four blocks the words that mma.sync takes and the scales of the two outputs whose sums the lane holds.
//
// Quants are taken as they are stored, without their offset; kOffset times the sum of the activations is taken off the
// dot product instead, in exact integers.
#ifndef LAYOVER_KERNELS_CUDA_WEIGHT_FORMATS_H_
#define LAYOVER_KERNELS_CUDA_WEIGHT_FORMATS_H_

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/weight_layout.h"

namespace layover::gpu {

__device__ __forceinline__ float LowHalf(uint32_t pair) {
  return HalfToFloat(static_cast<uint16_t>(pair & 0xffff));
}
__device__ __forceinline__ float HighHalf(uint32_t pair) {
  return HalfToFloat(static_cast<uint16_t>(pair >> 16));
}

// The f16 of output g, block b in a part of "halves".
__device__ __forceinline__ float HalfOf(const uint8_t* halves, int g, int b) {
  return HalfToFloat(reinterpret_cast<const uint16_t*>(halves)[(g / 2 * kChunkBlocks + b) * 2 + g % 2]);
}
// The byte of output g, column k of a block b in a part of "words"; for nibbles k < 16.
__device__ __forceinline__ int ByteOf(const uint8_t* words, int g, int b, int k) {
  return words[((4 * g + k / 4) * kChunkBlocks + b) * 4 + k % 4];
}
__device__ __forceinline__ int NibbleOf(const uint8_t* words, int g, int b, int k) {
  return ByteOf(words, g, b, k % 16) >> (k / 16 * 4) & 15;
}

struct Q4_0Format {
  static constexpr int kChunkBytes = kQ4_0ChunkBytes;
  static constexpr int kGroups = 1;  // of columns with a scale, per block
  static constexpr int kOffset = 8;
  static constexpr bool kHasMinimum = false;

  struct Share {
    uint4 q, d;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->q = Load16<uint4>(chunk + lane * 16);
    share->d = Load16<uint4>(chunk + kWordsBytes + lane % 4 * 16);
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    w[0] = WordOf(share.q, b) & 0x0f0f0f0fu;
    w[1] = WordOf(share.q, b) >> 4 & 0x0f0f0f0fu;
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable&) {
    return output == 0 ? LowHalf(WordOf(share.d, b)) : HighHalf(WordOf(share.d, b));
  }
  __device__ static __forceinline__ float Minimum(const Share&, int, int, int) { return 0.0f; }
  // Column k of block b of output g, for EmbedRows.
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    return static_cast<float>(NibbleOf(chunk, g, b, k) - 8) * HalfOf(chunk + kWordsBytes, g, b);
  }
};

struct Q4_1Format {
  static constexpr int kChunkBytes = kQ4_1ChunkBytes;
  static constexpr int kGroups = 1;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = true;

  struct Share {
    uint4 q, d, m;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->q = Load16<uint4>(chunk + lane * 16);
    share->d = Load16<uint4>(chunk + kWordsBytes + lane % 4 * 16);
    share->m = Load16<uint4>(chunk + kWordsBytes + kHalvesBytes + lane % 4 * 16);
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    w[0] = WordOf(share.q, b) & 0x0f0f0f0fu;
    w[1] = WordOf(share.q, b) >> 4 & 0x0f0f0f0fu;
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable&) {
    return output == 0 ? LowHalf(WordOf(share.d, b)) : HighHalf(WordOf(share.d, b));
  }
  __device__ static __forceinline__ float Minimum(const Share& share, int b, int, int output) {
    return output == 0 ? LowHalf(WordOf(share.m, b)) : HighHalf(WordOf(share.m, b));
  }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    return static_cast<float>(NibbleOf(chunk, g, b, k)) * HalfOf(chunk + kWordsBytes, g, b) +
           HalfOf(chunk + kWordsBytes + kHalvesBytes, g, b);
  }
};

struct Q8_0Format {
  static constexpr int kChunkBytes = kQ8_0ChunkBytes;
  static constexpr int kGroups = 1;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = false;

  struct Share {
    uint4 first, second, d;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->first = Load16<uint4>(chunk + lane * 16);
    share->second = Load16<uint4>(chunk + kWordsBytes + lane * 16);
    share->d = Load16<uint4>(chunk + 2 * kWordsBytes + lane % 4 * 16);
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    w[0] = WordOf(share.first, b);
    w[1] = WordOf(share.second, b);
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable&) {
    return output == 0 ? LowHalf(WordOf(share.d, b)) : HighHalf(WordOf(share.d, b));
  }
  __device__ static __forceinline__ float Minimum(const Share&, int, int, int) { return 0.0f; }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    const int q = static_cast<int8_t>(ByteOf(chunk + k / 16 * kWordsBytes, g, b, k % 16));
    return static_cast<float>(q) * HalfOf(chunk + 2 * kWordsBytes, g, b);
  }
};

struct Q6_KFormat {
  static constexpr int kChunkBytes = kQ6_KChunkBytes;
  static constexpr int kGroups = 2;
  static constexpr int kOffset = 32;
  static constexpr bool kHasMinimum = false;

  struct Share {
    uint4 q, sc;
    uint2 high;
    uint32_t d;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->q = Load16<uint4>(chunk + lane * 16);
    share->high = reinterpret_cast<const uint2*>(chunk + kQ6_KHigh)[lane];
    share->sc = Load16<uint4>(chunk + kQ6_KScales + lane % 4 * 16);
    share->d = reinterpret_cast<const uint32_t*>(chunk + kQ6_KD)[lane % 4];
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    const uint32_t low = WordOf(share.q, b);
    const uint32_t high = (b < 2 ? share.high.x : share.high.y) >> (b % 2 * 4);
    w[0] = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
    w[1] = (low >> 4 & 0x0f0f0f0fu) | (high & 0x0c0c0c0cu) << 2;
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int group, int output, const CodeTable&) {
    const int sc = static_cast<int8_t>(WordOf(share.sc, b) >> (8 * (2 * group + output)));
    return (output == 0 ? LowHalf(share.d) : HighHalf(share.d)) * static_cast<float>(sc);  // exact
  }
  __device__ static __forceinline__ float Minimum(const Share&, int, int, int) { return 0.0f; }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    const int pair = chunk[kQ6_KHigh + ((4 * g + k % 16 / 4) * 2 + b / 2) * 4 + k % 4];
    const int high = pair >> (b % 2 * 4 + k / 16 * 2) & 3;
    const int sc = static_cast<int8_t>(chunk[kQ6_KScales + ((g / 2 * kChunkBlocks + b) * 2 + k / 16) * 2 + g % 2]);
    const float d = HalfToFloat(reinterpret_cast<const uint16_t*>(chunk + kQ6_KD)[g]);
    return static_cast<float>((NibbleOf(chunk, g, b, k) | high << 4) - 32) * (d * static_cast<float>(sc));
  }
};

// Words of a block whose codes are a nibble and, if there are bits, a fifth bit.
__device__ __forceinline__ void FiveBitWords(uint32_t nibbles, uint32_t bits, int b, uint32_t (&w)[2]) {
  w[0] = (nibbles & 0x0f0f0f0fu) | (bits >> (2 * b) & 0x01010101u) << 4;
  w[1] = (nibbles >> 4 & 0x0f0f0f0fu) | (bits >> (2 * b + 1) & 0x01010101u) << 4;
}
__device__ __forceinline__ int FifthBitOf(const uint8_t* bits, int g, int b, int k) {
  return bits[(4 * g + k % 16 / 4) * 4 + k % 4] >> (2 * b + k / 16) & 1;
}

// Q5_0 and Q5_1.
template <bool kMinimum>
struct Q5Format {
  static constexpr int kChunkBytes = kMinimum ? kQ5_1ChunkBytes : kQ5_0ChunkBytes;
  static constexpr int kGroups = 1;
  static constexpr int kOffset = kMinimum ? 0 : 16;
  static constexpr bool kHasMinimum = kMinimum;
  static constexpr int kD = kWordsBytes + kBitsBytes;

  struct Share {
    uint4 q, d, m;
    uint32_t bits;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->q = Load16<uint4>(chunk + lane * 16);
    share->bits = reinterpret_cast<const uint32_t*>(chunk + kWordsBytes)[lane];
    share->d = Load16<uint4>(chunk + kD + lane % 4 * 16);
    if (kMinimum) share->m = Load16<uint4>(chunk + kD + kHalvesBytes + lane % 4 * 16);
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    FiveBitWords(WordOf(share.q, b), share.bits, b, w);
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable&) {
    return output == 0 ? LowHalf(WordOf(share.d, b)) : HighHalf(WordOf(share.d, b));
  }
  __device__ static __forceinline__ float Minimum(const Share& share, int b, int, int output) {
    if (!kMinimum) return 0.0f;
    return output == 0 ? LowHalf(WordOf(share.m, b)) : HighHalf(WordOf(share.m, b));
  }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    const int q = (NibbleOf(chunk, g, b, k) | FifthBitOf(chunk + kWordsBytes, g, b, k) << 4) - kOffset;
    const float value = static_cast<float>(q) * HalfOf(chunk + kD, g, b);
    return kMinimum ? value + HalfOf(chunk + kD + kHalvesBytes, g, b) : value;
  }
};

// Q4_K and, with a fifth bit, Q5_K.
template <bool kFifthBit>
struct SubScaledFormat {
  static constexpr int kChunkBytes = kFifthBit ? kQ5_KChunkBytes : kQ4_KChunkBytes;
  static constexpr int kGroups = 1;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = true;
  static constexpr int kSubs = kWordsBytes + (kFifthBit ? kBitsBytes : 0);
  static constexpr int kTops = kSubs + kSubsBytes;

  struct Share {
    uint4 q, subs;
    uint2 tops;  // d of both outputs, dmin of both
    uint32_t bits;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->q = Load16<uint4>(chunk + lane * 16);
    share->bits = kFifthBit ? reinterpret_cast<const uint32_t*>(chunk + kWordsBytes)[lane] : 0;
    share->subs = Load16<uint4>(chunk + kSubs + lane % 4 * 16);
    share->tops = reinterpret_cast<const uint2*>(chunk + kTops)[lane % 4];
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    FiveBitWords(WordOf(share.q, b), share.bits, b, w);
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable&) {
    const int sc = WordOf(share.subs, b) >> (8 * output) & 255;
    return (output == 0 ? LowHalf(share.tops.x) : HighHalf(share.tops.x)) * static_cast<float>(sc);  // exact
  }
  __device__ static __forceinline__ float Minimum(const Share& share, int b, int, int output) {
    const int m = WordOf(share.subs, b) >> (16 + 8 * output) & 255;
    return -((output == 0 ? LowHalf(share.tops.y) : HighHalf(share.tops.y)) * static_cast<float>(m));
  }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    const uint8_t* subs = chunk + kSubs + (g / 2 * kChunkBlocks + b) * 4 + g % 2;
    const uint16_t* tops = reinterpret_cast<const uint16_t*>(chunk + kTops) + g / 2 * 4 + g % 2;
    const int high = kFifthBit ? FifthBitOf(chunk + kWordsBytes, g, b, k) << 4 : 0;
    const float scale = HalfToFloat(tops[0]) * static_cast<float>(subs[0]);
    const float minimum = -(HalfToFloat(tops[2]) * static_cast<float>(subs[2]));
    return static_cast<float>(NibbleOf(chunk, g, b, k) | high) * scale + minimum;
  }
};

using Q5_0Format = Q5Format<false>;
using Q5_1Format = Q5Format<true>;
using Q4_KFormat = SubScaledFormat<false>;
using Q5_KFormat = SubScaledFormat<true>;

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_WEIGHT_FORMATS_H_
