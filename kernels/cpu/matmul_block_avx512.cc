// The products of types whose blocks of 32 stand alone, for AVX-512. Quads: 8 quads of unsigned bytes, each the
// weight's integer plus 128, or as it is where there is a minimum. Scale and Minimum: of group g of the block, 16
// lanes.
#include "kernels/cpu/matmul_avx512.h"

namespace layover {
namespace {

struct Q4_0 {
  using Layout = Q4_0Layout;
  static constexpr bool kMinimum = false;
  __m512i table;
  explicit Q4_0(const MatMulJob& job) : table(OffsetTable(job.table)) {}
  void Quads(const uint8_t* block, __m512i* quads) const {
    NibbleQuads(block, quads);
    LookUp(table, quads);
  }
  __m512 Scale(const uint8_t*, const uint8_t* block, int) const { return Halves(block + Layout::kScales); }
};

struct Mxfp4 : Q4_0 {
  using Q4_0::Q4_0;
  __m512 Scale(const uint8_t*, const uint8_t* block, int) const {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + Layout::kScales));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};

struct Q4_1 {
  using Layout = Q4_1Layout;
  static constexpr bool kMinimum = true;
  explicit Q4_1(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const { NibbleQuads(block, quads); }
  __m512 Scale(const uint8_t*, const uint8_t* block, int) const { return Halves(block + Layout::kScales); }
  __m512 Minimum(const uint8_t*, const uint8_t* block, int) const { return Halves(block + Layout::kMinima); }
};

struct Q5_0 {
  using Layout = Q5_0Layout;
  static constexpr bool kMinimum = false;
  explicit Q5_0(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const {
    NibbleQuads(block, quads);
    JoinBits(block + Layout::kBits, 4, quads);
    AddToQuads(128 - 16, quads);
  }
  __m512 Scale(const uint8_t*, const uint8_t* block, int) const { return Halves(block + Layout::kScales); }
};

struct Q5_1 {
  using Layout = Q5_1Layout;
  static constexpr bool kMinimum = true;
  explicit Q5_1(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const {
    NibbleQuads(block, quads);
    JoinBits(block + Layout::kBits, 4, quads);
  }
  __m512 Scale(const uint8_t*, const uint8_t* block, int) const { return Halves(block + Layout::kScales); }
  __m512 Minimum(const uint8_t*, const uint8_t* block, int) const { return Halves(block + Layout::kMinima); }
};

struct Q8_0 {
  using Layout = Q8_0Layout;
  static constexpr bool kMinimum = false;
  explicit Q8_0(const MatMulJob&) {}
  void Quads(const uint8_t* block, __m512i* quads) const {
#pragma GCC unroll 8
    for (int s = 0; s < kQuads; ++s) quads[s] = _mm512_loadu_si512(block + s * kQuadBytes);
  }
  __m512 Scale(const uint8_t*, const uint8_t* block, int) const {
    return Halves(block + Layout::kScales);
  }
};

constexpr MatMulKernels Kernels() {
  MatMulKernels kernels;
  SetKernel(&kernels, PackedKind::kQ4_0, MatMulInteger<Q4_0>);
  SetKernel(&kernels, PackedKind::kMxfp4, MatMulInteger<Mxfp4>);
  SetKernel(&kernels, PackedKind::kQ4_1, MatMulInteger<Q4_1>);
  SetKernel(&kernels, PackedKind::kQ5_0, MatMulInteger<Q5_0>);
  SetKernel(&kernels, PackedKind::kQ5_1, MatMulInteger<Q5_1>);
  SetKernel(&kernels, PackedKind::kQ8_0, MatMulInteger<Q8_0>);
  kernels.scratch_bytes = ScratchBytes;
  return kernels;
}

}  // namespace

const MatMulKernels kMatMulBlockAvx512 = Kernels();

}  // namespace layover
