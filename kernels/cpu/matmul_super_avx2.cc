// The products of types of super-blocks, for AVX2. Quad, Scale and Minimum are as in matmul_block_avx2.cc. Products of
// d or dmin with a sub-scale are exact.
#include "kernels/cpu/matmul_avx2.h"

namespace layover {
namespace {

// Quad s of a block's pairs.
void PairQuad(const uint8_t* pairs, int s, __m256i* quad) {
  for (int half = 0; half < 2; ++half) {
    const __m256i four = Load32(pairs + s / 4 * kQuadBytes + 32 * half);
    quad[half] = _mm256_and_si256(_mm256_srl_epi16(four, _mm_cvtsi32_si128(s % 4 * 2)), _mm256_set1_epi8(3));
  }
}

__m128i Load8(const uint8_t* bytes) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
}
__m256 SignedBytes(const uint8_t* bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(Load8(bytes)));
}
__m256 UnsignedBytes(const uint8_t* bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(Load8(bytes)));
}
__m256 Negated(__m256 x) {
  return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

__m256 Super(const uint8_t* halves, int half) {
  return Halves(halves + 16 * half);
}

struct Q2_K {
  using Layout = Q2_KLayout;
  static constexpr bool kMinimum = true;
  explicit Q2_K(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const { PairQuad(block + Layout::kPairs, s, quad); }
  static __m256i Both(const uint8_t* block, int g, int half) {  // sc | m << 4
    return _mm256_cvtepu8_epi32(Load8(block + Layout::kScales + g * kTileRows + 8 * half));
  }
  __m256 Scale(const uint8_t* super, const uint8_t* block, int g, int half) const {
    const __m256i sc = _mm256_and_si256(Both(block, g, half), _mm256_set1_epi32(15));
    return _mm256_mul_ps(Super(super, half), _mm256_cvtepi32_ps(sc));
  }
  __m256 Minimum(const uint8_t* super, const uint8_t* block, int g, int half) const {
    const __m256 m = _mm256_cvtepi32_ps(_mm256_srli_epi32(Both(block, g, half), 4));
    return Negated(_mm256_mul_ps(Super(super + Layout::kHeaderMinima, half), m));
  }
};

struct Q4_K {
  using Layout = Q4_KLayout;
  static constexpr bool kMinimum = true;
  explicit Q4_K(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const { NibbleQuad(block, s, quad); }
  __m256 Scale(const uint8_t* super, const uint8_t* block, int, int half) const {
    return _mm256_mul_ps(Super(super, half), UnsignedBytes(block + Layout::kScales + 8 * half));
  }
  __m256 Minimum(const uint8_t* super, const uint8_t* block, int, int half) const {
    const __m256 m = UnsignedBytes(block + Layout::kMinima + 8 * half);
    return Negated(_mm256_mul_ps(Super(super + Layout::kHeaderMinima, half), m));
  }
};

struct Q5_K {
  using Layout = Q5_KLayout;
  static constexpr bool kMinimum = true;
  explicit Q5_K(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    NibbleQuad(block, s, quad);
    JoinBit(block + Layout::kBits, s, 4, quad);
  }
  __m256 Scale(const uint8_t* super, const uint8_t* block, int, int half) const {
    return _mm256_mul_ps(Super(super, half), UnsignedBytes(block + Layout::kScales + 8 * half));
  }
  __m256 Minimum(const uint8_t* super, const uint8_t* block, int, int half) const {
    const __m256 m = UnsignedBytes(block + Layout::kMinima + 8 * half);
    return Negated(_mm256_mul_ps(Super(super + Layout::kHeaderMinima, half), m));
  }
};

struct Q6_K {
  using Layout = Q6_KLayout;
  static constexpr bool kMinimum = false;
  explicit Q6_K(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    __m256i high[2];
    NibbleQuad(block, s, quad);
    PairQuad(block + Layout::kPairs, s, high);
    for (int half = 0; half < 2; ++half) quad[half] = _mm256_or_si256(quad[half], _mm256_slli_epi16(high[half], 4));
    Subtract(32, quad);
  }
  __m256 Scale(const uint8_t* super, const uint8_t* block, int g, int half) const {
    return _mm256_mul_ps(Super(super, half), SignedBytes(block + Layout::kScales + g * kTileRows + 8 * half));
  }
};

// What Table3 and Table4 share.
template <class LayoutIn>
struct Table {
  using Layout = LayoutIn;
  static constexpr bool kMinimum = false;
  __m256i table;
  __m256 step;
  explicit Table(const MatMulJob& job) : table(Table16(job.table)), step(_mm256_set1_ps(job.step)) {}
  __m256 Scale(const uint8_t* super, const uint8_t* block, int g, int half) const {
    const __m256 sc = SignedBytes(block + Layout::kScales + g * kTileRows + 8 * half);
    return _mm256_mul_ps(_mm256_mul_ps(Super(super, half), step), sc);
  }
};

struct Table3 : Table<Table3Layout> {
  using Table::Table;
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    PairQuad(block + Layout::kPairs, s, quad);
    JoinBit(block + Layout::kBits, s, 2, quad);
    LookUp(table, quad);
  }
};

struct Table4 : Table<Table4Layout> {
  using Table::Table;
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    NibbleQuad(block, s, quad);
    LookUp(table, quad);
  }
};

constexpr MatMulKernels Kernels() {
  MatMulKernels kernels;
  SetKernel(&kernels, PackedKind::kQ2_K, MatMulInteger<Q2_K>);
  SetKernel(&kernels, PackedKind::kTable3, MatMulInteger<Table3>);
  SetKernel(&kernels, PackedKind::kQ4_K, MatMulInteger<Q4_K>);
  SetKernel(&kernels, PackedKind::kQ5_K, MatMulInteger<Q5_K>);
  SetKernel(&kernels, PackedKind::kQ6_K, MatMulInteger<Q6_K>);
  SetKernel(&kernels, PackedKind::kTable4, MatMulInteger<Table4>);
  kernels.scratch_bytes = ScratchBytes;
  return kernels;
}

}  // namespace

const MatMulKernels kMatMulSuperAvx2 = Kernels();

}  // namespace layover
