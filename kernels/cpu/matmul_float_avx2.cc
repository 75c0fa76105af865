// The products of float types for AVX2: fma for every column ascending, a lane is an output.
#include "kernels/cpu/matmul_avx2_common.h"

namespace layover {
namespace {

struct F32 {
  static constexpr int kBytes = 4;
  static __m256 Load(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct F16 {
  static constexpr int kBytes = 2;
  static __m256 Load(const uint8_t* p) { return Halves(p); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  static __m256 Load(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load16(p)), 16));
  }
};

template <class W, int kRows>
void FloatTile(const MatMulJob& job, int tile, int row) {
  const uint8_t* weights = job.tiles + tile * job.tile_bytes;
  const uint8_t* x = job.x + row * job.x_row_bytes;
  const size_t x_row_bytes = job.x_row_bytes;
  __m256 acc[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
  for (int k = 0; k < job.cols; ++k, weights += kTileRows * W::kBytes, x += sizeof(float)) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + kPrefetchBytes), _MM_HINT_T0);
    const __m256 low = W::Load(weights);
    const __m256 high = W::Load(weights + 8 * W::kBytes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 a = _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * x_row_bytes));
      acc[r][0] = _mm256_fmadd_ps(low, a, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(high, a, acc[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) StoreTile(job, row + r, tile, acc[r]);
}

template <class W>
void MatMulFloat(const MatMulJob& job) {
  for (int tile = job.tile_begin; tile < job.tile_end; ++tile) {
    int row = 0;
    for (; row + 4 <= job.n_rows; row += 4) FloatTile<W, 4>(job, tile, row);
    for (; row < job.n_rows; ++row) FloatTile<W, 1>(job, tile, row);
  }
}

constexpr MatMulKernels Kernels() {
  MatMulKernels kernels;
  SetKernel(&kernels, PackedKind::kF32, MatMulFloat<F32>);
  SetKernel(&kernels, PackedKind::kF16, MatMulFloat<F16>);
  SetKernel(&kernels, PackedKind::kBF16, MatMulFloat<BF16>);
  kernels.scratch_bytes = ScratchBytes;
  return kernels;
}

}  // namespace

const MatMulKernels kMatMulFloatAvx2 = Kernels();

}  // namespace layover
