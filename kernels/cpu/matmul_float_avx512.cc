// The products of float types for AVX-512: fma for every column ascending, a lane is an output.
#include "kernels/cpu/matmul_avx512_common.h"

namespace layover {
namespace {

struct F32 {
  static constexpr int kBytes = 4;
  static __m512 Load(const uint8_t* p) { return _mm512_loadu_ps(p); }
};
struct F16 {
  static constexpr int kBytes = 2;
  static __m512 Load(const uint8_t* p) { return Halves(p); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  static __m512 Load(const uint8_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};

template <class W, int kRows, int kTiles>
void FloatTile(const MatMulJob& job, int first_tile, int row) {
  const uint8_t* weights = job.tiles + first_tile * job.tile_bytes;
  const uint8_t* x = job.x + row * job.x_row_bytes;
  const size_t tile_bytes = job.tile_bytes;
  const size_t x_row_bytes = job.x_row_bytes;
  __m512 acc[kRows][kTiles];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) acc[r][t] = _mm512_setzero_ps();
  }
  for (int k = 0; k < job.cols; ++k, weights += kTileRows * W::kBytes, x += sizeof(float)) {
    __m512 w[kTiles];
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      w[t] = W::Load(weights + t * tile_bytes);
      _mm_prefetch(reinterpret_cast<const char*>(weights + t * tile_bytes + kPrefetchBytes), _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 a = _mm512_castsi512_ps(BroadcastQuad(x + r * x_row_bytes));
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) acc[r][t] = _mm512_fmadd_ps(w[t], a, acc[r][t]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) StoreTile(job, row + r, first_tile + t, acc[r][t]);
  }
}

template <class W, int kTiles>
void FloatRows(const MatMulJob& job, int first_tile) {
  int row = 0;
  for (; row + 6 <= job.n_rows; row += 6) FloatTile<W, 6, kTiles>(job, first_tile, row);
  for (; row + 2 <= job.n_rows; row += 2) FloatTile<W, 2, kTiles>(job, first_tile, row);
  if (row < job.n_rows) FloatTile<W, 1, kTiles>(job, first_tile, row);
}

template <class W>
void MatMulFloat(const MatMulJob& job) {
  int tile = job.tile_begin;
  for (; tile + 2 <= job.tile_end; tile += 2) FloatRows<W, 2>(job, tile);
  if (tile < job.tile_end) FloatRows<W, 1>(job, tile);
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

const MatMulKernels kMatMulFloatAvx512 = Kernels();

}  // namespace layover
