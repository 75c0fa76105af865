// Same bytes as PrepareA16RowScalar.
#include <immintrin.h>

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

// 16 values: halves stored, their sum returned.
int32_t StoreHalves(__m512 x, __m512 inverse, uint8_t* high, uint8_t* low) {
  const __m512i a = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(128)), 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(h));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(a));
  return _mm512_reduce_add_epi32(a);
}

void PrepareBlock(const float* x, uint8_t* values, A16Block* block) {
  const __m512 x0 = _mm512_loadu_ps(x);
  const __m512 x1 = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const uint32_t largest = static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(
      _mm512_and_si512(_mm512_castps_si512(x0), magnitude), _mm512_and_si512(_mm512_castps_si512(x1), magnitude))));
  if (largest < kA16SmallestMaximumBits || largest >= kFloatInfinityBits) [[unlikely]] {
    _mm512_storeu_si512(values, _mm512_setzero_si512());
    const float fill = largest >= kFloatInfinityBits ? __builtin_nanf("") : 0.0f;
    *block = A16Block{fill, fill, 0, 0};
    return;
  }
  const float m = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest))));
  const __m512 inverse = _mm512_set1_ps(kA16Max / m);
  const int32_t first = StoreHalves(x0, inverse, values, values + kBlockCols);
  const int32_t sum = first + StoreHalves(x1, inverse, values + 16, values + kBlockCols + 16);
  const float scale = m / kA16Max;
  *block = A16Block{scale, static_cast<float>(sum) * scale, sum * 128, first * 128};
}

}  // namespace

void PrepareA16RowAvx512(const float* x, int dim, uint8_t* out) {
  const int blocks = dim / kBlockCols;
  auto* block = reinterpret_cast<A16Block*>(out + blocks * kA16ValueBytes);
  for (int b = 0; b < blocks; ++b) PrepareBlock(x + b * kBlockCols, out + b * kA16ValueBytes, block + b);
}

}  // namespace layover
