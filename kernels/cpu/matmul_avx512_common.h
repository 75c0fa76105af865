// What every AVX-512 product needs.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_AVX512_COMMON_H_
#define LAYOVER_KERNELS_CPU_MATMUL_AVX512_COMMON_H_

// g++ 12 takes the intrinsics' own "any value will do" operands for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kPrefetchBytes = 2560;  // how far ahead of the packed block in hand; measured, 4096 costs 8 %

__m512i BroadcastQuad(const uint8_t* values) {
  int32_t quad;
  __builtin_memcpy(&quad, values, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

__m512 Halves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

void StoreTile(const MatMulJob& job, int row, int tile, __m512 acc) {
  const int first = tile * kTileRows;
  const int outputs = job.n_out - first < kTileRows ? job.n_out - first : kTileRows;
  const auto mask = static_cast<__mmask16>((1u << outputs) - 1);
  const ptrdiff_t at = (job.out_rows == nullptr ? row : job.out_rows[row]) * job.out_stride + first;
  if (job.bias != nullptr) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, job.bias + first));
  if (job.residual != nullptr) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, job.residual + at));
  _mm512_mask_storeu_ps(job.out + at, mask, acc);
}

// Of a panel of two tiles with all that a kind may have, per column.
size_t ScratchBytes(int, int cols) {
  return static_cast<size_t>(cols) * 48;
}

}  // namespace
}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_AVX512_COMMON_H_
