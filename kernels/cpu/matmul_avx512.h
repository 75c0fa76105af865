// The products of integer types for AVX-512 with VNNI, as templates over what a kind of weight has; a kind's struct
// stands in matmul_block_avx512.cc or matmul_super_avx512.cc (two files, so that they compile side by side). A lane is
// an output; per lane the operations and their order are those of matmul_scalar.cc.
//
// VPDPBUSD multiplies unsigned by signed bytes, so weights are the unsigned side: those with a minimum as they are,
// others with 128 added, which is taken off again with 128 * sum(a), exactly, in int32. A 16-bit activation is 256 *
// high
// + low: the dot with the highs, shifted left by 8, goes on with the lows. All of it fits int32 (255 * 32639 * 32 <
// 2^31).
//
// Few rows: straight from the packed blocks, which come from memory once. Many rows: two tiles are unpacked into
// scratch (a "panel") and met by six rows at a time, which is as many accumulators as there are registers.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_AVX512_H_
#define LAYOVER_KERNELS_CPU_MATMUL_AVX512_H_

#include "kernels/cpu/matmul_avx512_common.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kQuads = 8;  // of a block: quad s holds columns 4s .. 4s + 3
constexpr int kPanelRows = 6;
constexpr int kDirectRows = 11;  // up to here, rows read packed blocks directly; measured
// The nibbles of a block as eight quads of bytes.
void NibbleQuads(const uint8_t* nibbles, __m512i* quads) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i both = _mm512_loadu_si512(nibbles + i * kQuadBytes);
    quads[i] = _mm512_and_si512(both, mask);
    quads[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
  }
}

// Joins bit k of a block at bit `to` of each byte.
void JoinBits(const uint8_t* bits, int to, __m512i* quads) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(1 << to));
  const __m512i eight = _mm512_loadu_si512(bits);
#pragma GCC unroll 8
  for (int s = 0; s < kQuads; ++s) {
    const int right = s - to;
    const __m512i shifted = right >= 0 ? _mm512_srli_epi16(eight, right) : _mm512_slli_epi16(eight, -right);
    quads[s] = _mm512_or_si512(quads[s], _mm512_and_si512(shifted, mask));
  }
}

void AddToQuads(int value, __m512i* quads) {
#pragma GCC unroll 8
  for (int s = 0; s < kQuads; ++s) quads[s] = _mm512_add_epi8(quads[s], _mm512_set1_epi8(static_cast<char>(value)));
}

// 16 values with 128 added, in each part of a register.
__m512i OffsetTable(const int8_t* table) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(-128)));
}

void LookUp(__m512i table, __m512i* quads) {
#pragma GCC unroll 8
  for (int s = 0; s < kQuads; ++s) quads[s] = _mm512_shuffle_epi8(table, quads[s]);
}

// How blocks of a kind are added up; what is left of a kind once its blocks are unpacked.
template <int kGroupsIn, bool kMinimumIn>
struct Sums {
  static constexpr int kGroups = kGroupsIn;  // of a block, each with a scale
  static constexpr int kGroupQuads = kQuads / kGroups;
  static constexpr bool kMinimum = kMinimumIn;  // else the 128 is added to weights
};
template <class W>
using SumsOf = Sums<kBlockCols / W::Layout::kGroup, W::kMinimum>;

// ------------------------------------------------------------------------------------------------- sums of one output

template <class S>
int32_t SumX128(const A16Block& block, int g) {
  if (S::kGroups == 1) return block.sum_x128;
  return g == 0 ? block.first_half_x128 : block.sum_x128 - block.first_half_x128;
}

template <class S>
float ScaledSum(const A16Block& block, int g) {
  if (S::kGroups == 1) return block.scaled_sum;
  return static_cast<float>(SumX128<S>(block, g) >> 7) * block.scale;
}

// The step of the contract for one group: dot is sum(w * a), with the added 128 still in it.
template <class S>
__m512 AddGroup(__m512i dot, __m512 scale, __m512 minimum, const A16Block& block, int g, __m512 acc) {
  if (!S::kMinimum) dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(SumX128<S>(block, g)));
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, _mm512_set1_ps(block.scale)), acc);
  if (S::kMinimum) acc = _mm512_fmadd_ps(minimum, _mm512_set1_ps(ScaledSum<S>(block, g)), acc);
  return acc;
}

// ----------------------------------------------------------------------------------------------------------- few rows

// kRows rows from `row` on, one tile.
template <class W, int kRows>
void DirectTile(const MatMulJob& job, int tile, int row) {
  using Layout = typename W::Layout;
  using S = SumsOf<W>;
  const W weight(job);
  const int blocks = job.cols / kBlockCols;
  const uint8_t* super = job.tiles + tile * job.tile_bytes;
  const uint8_t* x = job.x + row * job.x_row_bytes;
  const auto* x_blocks = reinterpret_cast<const A16Block*>(x + blocks * kA16ValueBytes);
  const size_t x_block_stride = job.x_row_bytes / sizeof(A16Block);
  __m512 acc[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();

  for (int b = 0; b < blocks; ++b) {
    const uint8_t* block = super + Layout::kHeaderBytes + b % Layout::kBlocksPerSuper * Layout::kBlockBytes;
#pragma GCC unroll 16
    for (int line = 0; line < Layout::kBlockBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(block + kPrefetchBytes + line), _MM_HINT_T0);
    }
    __m512i quads[kQuads];
    weight.Quads(block, quads);
#pragma GCC unroll 2
    for (int g = 0; g < S::kGroups; ++g) {
      const __m512 scale = weight.Scale(super, block, g);
      __m512 minimum = _mm512_setzero_ps();
      if constexpr (W::kMinimum) minimum = weight.Minimum(super, block, g);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* values = x + r * job.x_row_bytes + b * kA16ValueBytes + g * Layout::kGroup;
        __m512i high = _mm512_setzero_si512();
        __m512i low = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int s = 0; s < S::kGroupQuads; ++s) {
          const __m512i quad = quads[g * S::kGroupQuads + s];
          high = _mm512_dpbusd_epi32(high, quad, BroadcastQuad(values + 4 * s));
          low = _mm512_dpbusd_epi32(low, quad, BroadcastQuad(values + kBlockCols + 4 * s));
        }
        const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
        acc[r] = AddGroup<S>(dot, scale, minimum, x_blocks[r * x_block_stride + b], g, acc[r]);
      }
    }
    if ((b + 1) % Layout::kBlocksPerSuper == 0) super += kSuperBytes<Layout>;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) StoreTile(job, row + r, tile, acc[r]);
}

template <class W>
void DirectRows(const MatMulJob& job, int tile) {
  int row = 0;
  for (; row + 6 <= job.n_rows; row += 6) DirectTile<W, 6>(job, tile, row);
  switch (job.n_rows - row) {
    case 5:
      return DirectTile<W, 5>(job, tile, row);
    case 4:
      return DirectTile<W, 4>(job, tile, row);
    case 3:
      return DirectTile<W, 3>(job, tile, row);
    case 2:
      return DirectTile<W, 2>(job, tile, row);
    case 1:
      return DirectTile<W, 1>(job, tile, row);
    default:
      return;
  }
}

// ---------------------------------------------------------------------------------------------------------- many rows

// A panel is kTiles unpacked tiles, block after block: quads [8][kTiles][64], f32 scales [kGroups][kTiles][16], then
// minima [kGroups][kTiles][16] where the kind has them.
template <int kTiles>
inline constexpr int kPanelScales = kQuads* kTiles* kQuadBytes;
template <class S, int kTiles>
inline constexpr int kPanelMinima = kPanelScales<kTiles> + S::kGroups* kTiles * 64;
template <class S, int kTiles>
inline constexpr int kPanelBlockBytes = kPanelMinima<S, kTiles> + (S::kMinimum ? S::kGroups * kTiles * 64 : 0);
static_assert(kPanelBlockBytes<Sums<2, true>, 2> <= 48 * kBlockCols);

template <class W, int kTiles>
void Unpack(const MatMulJob& job, int first_tile) {
  using Layout = typename W::Layout;
  using S = SumsOf<W>;
  const W weight(job);
  for (int t = 0; t < kTiles; ++t) {
    const uint8_t* super = job.tiles + (first_tile + t) * job.tile_bytes;
    uint8_t* panel = job.scratch;
    for (int b = 0; b < job.cols / kBlockCols; ++b, panel += kPanelBlockBytes<S, kTiles>) {
      const uint8_t* block = super + Layout::kHeaderBytes + b % Layout::kBlocksPerSuper * Layout::kBlockBytes;
      __m512i quads[kQuads];
      weight.Quads(block, quads);
#pragma GCC unroll 8
      for (int s = 0; s < kQuads; ++s) _mm512_store_si512(panel + (s * kTiles + t) * kQuadBytes, quads[s]);
      uint8_t* scales = panel + kPanelScales<kTiles> + t * 64;
      uint8_t* minima = panel + kPanelMinima<S, kTiles> + t * 64;
#pragma GCC unroll 2
      for (int g = 0; g < S::kGroups; ++g) {
        _mm512_store_ps(scales + g * kTiles * 64, weight.Scale(super, block, g));
        if constexpr (S::kMinimum) _mm512_store_ps(minima + g * kTiles * 64, weight.Minimum(super, block, g));
      }
      if ((b + 1) % Layout::kBlocksPerSuper == 0) super += kSuperBytes<Layout>;
    }
  }
}

// Six rows from `row` on times the panel; stores those from `store_from` on. So the last six rows may overlap rows that
// are done, which must not be stored twice: a residual that is the output would be added twice.
template <class S, int kTiles>
void PanelTile(const MatMulJob& job, int first_tile, int row, int store_from) {
  constexpr int R = kPanelRows;
  const int blocks = job.cols / kBlockCols;
  const uint8_t* panel = job.scratch;
  const uint8_t* x = job.x + row * job.x_row_bytes;
  const auto* x_blocks = reinterpret_cast<const A16Block*>(x + blocks * kA16ValueBytes);
  const size_t x_row_bytes = job.x_row_bytes;
  const size_t x_block_stride = x_row_bytes / sizeof(A16Block);
  __m512 acc[R][kTiles];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) acc[r][t] = _mm512_setzero_ps();
  }
  for (int b = 0; b < blocks; ++b, panel += kPanelBlockBytes<S, kTiles>, x += kA16ValueBytes, ++x_blocks) {
#pragma GCC unroll 2
    for (int g = 0; g < S::kGroups; ++g) {
      __m512i dot[R][kTiles];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) dot[r][t] = _mm512_setzero_si512();
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
        for (int s = g * S::kGroupQuads; s < (g + 1) * S::kGroupQuads; ++s) {
          __m512i quad[kTiles];
#pragma GCC unroll 2
          for (int t = 0; t < kTiles; ++t) quad[t] = _mm512_load_si512(panel + (s * kTiles + t) * kQuadBytes);
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) {
            const __m512i a = BroadcastQuad(x + r * x_row_bytes + half * kBlockCols + 4 * s);
#pragma GCC unroll 2
            for (int t = 0; t < kTiles; ++t) dot[r][t] = _mm512_dpbusd_epi32(dot[r][t], quad[t], a);
          }
        }
        if (half == 1) continue;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
          for (int t = 0; t < kTiles; ++t) dot[r][t] = _mm512_slli_epi32(dot[r][t], 8);
        }
      }
      const uint8_t* scales = panel + kPanelScales<kTiles>;
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) {
        const __m512 scale = _mm512_load_ps(scales + (g * kTiles + t) * 64);
        __m512 minimum = _mm512_setzero_ps();
        if constexpr (S::kMinimum) {
          minimum = _mm512_load_ps(panel + kPanelMinima<S, kTiles> + (g * kTiles + t) * 64);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          acc[r][t] = AddGroup<S>(dot[r][t], scale, minimum, x_blocks[r * x_block_stride], g, acc[r][t]);
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    if (row + r < store_from) continue;
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) StoreTile(job, row + r, first_tile + t, acc[r][t]);
  }
}

template <class W, int kTiles>
void PanelRows(const MatMulJob& job, int first_tile) {
  Unpack<W, kTiles>(job, first_tile);
  int row = 0;
  for (; row + kPanelRows <= job.n_rows; row += kPanelRows) PanelTile<SumsOf<W>, kTiles>(job, first_tile, row, row);
  if (row < job.n_rows) PanelTile<SumsOf<W>, kTiles>(job, first_tile, job.n_rows - kPanelRows, row);
}

template <class W>
void MatMulInteger(const MatMulJob& job) {
  int tile = job.tile_begin;
  if (job.n_rows <= kDirectRows) {
    for (; tile < job.tile_end; ++tile) DirectRows<W>(job, tile);
    return;
  }
  for (; tile + 2 <= job.tile_end; tile += 2) PanelRows<W, 2>(job, tile);
  if (tile < job.tile_end) PanelRows<W, 1>(job, tile);
}

}  // namespace
}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_AVX512_H_
