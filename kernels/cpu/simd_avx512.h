// F32x16 as one zmm register. Included by simd.h only.
#ifndef LAYOVER_KERNELS_CPU_SIMD_AVX512_H_
#define LAYOVER_KERNELS_CPU_SIMD_AVX512_H_

// g++ 12 takes the intrinsics' own "any value will do" operands for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "kernels/cpu/math_tables.h"

namespace layover::avx512 {

struct F32x16 {
  __m512 v;
};

inline F32x16 Load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void Store(float* p, F32x16 x) {
  _mm512_storeu_ps(p, x.v);
}
inline F32x16 Broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
inline F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// b where either is a NaN, so a bound stands first.
inline F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}

// p * 2^n, rounded once; n is integral.
inline F32x16 ScaleByPowerOf2(F32x16 p, F32x16 n) {
  return {_mm512_scalef_ps(p.v, n.v)};
}

// Lane i of `inside` where begin <= i < end, else of `outside`.
inline F32x16 SelectRange(int begin, int end, F32x16 inside, F32x16 outside) {
  const uint32_t below_end = end <= 0 ? 0u : end >= 16 ? 0xffffu : (1u << end) - 1;
  const uint32_t below_begin = begin <= 0 ? 0u : begin >= 16 ? 0xffffu : (1u << begin) - 1;
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(below_end & ~below_begin), outside.v, inside.v)};
}

// Trees over lanes: (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1).
inline float ReduceAdd(F32x16 x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float ReduceMax(F32x16 x) {
  const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

inline F32x16 LoadHalf(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void StoreHalf(uint16_t* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F32x16 LoadInt8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
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
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(nibbles), _mm512_set1_epi32(8)))};
}
inline F32x16 LoadHighNibbles(const uint8_t* p) {
  const __m128i bytes = _mm_srli_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), 4);
  const __m128i nibbles = _mm_and_si128(bytes, _mm_set1_epi8(15));
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(nibbles), _mm512_set1_epi32(8)))};
}

// 16 pairs (even, odd) into two vectors.
inline void LoadPairs(const float* p, F32x16* even, F32x16* odd) {
  const __m512 a = _mm512_loadu_ps(p);
  const __m512 b = _mm512_loadu_ps(p + 16);
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even->v = _mm512_permutex2var_ps(a, evens, b);
  odd->v = _mm512_permutex2var_ps(a, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b);
}
inline void StorePairs(float* p, F32x16 even, F32x16 odd) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.v, low, odd.v));
  _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even.v, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd.v));
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
inline constexpr int TileVectors(int) {
  return 4;
}

}  // namespace layover::avx512

#endif  // LAYOVER_KERNELS_CPU_SIMD_AVX512_H_
