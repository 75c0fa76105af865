// The products of integer types for AVX2 and FMA, as templates over what a kind of weight has; a kind's struct stands
// in matmul_block_avx2.cc or matmul_super_avx2.cc. A lane is an output; per lane the operations and their order are
// those of matmul_scalar.cc.
//
// VPMADDWD multiplies signed 16-bit values and adds pairs into int32, exactly. So weights are widened to 16 bits, a
// tile at a time (a "panel" in scratch), and the two halves of the activations are joined again, once per call. An
// accumulator then holds two partial sums for each of four outputs; adding neighbours at the end of a group leaves the
// outputs in the order 0 1 4 5 2 3 6 7, which scales and sums keep until they are stored.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_AVX2_H_
#define LAYOVER_KERNELS_CPU_MATMUL_AVX2_H_

#include <immintrin.h>

#include "kernels/cpu/matmul_avx2_common.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kQuads = 8;     // of a block: quad s holds columns 4s .. 4s + 3
constexpr int kQuartets = 4;  // of a quad: four outputs, 16 bytes packed and 32 in the panel

__m256i Load32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Between order 0 1 2 3 4 5 6 7 and 0 1 4 5 2 3 6 7, either way.
__m256 Reorder(__m256 v) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}

// Bytes 0 .. 63 of quad s as signed integers, in two registers.
void NibbleQuad(const uint8_t* nibbles, int s, __m256i* quad) {
  for (int half = 0; half < 2; ++half) {
    __m256i both = Load32(nibbles + s % 4 * kQuadBytes + 32 * half);
    if (s >= 4) both = _mm256_srli_epi16(both, 4);
    quad[half] = _mm256_and_si256(both, _mm256_set1_epi8(15));
  }
}

void Subtract(int offset, __m256i* quad) {
  for (int half = 0; half < 2; ++half) {
    quad[half] = _mm256_sub_epi8(quad[half], _mm256_set1_epi8(static_cast<char>(offset)));
  }
}

// Joins bit s of a block's bits at bit `to` of quad s.
void JoinBit(const uint8_t* bits, int s, int to, __m256i* quad) {
  for (int half = 0; half < 2; ++half) {
    const __m256i shifted = _mm256_srl_epi16(Load32(bits + 32 * half), _mm_cvtsi32_si128(s));
    const __m256i bit = _mm256_and_si256(shifted, _mm256_set1_epi8(1));
    quad[half] = _mm256_or_si256(quad[half], _mm256_sll_epi16(bit, _mm_cvtsi32_si128(to)));
  }
}

__m256i Table16(const int8_t* table) {
  return _mm256_broadcastsi128_si256(Load16(table));
}

void LookUp(__m256i table, __m256i* quad) {
  for (int half = 0; half < 2; ++half) quad[half] = _mm256_shuffle_epi8(table, quad[half]);
}

// How blocks of a kind are added up; what is left of a kind once its blocks are unpacked.
template <int kGroupsIn, bool kMinimumIn>
struct Sums {
  static constexpr int kGroups = kGroupsIn;  // of a block, each with a scale
  static constexpr int kGroupQuads = kQuads / kGroups;
  static constexpr bool kMinimum = kMinimumIn;
};
template <class W>
using SumsOf = Sums<kBlockCols / W::Layout::kGroup, W::kMinimum>;

// A panel: per block, int16 [8 quads][16 outputs][4 columns], f32 scales [kGroups][16], minima [kGroups][16] where the
// kind has them.
inline constexpr int kPanelScales = kQuads * kQuartets * 32;
template <class S>
inline constexpr int kPanelMinima = kPanelScales + S::kGroups* kTileRows * 4;
template <class S>
inline constexpr int kPanelBlockBytes = kPanelMinima<S> + (S::kMinimum ? S::kGroups * kTileRows * 4 : 0);
static_assert(kPanelBlockBytes<Sums<2, true>> <= 48 * kBlockCols);

void StoreFloats(uint8_t* p, __m256 v) {
  _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
}

template <class W>
void Unpack(const MatMulJob& job, int tile, uint8_t* panel) {
  using Layout = typename W::Layout;
  using S = SumsOf<W>;
  const W weight(job);
  const uint8_t* super = job.tiles + tile * job.tile_bytes;
  for (int b = 0; b < job.cols / kBlockCols; ++b, panel += kPanelBlockBytes<S>) {
    const uint8_t* block = super + Layout::kHeaderBytes + b % Layout::kBlocksPerSuper * Layout::kBlockBytes;
    for (int line = 0; line < Layout::kBlockBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(block + kPrefetchBytes + line), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int s = 0; s < kQuads; ++s) {
      __m256i quad[2];
      weight.Quad(block, s, quad);
      auto* out = reinterpret_cast<__m256i*>(panel + s * kQuartets * 32);
      _mm256_storeu_si256(out, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(quad[0])));
      _mm256_storeu_si256(out + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(quad[0], 1)));
      _mm256_storeu_si256(out + 2, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(quad[1])));
      _mm256_storeu_si256(out + 3, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(quad[1], 1)));
    }
    for (int half = 0; half < 2; ++half) {
      for (int g = 0; g < S::kGroups; ++g) {
        const int at = (g * kTileRows + 8 * half) * 4;
        StoreFloats(panel + kPanelScales + at, Reorder(weight.Scale(super, block, g, half)));
        if constexpr (S::kMinimum) {
          StoreFloats(panel + kPanelMinima<S> + at, Reorder(weight.Minimum(super, block, g, half)));
        }
      }
    }
    if ((b + 1) % Layout::kBlocksPerSuper == 0) super += kSuperBytes<Layout>;
  }
}

// ------------------------------------------------------------------------------------------------------ integer types

// The 16-bit values of all rows, [n_rows][cols].
void JoinHalves(const MatMulJob& job, int16_t* values) {
  for (int row = 0; row < job.n_rows; ++row) {
    const uint8_t* halves = job.x + row * job.x_row_bytes;
    for (int k = 0; k < job.cols; k += 16) {
      const uint8_t* at = halves + k / kBlockCols * kA16ValueBytes + k % kBlockCols;
      const __m256i high = _mm256_cvtepi8_epi16(Load16(at));
      const __m256i low = _mm256_cvtepi8_epi16(Load16(at + kBlockCols));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), _mm256_add_epi16(_mm256_slli_epi16(high, 8), low));
      values += 16;
    }
  }
}

__m256i BroadcastQuad(const int16_t* values) {
  int64_t quad;
  __builtin_memcpy(&quad, values, sizeof(quad));
  return _mm256_set1_epi64x(quad);
}

template <class S>
float ScaledSum(const A16Block& block, int g) {
  if (S::kGroups == 1) return block.scaled_sum;
  const int32_t sum_x128 = g == 0 ? block.first_half_x128 : block.sum_x128 - block.first_half_x128;
  return static_cast<float>(sum_x128 >> 7) * block.scale;
}

template <class S, int kRows>
void PanelTile(const MatMulJob& job, const int16_t* values, const uint8_t* panel, int tile, int row) {
  const int blocks = job.cols / kBlockCols;
  const int cols = job.cols;
  const int16_t* a = values + static_cast<size_t>(row) * cols;
  const auto* x_blocks = reinterpret_cast<const A16Block*>(job.x + row * job.x_row_bytes + blocks * kA16ValueBytes);
  const size_t x_block_stride = job.x_row_bytes / sizeof(A16Block);
  __m256 acc[kRows][2];
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();

  for (int b = 0; b < blocks; ++b, panel += kPanelBlockBytes<S>, a += kBlockCols, ++x_blocks) {
#pragma GCC unroll 2
    for (int g = 0; g < S::kGroups; ++g) {
      __m256i dot[kRows][kQuartets];
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int q = 0; q < kQuartets; ++q) dot[r][q] = _mm256_setzero_si256();
      }
#pragma GCC unroll 8
      for (int s = g * S::kGroupQuads; s < (g + 1) * S::kGroupQuads; ++s) {
        __m256i quad[kRows];
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) quad[r] = BroadcastQuad(a + r * static_cast<ptrdiff_t>(cols) + 4 * s);
#pragma GCC unroll 4
        for (int q = 0; q < kQuartets; ++q) {
          const __m256i w = Load32(panel + (s * kQuartets + q) * 32);
#pragma GCC unroll 2
          for (int r = 0; r < kRows; ++r) {
            dot[r][q] = _mm256_add_epi32(dot[r][q], _mm256_madd_epi16(w, quad[r]));
          }
        }
      }
      const auto* scales = reinterpret_cast<const float*>(panel + kPanelScales);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        const A16Block& block = x_blocks[r * x_block_stride];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256 sum = _mm256_cvtepi32_ps(_mm256_hadd_epi32(dot[r][2 * half], dot[r][2 * half + 1]));
          const __m256 scale = _mm256_loadu_ps(scales + g * kTileRows + 8 * half);
          acc[r][half] = _mm256_fmadd_ps(sum, _mm256_mul_ps(scale, _mm256_set1_ps(block.scale)), acc[r][half]);
          if constexpr (S::kMinimum) {
            const auto* minima = reinterpret_cast<const float*>(panel + kPanelMinima<S>);
            const __m256 minimum = _mm256_loadu_ps(minima + g * kTileRows + 8 * half);
            acc[r][half] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(ScaledSum<S>(block, g)), acc[r][half]);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m256 sums[2] = {Reorder(acc[r][0]), Reorder(acc[r][1])};
    StoreTile(job, row + r, tile, sums);
  }
}

template <class W>
void MatMulInteger(const MatMulJob& job) {
  auto* values = reinterpret_cast<int16_t*>(job.scratch);
  uint8_t* panel = job.scratch + static_cast<size_t>(job.n_rows) * job.cols * sizeof(int16_t);
  JoinHalves(job, values);
  for (int tile = job.tile_begin; tile < job.tile_end; ++tile) {
    Unpack<W>(job, tile, panel);
    int row = 0;
    for (; row + 2 <= job.n_rows; row += 2) PanelTile<SumsOf<W>, 2>(job, values, panel, tile, row);
    if (row < job.n_rows) PanelTile<SumsOf<W>, 1>(job, values, panel, tile, row);
  }
}

}  // namespace
}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_AVX2_H_
