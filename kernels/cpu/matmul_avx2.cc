// The products for AVX2 and FMA. A lane is an output; per lane the operations and their order are those of
// matmul_scalar.cc.
//
// VPMADDWD multiplies signed 16-bit values and adds pairs into int32, exactly. So weights are widened to 16 bits, a
// tile at a time (a "panel" in scratch), and the two halves of the activations are joined again, once per call. An
// accumulator then holds two partial sums for each of four outputs; adding neighbours at the end of a group leaves the
// outputs in the order 0 1 4 5 2 3 6 7, which scales and sums keep until they are stored.
#include <immintrin.h>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kQuads = 8;     // of a block: quad s holds columns 4s .. 4s + 3
constexpr int kQuartets = 4;  // of a quad: four outputs, 16 bytes packed and 32 in the panel
constexpr int kPrefetchBytes = 2560;

__m256i Load32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
__m128i Load16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

__m256 Halves(const uint8_t* halves) {
  return _mm256_cvtph_ps(Load16(halves));
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

// ------------------------------------------------------------------------------------------- what a weight type has
// Quad: the weight's own signed integers. Scale and Minimum: of group g, outputs [8 * half, 8 * half + 8).

struct Q4_1 {
  using Layout = Q4_1Layout;
  static constexpr bool kMinimum = true;
  static void Quad(const uint8_t* block, int s, __m256i* quad) { NibbleQuad(block, s, quad); }
  static __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) {
    return Halves(block + Layout::kScales + 16 * half);
  }
  static __m256 Minimum(const uint8_t* block, int half) { return Halves(block + Layout::kMinima + 16 * half); }
};

struct Q4_0 {
  using Layout = Q4_0Layout;
  static constexpr bool kMinimum = false;
  static void Quad(const uint8_t* block, int s, __m256i* quad) {
    NibbleQuad(block, s, quad);
    Subtract(8, quad);
  }
  static __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) {
    return Halves(block + Layout::kScales + 16 * half);
  }
};

struct Q8_0 {
  using Layout = Q8_0Layout;
  static constexpr bool kMinimum = false;
  static void Quad(const uint8_t* block, int s, __m256i* quad) {
    for (int half = 0; half < 2; ++half) quad[half] = Load32(block + s * kQuadBytes + 32 * half);
    Subtract(-128, quad);  // modulo 256 the same as taking off the 128 that packing added
  }
  static __m256 Scale(const uint8_t*, const uint8_t* block, int, int half) {
    return Halves(block + Layout::kScales + 16 * half);
  }
};

struct Q6_K {
  using Layout = Q6_KLayout;
  static constexpr bool kMinimum = false;
  static void Quad(const uint8_t* block, int s, __m256i* quad) {
    NibbleQuad(block, s, quad);
    for (int half = 0; half < 2; ++half) {
      const __m256i planes = Load32(block + Layout::kHigh + s / 4 * kQuadBytes + 32 * half);
      const __m256i high =
          _mm256_and_si256(_mm256_srl_epi16(planes, _mm_cvtsi32_si128(s % 4 * 2)), _mm256_set1_epi8(3));
      quad[half] = _mm256_or_si256(quad[half], _mm256_slli_epi16(high, 4));
    }
    Subtract(32, quad);
  }
  static __m256 Scale(const uint8_t* super, const uint8_t* block, int g, int half) {
    const __m128i sc =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + Layout::kScales + g * kTileRows + 8 * half));
    return _mm256_mul_ps(Halves(super + 16 * half), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)));
  }
};

template <class W>
inline constexpr int kGroups = kBlockCols / W::Layout::kGroup;
template <class W>
inline constexpr int kGroupQuads = kQuads / kGroups<W>;

// A panel: per block, int16 [8 quads][16 outputs][4 columns], f32 scales [kGroups][16], minima [16].
inline constexpr int kPanelScales = kQuads * kQuartets * 32;
template <class W>
inline constexpr int kPanelBlockBytes = kPanelScales + (kGroups<W> + (W::kMinimum ? 1 : 0)) * kTileRows * 4;
static_assert(kPanelBlockBytes<Q4_1> <= 48 * kBlockCols && kPanelBlockBytes<Q6_K> <= 48 * kBlockCols);

void StoreFloats(uint8_t* p, __m256 v) {
  _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
}

template <class W>
void Unpack(const MatMulJob& job, int tile, uint8_t* panel) {
  using Layout = typename W::Layout;
  const uint8_t* super = job.tiles + tile * job.tile_bytes;
  for (int b = 0; b < job.cols / kBlockCols; ++b, panel += kPanelBlockBytes<W>) {
    const uint8_t* block = super + Layout::kHeaderBytes + b % Layout::kBlocksPerSuper * Layout::kBlockBytes;
    for (int line = 0; line < Layout::kBlockBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(block + kPrefetchBytes + line), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int s = 0; s < kQuads; ++s) {
      __m256i quad[2];
      W::Quad(block, s, quad);
      auto* out = reinterpret_cast<__m256i*>(panel + s * kQuartets * 32);
      _mm256_storeu_si256(out, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(quad[0])));
      _mm256_storeu_si256(out + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(quad[0], 1)));
      _mm256_storeu_si256(out + 2, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(quad[1])));
      _mm256_storeu_si256(out + 3, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(quad[1], 1)));
    }
    for (int half = 0; half < 2; ++half) {
      uint8_t* scales = panel + kPanelScales + 32 * half;
      for (int g = 0; g < kGroups<W>; ++g) StoreFloats(scales + g * 64, Reorder(W::Scale(super, block, g, half)));
      if constexpr (W::kMinimum) StoreFloats(scales + kGroups<W> * 64, Reorder(W::Minimum(block, half)));
    }
    if ((b + 1) % Layout::kBlocksPerSuper == 0) super += kSuperBytes<Layout>;
  }
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

template <class W, int kRows>
void PanelTile(const MatMulJob& job, const int16_t* values, const uint8_t* panel, int tile, int row) {
  const int blocks = job.cols / kBlockCols;
  const int cols = job.cols;
  const int16_t* a = values + static_cast<size_t>(row) * cols;
  const auto* x_blocks = reinterpret_cast<const A16Block*>(job.x + row * job.x_row_bytes + blocks * kA16ValueBytes);
  const size_t x_block_stride = job.x_row_bytes / sizeof(A16Block);
  __m256 acc[kRows][2];
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();

  for (int b = 0; b < blocks; ++b, panel += kPanelBlockBytes<W>, a += kBlockCols, ++x_blocks) {
#pragma GCC unroll 2
    for (int g = 0; g < kGroups<W>; ++g) {
      __m256i dot[kRows][kQuartets];
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int q = 0; q < kQuartets; ++q) dot[r][q] = _mm256_setzero_si256();
      }
#pragma GCC unroll 8
      for (int s = g * kGroupQuads<W>; s < (g + 1) * kGroupQuads<W>; ++s) {
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
          if constexpr (W::kMinimum) {
            static_assert(kGroups<W> == 1, "scaled_sum is the whole block's");
            const __m256 minimum = _mm256_loadu_ps(scales + kTileRows + 8 * half);
            acc[r][half] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(block.scaled_sum), acc[r][half]);
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
    for (; row + 2 <= job.n_rows; row += 2) PanelTile<W, 2>(job, values, panel, tile, row);
    if (row < job.n_rows) PanelTile<W, 1>(job, values, panel, tile, row);
  }
}

// -------------------------------------------------------------------------------------------------------- float types

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

size_t ScratchBytes(int n_rows, int cols) {
  return static_cast<size_t>(cols) * (static_cast<size_t>(n_rows) * sizeof(int16_t) + 48);
}

}  // namespace

const MatMulKernels kMatMulAvx2 = {
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
