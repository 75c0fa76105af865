// The products for AVX-512 with VNNI. A lane is an output; per lane the operations and their order are those of
// matmul_scalar.cc.
//
// VPDPBUSD multiplies unsigned by signed bytes, so weights are the unsigned side: four-bit ones as they are, signed
// ones with 128 added, which is taken off again with 128 * sum(a), exactly, in int32. A 16-bit activation is 256 * high
// + low: the dot with the highs, shifted left by 8, goes on with the lows. All of it fits int32 (255 * 32639 * 32 <
// 2^31).
//
// Few rows: straight from the packed blocks, which come from memory once. Many rows: two tiles are unpacked into
// scratch (a "panel") and met by six rows at a time, which is as many accumulators as there are registers.
#include <immintrin.h>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kQuads = 8;  // of a block: quad s holds columns 4s .. 4s + 3
constexpr int kPanelRows = 6;
constexpr int kDirectRows = 11;       // up to here, rows read packed blocks directly; measured
constexpr int kPrefetchBytes = 2560;  // how far ahead of the packed block in hand; measured, 4096 costs 8 %

__m512i BroadcastQuad(const uint8_t* values) {
  int32_t quad;
  __builtin_memcpy(&quad, values, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

__m512 Halves(const uint8_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

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

// ------------------------------------------------------------------------------------------- what a weight type has
// Quads: 8 quads of unsigned bytes, each the weight's integer plus 128 (kOffset) or as it is. Scale and Minimum: of
// group g of the block, 16 lanes.

struct Q4_1 {
  using Layout = Q4_1Layout;
  static constexpr bool kMinimum = true, kOffset = false;
  static void Quads(const uint8_t* block, __m512i* quads) { NibbleQuads(block, quads); }
  static __m512 Scale(const uint8_t*, const uint8_t* block, int) { return Halves(block + Layout::kScales); }
  static __m512 Minimum(const uint8_t*, const uint8_t* block, int) { return Halves(block + Layout::kMinima); }
};

struct Q4_0 {
  using Layout = Q4_0Layout;
  static constexpr bool kMinimum = false, kOffset = true;
  static void Quads(const uint8_t* block, __m512i* quads) {
    NibbleQuads(block, quads);
    const __m512i offset = _mm512_set1_epi8(128 - 8);
#pragma GCC unroll 8
    for (int s = 0; s < kQuads; ++s) quads[s] = _mm512_add_epi8(quads[s], offset);
  }
  static __m512 Scale(const uint8_t*, const uint8_t* block, int) {
    return Halves(block + Layout::kScales);
  }
};

struct Q8_0 {
  using Layout = Q8_0Layout;
  static constexpr bool kMinimum = false, kOffset = true;
  static void Quads(const uint8_t* block, __m512i* quads) {
#pragma GCC unroll 8
    for (int s = 0; s < kQuads; ++s) quads[s] = _mm512_loadu_si512(block + s * kQuadBytes);
  }
  static __m512 Scale(const uint8_t*, const uint8_t* block, int) {
    return Halves(block + Layout::kScales);
  }
};

struct Q6_K {
  using Layout = Q6_KLayout;
  static constexpr bool kMinimum = false, kOffset = true;
  static void Quads(const uint8_t* block, __m512i* quads) {
    NibbleQuads(block, quads);
    const __m512i mask = _mm512_set1_epi8(3 << 4);
    const __m512i offset = _mm512_set1_epi8(128 - 32);
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      const __m512i high = _mm512_loadu_si512(block + Layout::kHigh + t * kQuadBytes);
      const __m512i shifted[4] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 2), high,
                                  _mm512_srli_epi16(high, 2)};
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        const __m512i six = _mm512_or_si512(quads[4 * t + s], _mm512_and_si512(shifted[s], mask));
        quads[4 * t + s] = _mm512_add_epi8(six, offset);
      }
    }
  }
  static __m512 Scale(const uint8_t* super, const uint8_t* block, int g) {
    const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + Layout::kScales + g * kTileRows));
    return _mm512_mul_ps(Halves(super), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
  }
};

template <class W>
inline constexpr int kGroups = kBlockCols / W::Layout::kGroup;
template <class W>
inline constexpr int kGroupQuads = kQuads / kGroups<W>;

// ------------------------------------------------------------------------------------------------- sums of one output

template <class W>
int32_t SumX128(const A16Block& block, int g) {
  if (kGroups<W> == 1) return block.sum_x128;
  return g == 0 ? block.first_half_x128 : block.sum_x128 - block.first_half_x128;
}

// The step of the contract for one group: dot is sum(w * a), with W's offset still in it.
template <class W>
__m512 AddGroup(__m512i dot, __m512 scale, __m512 minimum, const A16Block& block, int g, __m512 acc) {
  if (W::kOffset) dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(SumX128<W>(block, g)));
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, _mm512_set1_ps(block.scale)), acc);
  if (W::kMinimum) {
    static_assert(!W::kMinimum || kGroups<W> == 1, "scaled_sum is the whole block's");
    acc = _mm512_fmadd_ps(minimum, _mm512_set1_ps(block.scaled_sum), acc);
  }
  return acc;
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

// ----------------------------------------------------------------------------------------------------------- few rows

// kRows rows from `row` on, one tile.
template <class W, int kRows>
void DirectTile(const MatMulJob& job, int tile, int row) {
  using Layout = typename W::Layout;
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
    W::Quads(block, quads);
#pragma GCC unroll 2
    for (int g = 0; g < kGroups<W>; ++g) {
      const __m512 scale = W::Scale(super, block, g);
      __m512 minimum = _mm512_setzero_ps();
      if constexpr (W::kMinimum) minimum = W::Minimum(super, block, g);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* values = x + r * job.x_row_bytes + b * kA16ValueBytes + g * Layout::kGroup;
        __m512i high = _mm512_setzero_si512();
        __m512i low = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int s = 0; s < kGroupQuads<W>; ++s) {
          const __m512i quad = quads[g * kGroupQuads<W> + s];
          high = _mm512_dpbusd_epi32(high, quad, BroadcastQuad(values + 4 * s));
          low = _mm512_dpbusd_epi32(low, quad, BroadcastQuad(values + kBlockCols + 4 * s));
        }
        const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
        acc[r] = AddGroup<W>(dot, scale, minimum, x_blocks[r * x_block_stride + b], g, acc[r]);
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
// minima [kTiles][16] where the type has them.
template <class W, int kTiles>
inline constexpr int kPanelScales = kQuads* kTiles* kQuadBytes;
template <class W, int kTiles>
inline constexpr int kPanelBlockBytes = kPanelScales<W, kTiles> + (kGroups<W> + (W::kMinimum ? 1 : 0)) * kTiles * 64;
static_assert(kPanelBlockBytes<Q4_1, 2> <= 48 * kBlockCols && kPanelBlockBytes<Q6_K, 2> <= 48 * kBlockCols);

template <class W, int kTiles>
void Unpack(const MatMulJob& job, int first_tile) {
  using Layout = typename W::Layout;
  for (int t = 0; t < kTiles; ++t) {
    const uint8_t* super = job.tiles + (first_tile + t) * job.tile_bytes;
    uint8_t* panel = job.scratch;
    for (int b = 0; b < job.cols / kBlockCols; ++b, panel += kPanelBlockBytes<W, kTiles>) {
      const uint8_t* block = super + Layout::kHeaderBytes + b % Layout::kBlocksPerSuper * Layout::kBlockBytes;
      __m512i quads[kQuads];
      W::Quads(block, quads);
#pragma GCC unroll 8
      for (int s = 0; s < kQuads; ++s) _mm512_store_si512(panel + (s * kTiles + t) * kQuadBytes, quads[s]);
      uint8_t* scales = panel + kPanelScales<W, kTiles> + t * 64;
#pragma GCC unroll 2
      for (int g = 0; g < kGroups<W>; ++g) _mm512_store_ps(scales + g * kTiles * 64, W::Scale(super, block, g));
      if constexpr (W::kMinimum) _mm512_store_ps(scales + kGroups<W> * kTiles * 64, W::Minimum(super, block, 0));
      if ((b + 1) % Layout::kBlocksPerSuper == 0) super += kSuperBytes<Layout>;
    }
  }
}

// Six rows from `row` on times the panel; stores those from `store_from` on. So the last six rows may overlap rows that
// are done, which must not be stored twice: a residual that is the output would be added twice.
template <class W, int kTiles>
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
  for (int b = 0; b < blocks; ++b, panel += kPanelBlockBytes<W, kTiles>, x += kA16ValueBytes, ++x_blocks) {
#pragma GCC unroll 2
    for (int g = 0; g < kGroups<W>; ++g) {
      __m512i dot[R][kTiles];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) dot[r][t] = _mm512_setzero_si512();
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
        for (int s = g * kGroupQuads<W>; s < (g + 1) * kGroupQuads<W>; ++s) {
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
      const uint8_t* scales = panel + kPanelScales<W, kTiles>;
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) {
        const __m512 scale = _mm512_load_ps(scales + (g * kTiles + t) * 64);
        __m512 minimum = _mm512_setzero_ps();
        if constexpr (W::kMinimum) minimum = _mm512_load_ps(scales + (kTiles + t) * 64);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          acc[r][t] = AddGroup<W>(dot[r][t], scale, minimum, x_blocks[r * x_block_stride], g, acc[r][t]);
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
  for (; row + kPanelRows <= job.n_rows; row += kPanelRows) PanelTile<W, kTiles>(job, first_tile, row, row);
  if (row < job.n_rows) PanelTile<W, kTiles>(job, first_tile, job.n_rows - kPanelRows, row);
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

// -------------------------------------------------------------------------------------------------------- float types

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

size_t ScratchBytes(int, int cols) {
  return static_cast<size_t>(cols) * 48;
}

}  // namespace

const MatMulKernels kMatMulAvx512 = {
    .f32 = MatMulFloat<F32>,
    .f16 = MatMulFloat<F16>,
    .bf16 = MatMulFloat<BF16>,
    .q4_0 = MatMulInteger<Q4_0>,
    .q4_1 = MatMulInteger<Q4_1>,
    .q8_0 = MatMulInteger<Q8_0>,
    .q6_k = MatMulInteger<Q6_K>,
    .scratch_bytes = ScratchBytes,
};

}  // namespace layover
