// The products of types whose blocks of 32 stand alone, for AVX2. Quad: the weight's own signed integers, quad s in two
// registers. Scale and Minimum: of group g, outputs [8 * half, 8 * half + 8).
#include "kernels/cpu/matmul_avx2.h"

namespace layover {
namespace {

struct Q4_0 {
  using Layout = Q4_0Layout;
  static constexpr bool kMinimum = false;
  __m256i table;
  explicit Q4_0(const MatMulJob& job) : table(Table16(job.table)) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    NibbleQuad(block, s, quad);
    LookUp(table, quad);
  }
  __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kScales + 16 * half);
  }
};

struct Mxfp4 : Q4_0 {
  using Q4_0::Q4_0;
  __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) const {
    const __m256i bits = _mm256_cvtepu16_epi32(Load16(block + Layout::kScales + 16 * half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
};

struct Q4_1 {
  using Layout = Q4_1Layout;
  static constexpr bool kMinimum = true;
  explicit Q4_1(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const { NibbleQuad(block, s, quad); }
  __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kScales + 16 * half);
  }
  __m256 Minimum(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kMinima + 16 * half);
  }
};

struct Q5_0 {
  using Layout = Q5_0Layout;
  static constexpr bool kMinimum = false;
  explicit Q5_0(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    NibbleQuad(block, s, quad);
    JoinBit(block + Layout::kBits, s, 4, quad);
    Subtract(16, quad);
  }
  __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kScales + 16 * half);
  }
};

struct Q5_1 {
  using Layout = Q5_1Layout;
  static constexpr bool kMinimum = true;
  explicit Q5_1(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    NibbleQuad(block, s, quad);
    JoinBit(block + Layout::kBits, s, 4, quad);
  }
  __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kScales + 16 * half);
  }
  __m256 Minimum(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kMinima + 16 * half);
  }
};

struct Q8_0 {
  using Layout = Q8_0Layout;
  static constexpr bool kMinimum = false;
  explicit Q8_0(const MatMulJob&) {}
  void Quad(const uint8_t* block, int s, __m256i* quad) const {
    for (int half = 0; half < 2; ++half) quad[half] = Load32(block + s * kQuadBytes + 32 * half);
    Subtract(-128, quad);  // modulo 256 the same as taking off the 128 that packing added
  }
  __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) const {
    return Halves(block + Layout::kScales + 16 * half);
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

const MatMulKernels kMatMulBlockAvx2 = Kernels();

}  // namespace layover
