// Same bytes as PrepareA16RowScalar.
#include <immintrin.h>

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

__m128i FoldHalves(__m256i v, __m128i (*combine)(__m128i, __m128i)) {
  return combine(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

int32_t Sum(__m256i v) {
  __m128i s = FoldHalves(v, [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

int32_t Largest(__m256i v) {
  __m128i m = FoldHalves(v, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

__m256i RoundToInt(__m256 x) {
  return _mm256_cvtps_epi32(_mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// 16 values: halves stored, their sum returned.
int32_t StoreHalves(const float* x, __m256 inverse, uint8_t* high, uint8_t* low) {
  const __m256i a0 = RoundToInt(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
  const __m256i a1 = RoundToInt(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
  // |a| <= 32639, so packing to 16 bits changes nothing; the permutation puts the four-element groups in order again.
  const __m256i a = _mm256_permute4x64_epi64(_mm256_packs_epi32(a0, a1), 0xd8);
  const __m256i h = _mm256_srai_epi16(_mm256_add_epi16(a, _mm256_set1_epi16(128)), 8);
  const __m256i l = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high),
                   _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low),
                   _mm_packs_epi16(_mm256_castsi256_si128(l), _mm256_extracti128_si256(l, 1)));
  return Sum(_mm256_add_epi32(a0, a1));
}

void PrepareBlock(const float* x, uint8_t* values, A16Block* block) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int k = 0; k < kBlockCols; k += 8) {
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + k)), magnitude));
  }
  const uint32_t largest = static_cast<uint32_t>(Largest(most));
  if (largest < kA16SmallestMaximumBits || largest >= kFloatInfinityBits) {
    for (int i = 0; i < kA16ValueBytes; i += 32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), _mm256_setzero_si256());
    }
    const float fill = largest >= kFloatInfinityBits ? __builtin_nanf("") : 0.0f;
    *block = A16Block{fill, fill, 0, 0};
    return;
  }
  const float m = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(largest))));
  const __m256 inverse = _mm256_set1_ps(kA16Max / m);
  const int32_t first = StoreHalves(x, inverse, values, values + kBlockCols);
  const int32_t sum = first + StoreHalves(x + 16, inverse, values + 16, values + kBlockCols + 16);
  const float scale = m / kA16Max;
  *block = A16Block{scale, static_cast<float>(sum) * scale, sum * 128, first * 128};
}

}  // namespace

void PrepareA16RowAvx2(const float* x, int dim, uint8_t* out) {
  const int blocks = dim / kBlockCols;
  auto* block = reinterpret_cast<A16Block*>(out + blocks * kA16ValueBytes);
  for (int b = 0; b < blocks; ++b) PrepareBlock(x + b * kBlockCols, out + b * kA16ValueBytes, block + b);
}

}  // namespace layover
