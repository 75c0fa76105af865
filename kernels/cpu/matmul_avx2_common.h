// What every AVX2 product needs.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_AVX2_COMMON_H_
#define LAYOVER_KERNELS_CPU_MATMUL_AVX2_COMMON_H_

#include <immintrin.h>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kPrefetchBytes = 2560;

__m128i Load16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

__m256 Halves(const uint8_t* halves) {
  return _mm256_cvtph_ps(Load16(halves));
}

void StoreTile(const MatMulJob& job, int row, int tile, const __m256* acc) {
  const int first = tile * kTileRows;
  const ptrdiff_t at = (job.out_rows == nullptr ? row : job.out_rows[row]) * job.out_stride + first;
  if (job.n_out - first >= kTileRows) {
    for (int half = 0; half < 2; ++half) {
      __m256 sum = acc[half];
      if (job.bias != nullptr) sum = _mm256_add_ps(sum, _mm256_loadu_ps(job.bias + first + 8 * half));
      if (job.residual != nullptr) sum = _mm256_add_ps(sum, _mm256_loadu_ps(job.residual + at + 8 * half));
      _mm256_storeu_ps(job.out + at + 8 * half, sum);
    }
    return;
  }
  float sums[kTileRows];
  _mm256_storeu_ps(sums, acc[0]);
  _mm256_storeu_ps(sums + 8, acc[1]);
  for (int o = 0; o < job.n_out - first; ++o) {
    if (job.bias != nullptr) sums[o] += job.bias[first + o];
    if (job.residual != nullptr) sums[o] += job.residual[at + o];
    job.out[at + o] = sums[o];
  }
}

// The joined activations, and a panel of one tile with all that a kind may have, per column.
size_t ScratchBytes(int n_rows, int cols) {
  return static_cast<size_t>(cols) * (static_cast<size_t>(n_rows) * sizeof(int16_t) + 48);
}

}  // namespace
}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_AVX2_COMMON_H_
