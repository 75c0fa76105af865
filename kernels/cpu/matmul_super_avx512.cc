// The products of types of super-blocks, for AVX-512. Quads, Scale and Minimum are as in matmul_block_avx512.cc.
// Products of d or dmin with a sub-scale are exact.
#include "kernels/cpu/matmul_avx512.h"

namespace layover {
namespace {

// The pairs of a block, each at bits `to` and to + 1 (0 or 4) of its byte.
void PairQuads(const uint8_t* pairs, int to, __m512i* quads) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(3 << to));
#pragma GCC unroll 2
  for (int t = 0; t < 2; ++t) {
    const __m512i four = _mm512_loadu_si512(pairs + t * kQuadBytes);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const int right = 2 * s - to;
      const __m512i shifted = right >= 0 ? _mm512_srli_epi16(four, right) : _mm512_slli_epi16(four, -right);
      quads[4 * t + s] = _mm512_and_si512(shifted, mask);
    }
  }
}

__m512 SignedBytes(const uint8_t* bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
}
__m512 UnsignedBytes(const uint8_t* bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
}
__m512 Negated(__m512 x) {
  return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

struct Q2_K {
  using Layout = Q2_KLayout;
  static constexpr bool kMinimum = true;
  explicit Q2_K(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const { PairQuads(block + Layout::kPairs, 0, quads); }
  static __m512i Both(const uint8_t* block, int g) {  // sc | m << 4
    const uint8_t* at = block + Layout::kScales + g * kTileRows;
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  __m512 Scale(const uint8_t* super, const uint8_t* block, int g) const {
    const __m512i sc = _mm512_and_si512(Both(block, g), _mm512_set1_epi32(15));
    return _mm512_mul_ps(Halves(super), _mm512_cvtepi32_ps(sc));
  }
  __m512 Minimum(const uint8_t* super, const uint8_t* block, int g) const {
    const __m512 m = _mm512_cvtepi32_ps(_mm512_srli_epi32(Both(block, g), 4));
    return Negated(_mm512_mul_ps(Halves(super + Layout::kHeaderMinima), m));
  }
};

struct Q4_K {
  using Layout = Q4_KLayout;
  static constexpr bool kMinimum = true;
  explicit Q4_K(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const { NibbleQuads(block, quads); }
  __m512 Scale(const uint8_t* super, const uint8_t* block, int) const {
    return _mm512_mul_ps(Halves(super), UnsignedBytes(block + Layout::kScales));
  }
  __m512 Minimum(const uint8_t* super, const uint8_t* block, int) const {
    return Negated(_mm512_mul_ps(Halves(super + Layout::kHeaderMinima), UnsignedBytes(block + Layout::kMinima)));
  }
};

struct Q5_K {
  using Layout = Q5_KLayout;
  static constexpr bool kMinimum = true;
  explicit Q5_K(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const {
    NibbleQuads(block, quads);
    JoinBits(block + Layout::kBits, 4, quads);
  }
  __m512 Scale(const uint8_t* super, const uint8_t* block, int) const {
    return _mm512_mul_ps(Halves(super), UnsignedBytes(block + Layout::kScales));
  }
  __m512 Minimum(const uint8_t* super, const uint8_t* block, int) const {
    return Negated(_mm512_mul_ps(Halves(super + Layout::kHeaderMinima), UnsignedBytes(block + Layout::kMinima)));
  }
};

struct Q6_K {
  using Layout = Q6_KLayout;
  static constexpr bool kMinimum = false;
  explicit Q6_K(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const {
    __m512i high[kQuads];
    NibbleQuads(block, quads);
    PairQuads(block + Layout::kPairs, 4, high);
#pragma GCC unroll 8
    for (int s = 0; s < kQuads; ++s) quads[s] = _mm512_or_si512(quads[s], high[s]);
    AddToQuads(128 - 32, quads);
  }
  __m512 Scale(const uint8_t* super, const uint8_t* block, int g) const {
    return _mm512_mul_ps(Halves(super), SignedBytes(block + Layout::kScales + g * kTileRows));
  }
};

// What Table3 and Table4 share.
template <class LayoutIn>
struct Table {
  using Layout = LayoutIn;
  static constexpr bool kMinimum = false;
  __m512i table;
  __m512 step;
  explicit Table(const MatMulJob& job) : table(OffsetTable(job.table)), step(_mm512_set1_ps(job.step)) {}
  __m512 Scale(const uint8_t* super, const uint8_t* block, int g) const {
    return _mm512_mul_ps(_mm512_mul_ps(Halves(super), step), SignedBytes(block + Layout::kScales + g * kTileRows));
  }
};

struct Table3 : Table<Table3Layout> {
  using Table::Table;
  void Quads(const uint8_t* block, __m512i* quads) const {
    PairQuads(block + Layout::kPairs, 0, quads);
    JoinBits(block + Layout::kBits, 2, quads);
    LookUp(table, quads);
  }
};

struct Table4 : Table<Table4Layout> {
  using Table::Table;
  void Quads(const uint8_t* block, __m512i* quads) const {
    NibbleQuads(block, quads);
    LookUp(table, quads);
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

const MatMulKernels kMatMulSuperAvx512 = Kernels();

}  // namespace layover
