// How kernels read the weight types whose codes are looked up in a table of small integers (weight_layout.h), and Q2_K.
// Two byte permutations look four codes up at once, so no memory is touched. Interface as in weight_formats.h.
#ifndef LAYOVER_KERNELS_CUDA_WEIGHT_FORMATS_TABLE_H_
#define LAYOVER_KERNELS_CUDA_WEIGHT_FORMATS_TABLE_H_

#include "kernels/cuda/weight_formats.h"

namespace layover::gpu {

// The values of the four codes of 4 bits in the low half of `codes`; of 3 bits, where bit 3 of each is zero.
__device__ __forceinline__ uint32_t LookUp16(const CodeTable& table, uint32_t codes) {
  const uint32_t low = PermuteBytes(table.values[0], table.values[1], codes);
  const uint32_t high = PermuteBytes(table.values[2], table.values[3], codes);
  return PermuteBytes(low, high, 0x3210u | (codes & 0x8888u) >> 1);
}
__device__ __forceinline__ uint32_t LookUp8(const CodeTable& table, uint32_t codes) {
  return PermuteBytes(table.values[0], table.values[1], codes);
}
__device__ __forceinline__ float ValueOfCode(const CodeTable& table, int code) {
  const uint32_t low = code / 4 % 2 == 0 ? table.values[0] : table.values[1];
  const uint32_t high = code / 4 % 2 == 0 ? table.values[2] : table.values[3];
  return static_cast<float>(static_cast<int8_t>((code < 8 ? low : high) >> (code % 4 * 8)));
}

// The word of output g, column k of a block in a part of `words` words a lane; and the shift of its slot.
__device__ __forceinline__ uint32_t WordOfLane(const uint8_t* part, int g, int k, int words, int word) {
  return reinterpret_cast<const uint32_t*>(part)[(4 * g + k % 16 / 4) * words + word];
}
__device__ __forceinline__ int SlotShift(int k) {
  return 4 * (k / 16 * 4 + k % 4);
}

// IQ4_NL and, with bfloat16 scales, MXFP4.
template <bool kBrain>
struct PlainTableFormat {
  static constexpr int kChunkBytes = kIQ4_NLChunkBytes;
  static constexpr int kGroups = 1;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = false;

  struct Share {
    uint4 codes, d;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->codes = Load16<uint4>(chunk + lane * 16);
    share->d = Load16<uint4>(chunk + kWordsBytes + lane % 4 * 16);
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable& table, uint32_t (&w)[2]) {
    const uint32_t codes = WordOf(share.codes, b);
    w[0] = LookUp16(table, codes);
    w[1] = LookUp16(table, codes >> 16);
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable&) {
    const uint32_t d = WordOf(share.d, b);
    if (kBrain) return __uint_as_float(output == 0 ? d << 16 : d & 0xffff0000u);
    return output == 0 ? LowHalf(d) : HighHalf(d);
  }
  __device__ static __forceinline__ float Minimum(const Share&, int, int, int) { return 0.0f; }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable& table) {
    const int code = WordOfLane(chunk, g, k, kChunkBlocks, b) >> SlotShift(k) & 15;
    const uint16_t d = reinterpret_cast<const uint16_t*>(chunk + kWordsBytes)[(g / 2 * kChunkBlocks + b) * 2 + g % 2];
    const float scale = kBrain ? __uint_as_float(static_cast<uint32_t>(d) << 16) : HalfToFloat(d);
    return ValueOfCode(table, code) * scale;
  }
};

// (d * step * sc) * table[n]: IQ4_XS and IQ3.
struct Table4Format {
  static constexpr int kChunkBytes = kTable4ChunkBytes;
  static constexpr int kGroups = 1;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = false;
  static constexpr int kD = kWordsBytes + kBlockScalesBytes;

  struct Share {
    uint4 codes;
    uint2 sc;
    uint32_t d;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->codes = Load16<uint4>(chunk + lane * 16);
    share->sc = reinterpret_cast<const uint2*>(chunk + kWordsBytes)[lane % 4];
    share->d = reinterpret_cast<const uint32_t*>(chunk + kD)[lane % 4];
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable& table, uint32_t (&w)[2]) {
    const uint32_t codes = WordOf(share.codes, b);
    w[0] = LookUp16(table, codes);
    w[1] = LookUp16(table, codes >> 16);
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int, int output, const CodeTable& table) {
    const int sc = static_cast<int8_t>((b < 2 ? share.sc.x : share.sc.y) >> (16 * (b % 2) + 8 * output));
    const float d = output == 0 ? LowHalf(share.d) : HighHalf(share.d);
    return d * table.step * static_cast<float>(sc);  // exact
  }
  __device__ static __forceinline__ float Minimum(const Share&, int, int, int) { return 0.0f; }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable& table) {
    const int code = WordOfLane(chunk, g, k, kChunkBlocks, b) >> SlotShift(k) & 15;
    const int sc = static_cast<int8_t>(chunk[kWordsBytes + (g / 2 * kChunkBlocks + b) * 2 + g % 2]);
    const float d = HalfToFloat(reinterpret_cast<const uint16_t*>(chunk + kD)[g]);
    return ValueOfCode(table, code) * (d * table.step * static_cast<float>(sc));
  }
};

// (d * step * sc) * table[n] with a scale of 16 columns: Q3_K, IQ2 and IQ1.
struct Table3Format {
  static constexpr int kChunkBytes = kTable3ChunkBytes;
  static constexpr int kGroups = 2;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = false;
  static constexpr int kHigh = kPairsBytes;
  static constexpr int kScales = kHigh + kBitsBytes;
  static constexpr int kD = kScales + kGroupScalesBytes;

  struct Share {
    uint4 sc;
    uint2 low;
    uint32_t high, d;
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->low = reinterpret_cast<const uint2*>(chunk)[lane];
    share->high = reinterpret_cast<const uint32_t*>(chunk + kHigh)[lane];
    share->sc = Load16<uint4>(chunk + kScales + lane % 4 * 16);
    share->d = reinterpret_cast<const uint32_t*>(chunk + kD)[lane % 4];
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable& table, uint32_t (&w)[2]) {
    const uint32_t low = (b < 2 ? share.low.x : share.low.y) >> (b % 2 * 2) & 0x33333333u;
    const uint32_t codes = low | (share.high >> b & 0x11111111u) << 2;
    w[0] = LookUp8(table, codes);
    w[1] = LookUp8(table, codes >> 16);
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int group, int output,
                                                const CodeTable& table) {
    const int sc = static_cast<int8_t>(WordOf(share.sc, b) >> (8 * (2 * group + output)));
    return (output == 0 ? LowHalf(share.d) : HighHalf(share.d)) * table.step * static_cast<float>(sc);  // exact
  }
  __device__ static __forceinline__ float Minimum(const Share&, int, int, int) { return 0.0f; }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable& table) {
    const int low = WordOfLane(chunk, g, k, 2, b / 2) >> (SlotShift(k) + b % 2 * 2) & 3;
    const int high = WordOfLane(chunk + kHigh, g, k, 1, 0) >> (SlotShift(k) + b) & 1;
    const int sc = static_cast<int8_t>(chunk[kScales + ((g / 2 * kChunkBlocks + b) * 2 + k / 16) * 2 + g % 2]);
    const float d = HalfToFloat(reinterpret_cast<const uint16_t*>(chunk + kD)[g]);
    return ValueOfCode(table, low | high << 2) * (d * table.step * static_cast<float>(sc));
  }
};

struct Q2_KFormat {
  static constexpr int kChunkBytes = kQ2_KChunkBytes;
  static constexpr int kGroups = 2;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinimum = true;
  static constexpr int kScales = kPairsBytes;
  static constexpr int kTops = kScales + kGroupScalesBytes;

  struct Share {
    uint4 subs;
    uint2 pairs, tops;  // d of both outputs, dmin of both
  };
  __device__ static __forceinline__ void Load(const uint8_t* chunk, int lane, Share* share) {
    share->pairs = reinterpret_cast<const uint2*>(chunk)[lane];
    share->subs = Load16<uint4>(chunk + kScales + lane % 4 * 16);
    share->tops = reinterpret_cast<const uint2*>(chunk + kTops)[lane % 4];
  }
  __device__ static __forceinline__ void Words(const Share& share, int b, const CodeTable&, uint32_t (&w)[2]) {
    const uint32_t pairs = (b < 2 ? share.pairs.x : share.pairs.y) >> (b % 2 * 4);
    w[0] = pairs & 0x03030303u;
    w[1] = pairs >> 2 & 0x03030303u;
  }
  __device__ static __forceinline__ float Scale(const Share& share, int b, int group, int output, const CodeTable&) {
    const int sc = WordOf(share.subs, b) >> (8 * (2 * group + output)) & 15;
    return (output == 0 ? LowHalf(share.tops.x) : HighHalf(share.tops.x)) * static_cast<float>(sc);  // exact
  }
  __device__ static __forceinline__ float Minimum(const Share& share, int b, int group, int output) {
    const int m = WordOf(share.subs, b) >> (8 * (2 * group + output) + 4) & 15;
    return -((output == 0 ? LowHalf(share.tops.y) : HighHalf(share.tops.y)) * static_cast<float>(m));
  }
  __device__ static __forceinline__ float Value(const uint8_t* chunk, int g, int b, int k, const CodeTable&) {
    const int q = WordOfLane(chunk, g, k, 2, b / 2) >> (8 * (k % 4) + b % 2 * 4 + k / 16 * 2) & 3;
    const int sub = chunk[kScales + ((g / 2 * kChunkBlocks + b) * 2 + k / 16) * 2 + g % 2];
    const uint16_t* tops = reinterpret_cast<const uint16_t*>(chunk + kTops) + g / 2 * 4 + g % 2;
    const float scale = HalfToFloat(tops[0]) * static_cast<float>(sub & 15);
    const float minimum = -(HalfToFloat(tops[2]) * static_cast<float>(sub >> 4));
    return static_cast<float>(q) * scale + minimum;
  }
};

using IQ4_NLFormat = PlainTableFormat<false>;
using MXFP4Format = PlainTableFormat<true>;

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_WEIGHT_FORMATS_TABLE_H_
