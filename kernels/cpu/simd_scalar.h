// F32x16 as sixteen floats: for machines without AVX2, and what the tests hold the other two against. Included by
// simd.h only.
#ifndef LAYOVER_KERNELS_CPU_SIMD_SCALAR_H_
#define LAYOVER_KERNELS_CPU_SIMD_SCALAR_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/math_tables.h"
#include "kernels/float16.h"

namespace layover::scalar {

struct F32x16 {
  float lane[16];
};

template <typename Function>
inline F32x16 ForLanes(Function function) {
  F32x16 result;
  for (int i = 0; i < 16; ++i) result.lane[i] = function(i);
  return result;
}

inline F32x16 Load(const float* p) {
  return ForLanes([&](int i) { return p[i]; });
}
inline void Store(float* p, const F32x16& x) {
  for (int i = 0; i < 16; ++i) p[i] = x.lane[i];
}
inline F32x16 Broadcast(float x) {
  return ForLanes([&](int) { return x; });
}
inline F32x16 Add(const F32x16& a, const F32x16& b) {
  return ForLanes([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F32x16 Sub(const F32x16& a, const F32x16& b) {
  return ForLanes([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F32x16 Mul(const F32x16& a, const F32x16& b) {
  return ForLanes([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline F32x16 Div(const F32x16& a, const F32x16& b) {
  return ForLanes([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline F32x16 Fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return ForLanes([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
// b where either is a NaN, so a bound stands first. (As MAXPS and MINPS do, also for zeros of two signs.)
inline F32x16 Max(const F32x16& a, const F32x16& b) {
  return ForLanes([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F32x16 Min(const F32x16& a, const F32x16& b) {
  return ForLanes([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}

// p * 2^n, rounded once; n is integral, |n| < 250. The first factor leaves p normal, so only the second one rounds.
inline float ScaleByPowerOf2(float p, float n) {
  if (n != n) return n;
  const int exponent = static_cast<int>(n);
  const int first = exponent >> 1;
  const int second = exponent - first;
  return p * std::bit_cast<float>((first + 127) << 23) * std::bit_cast<float>((second + 127) << 23);
}
inline F32x16 ScaleByPowerOf2(const F32x16& p, const F32x16& n) {
  return ForLanes([&](int i) { return ScaleByPowerOf2(p.lane[i], n.lane[i]); });
}

// Lane i of `inside` where begin <= i < end, else of `outside`.
inline F32x16 SelectRange(int begin, int end, const F32x16& inside, const F32x16& outside) {
  return ForLanes([&](int i) { return i >= begin && i < end ? inside.lane[i] : outside.lane[i]; });
}

// Trees over lanes: (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1).
inline float ReduceAdd(F32x16 x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.lane[i] = x.lane[i] + x.lane[i + half];
  }
  return x.lane[0];
}
inline float ReduceMax(F32x16 x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.lane[i] = x.lane[i] > x.lane[i + half] ? x.lane[i] : x.lane[i + half];
  }
  return x.lane[0];
}

inline F32x16 LoadHalf(const uint16_t* p) {
  return ForLanes([&](int i) { return HalfToFloat(p[i]); });
}
inline void StoreHalf(uint16_t* p, const F32x16& x) {
  for (int i = 0; i < 16; ++i) p[i] = FloatToHalf(x.lane[i]);
}
inline F32x16 LoadInt8(const int8_t* p) {
  return ForLanes([&](int i) { return static_cast<float>(p[i]); });
}
inline float HalfToFloat1(uint16_t half) {
  return HalfToFloat(half);
}
inline uint16_t FloatToHalf1(float x) {
  return FloatToHalf(x);
}

// The nibbles of 16 bytes less 8: the low ones, the high ones.
inline F32x16 LoadLowNibbles(const uint8_t* p) {
  return ForLanes([&](int i) { return static_cast<float>((p[i] & 15) - 8); });
}
inline F32x16 LoadHighNibbles(const uint8_t* p) {
  return ForLanes([&](int i) { return static_cast<float>((p[i] >> 4) - 8); });
}

// 16 pairs (even, odd) into two vectors.
inline void LoadPairs(const float* p, F32x16* even, F32x16* odd) {
  *even = ForLanes([&](int i) { return p[2 * i]; });
  *odd = ForLanes([&](int i) { return p[2 * i + 1]; });
}
inline void StorePairs(float* p, const F32x16& even, const F32x16& odd) {
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = even.lane[i];
    p[2 * i + 1] = odd.lane[i];
  }
}

inline float Sqrt1(float x) {
  return std::sqrt(x);
}
inline double Fma1(double a, double b, double c) {
  return std::fma(a, b, c);
}
inline float Fma1(float a, float b, float c) {
  return std::fma(a, b, c);
}

inline void Prefetch(const void* p) {
  __builtin_prefetch(p);
}

// A product keeps `queries` (up to kTileQueries) times this many vectors of sums in registers.
inline constexpr int kTileQueries = 6;
inline constexpr int TileVectors(int) {
  return 1;
}

}  // namespace layover::scalar

#endif  // LAYOVER_KERNELS_CPU_SIMD_SCALAR_H_
