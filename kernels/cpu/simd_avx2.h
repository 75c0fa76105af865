// F32x16 as two ymm registers, lanes 0-7 and 8-15. Included by simd.h only.
#ifndef LAYOVER_KERNELS_CPU_SIMD_AVX2_H_
#define LAYOVER_KERNELS_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/math_tables.h"

namespace layover::avx2 {

struct F32x16 {
  __m256 a, b;
};

inline F32x16 Load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void Store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F32x16 Broadcast(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline F32x16 Add(F32x16 x, F32x16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline F32x16 Sub(F32x16 x, F32x16 y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline F32x16 Mul(F32x16 x, F32x16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline F32x16 Div(F32x16 x, F32x16 y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline F32x16 Fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// y where either is a NaN, so a bound stands first.
inline F32x16 Max(F32x16 x, F32x16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline F32x16 Min(F32x16 x, F32x16 y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}

// p * 2^n, rounded once; n is integral, |n| < 250. The first factor leaves p normal, so only the second one rounds.
inline __m256 ScaleByPowerOf2(__m256 p, __m256 n) {
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(exponent, 1);
  const __m256i second = _mm256_sub_epi32(exponent, first);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}
inline F32x16 ScaleByPowerOf2(F32x16 p, F32x16 n) {
  return {ScaleByPowerOf2(p.a, n.a), ScaleByPowerOf2(p.b, n.b)};
}

// Lane i of `inside` where begin <= i < end, else of `outside`.
inline F32x16 SelectRange(int begin, int end, F32x16 inside, F32x16 outside) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
  const __m256i last_before = _mm256_set1_epi32(begin - 1);
  const __m256i after = _mm256_set1_epi32(end);
  const __m256i a = _mm256_and_si256(_mm256_cmpgt_epi32(low, last_before), _mm256_cmpgt_epi32(after, low));
  const __m256i b = _mm256_and_si256(_mm256_cmpgt_epi32(high, last_before), _mm256_cmpgt_epi32(after, high));
  return {_mm256_blendv_ps(outside.a, inside.a, _mm256_castsi256_ps(a)),
          _mm256_blendv_ps(outside.b, inside.b, _mm256_castsi256_ps(b))};
}

// Trees over lanes: (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1).
inline float ReduceAdd(F32x16 x) {
  const __m256 a = _mm256_add_ps(x.a, x.b);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float ReduceMax(F32x16 x) {
  const __m256 a = _mm256_max_ps(x.a, x.b);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

inline F32x16 LoadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void StoreHalf(uint16_t* p, F32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline F32x16 FromInt8(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline F32x16 LoadInt8(const int8_t* p) {
  return FromInt8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline float HalfToFloat1(uint16_t half) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}
inline uint16_t FloatToHalf1(float x) {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
}

// The nibbles of 16 bytes less 8: the low ones, the high ones.
inline F32x16 LoadLowNibbles(const uint8_t* p) {
  const __m128i nibbles = _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(15));
  return FromInt8(_mm_sub_epi8(nibbles, _mm_set1_epi8(8)));
}
inline F32x16 LoadHighNibbles(const uint8_t* p) {
  const __m128i bytes = _mm_srli_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), 4);
  return FromInt8(_mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
}

// 16 pairs (even, odd) into two vectors.
inline void LoadPairs8(const float* p, __m256* even, __m256* odd) {
  const __m256 x = _mm256_loadu_ps(p);
  const __m256 y = _mm256_loadu_ps(p + 8);
  const __m256 low = _mm256_permute2f128_ps(x, y, 0x20);
  const __m256 high = _mm256_permute2f128_ps(x, y, 0x31);
  *even = _mm256_shuffle_ps(low, high, 0x88);
  *odd = _mm256_shuffle_ps(low, high, 0xdd);
}
inline void LoadPairs(const float* p, F32x16* even, F32x16* odd) {
  LoadPairs8(p, &even->a, &odd->a);
  LoadPairs8(p + 16, &even->b, &odd->b);
}
inline void StorePairs8(float* p, __m256 even, __m256 odd) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
inline void StorePairs(float* p, F32x16 even, F32x16 odd) {
  StorePairs8(p, even.a, odd.a);
  StorePairs8(p + 16, even.b, odd.b);
}

inline float Sqrt1(float x) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}
inline double Fma1(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
inline float Fma1(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

inline void Prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// A product keeps `queries` (up to kTileQueries) times this many vectors of sums in registers.
inline constexpr int kTileQueries = 6;
inline constexpr int TileVectors(int queries) {
  return queries == 1 ? 4 : queries == 2 ? 2 : 1;
}

}  // namespace layover::avx2

#endif  // LAYOVER_KERNELS_CPU_SIMD_AVX2_H_
