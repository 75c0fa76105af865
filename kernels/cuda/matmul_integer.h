// The products of integer weights, on the tensor cores: int8 halves of the 16-bit activations times int8 quants, exact
// int32 dots of 32 (or 16) columns, then the contract's chain of fused float steps per output, blocks ascending. Both
// kernels give the bits of kernels/cpu/matmul_scalar.cc, so decode and prefill agree, and rows do not know of each
// other.
//
//   FewRowsKernel   up to 8 rows. Four warps share the columns of 8 outputs; what a block of columns contributes waits
//                   in shared memory as (dot, scale) until the chain of its output comes by.
//   ManyRowsKernel  64 rows by 128 outputs; activations come in by asynchronous copies, weights go from memory straight
//                   into the registers of the one warp that needs them.
//
// Products of experts are the same kernels with rows from all over the step (product_rows.h).
#ifndef LAYOVER_KERNELS_CUDA_MATMUL_INTEGER_H_
#define LAYOVER_KERNELS_CUDA_MATMUL_INTEGER_H_

#include "kernels/cuda/activation_layout.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/product_rows.h"
#include "kernels/cuda/weight_formats_table.h"

namespace layover::gpu {

// MatMulArgs or MoeMatMulArgs for the device. Experts' outputs are rows of `out` by the number of the choice.
struct Product {
  const uint8_t* weights = nullptr;
  const uint8_t* x = nullptr;  // prepared rows of x_row_bytes
  long long x_row_bytes = 0;
  float* out = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  int out_stride = 0;
  int n_rows = 0;
  int n_out = 0;
  int blocks = 0;  // of 32 columns
  CodeTable table;
  ExpertChoices experts;
};

__device__ __forceinline__ const uint8_t* WeightsOf(const Product& p, long long expert) {
  return p.weights + expert * p.experts.expert_bytes;
}

__device__ __forceinline__ void StoreOutput(const Product& p, long long expert, int row, int output, float sum) {
  const long long at = static_cast<long long>(row) * p.out_stride + output;
  if (p.bias != nullptr) sum = sum + p.bias[expert * p.n_out + output];
  if (p.residual != nullptr) sum = sum + p.residual[at];
  p.out[at] = sum;
}

// Exact dots of a block: d[group][i] of fragment element i (row g + 8 (i / 2), output 2 t + i % 2), offsets not yet
// off.
template <typename Format>
__device__ __forceinline__ void BlockDots(const uint32_t (&high)[4], const uint32_t (&low)[4], const uint32_t (&w)[2],
                                          int32_t (&dot)[Format::kGroups][4]) {
  int32_t h[Format::kGroups][4] = {}, l[Format::kGroups][4] = {};
  if constexpr (Format::kGroups == 1) {
    MmaS8K32(h[0], high, w);
    MmaS8K32(l[0], low, w);
  } else {
    GPU_UNROLL
    for (int group = 0; group < 2; ++group) {
      const uint32_t group_high[2] = {high[2 * group], high[2 * group + 1]};
      const uint32_t group_low[2] = {low[2 * group], low[2 * group + 1]};
      MmaS8K16(h[group], group_high, w[group]);
      MmaS8K16(l[group], group_low, w[group]);
    }
  }
  GPU_UNROLL
  for (int group = 0; group < Format::kGroups; ++group) {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) dot[group][i] = h[group][i] * 256 + l[group][i];
  }
}

template <typename Format>
__device__ __forceinline__ int OffsetOf(const A16Info& info, int group) {
  if (Format::kOffset == 0) return 0;
  if (Format::kGroups == 1) return Format::kOffset * (info.first_sum + info.second_sum);
  return Format::kOffset * (group == 0 ? info.first_sum : info.second_sum);
}

// What a group's minimum is multiplied by.
template <typename Format>
__device__ __forceinline__ float SumOf(const A16Info& info, int group) {
  if (Format::kGroups == 1) return info.scaled_sum;
  return static_cast<float>(group == 0 ? info.first_sum : info.second_sum) * info.scale;
}

inline constexpr int kFewWarps = 4;
inline constexpr int kStepBlocks = kFewWarps * kChunkBlocks;

// What a group of columns adds to one output of one row.
struct Term {
  float dot;
  float scale;
};

template <typename Format>
__host__ __device__ constexpr int TermsOfStep(int n_rows) {
  return kStepBlocks * Format::kGroups * n_rows * kTileOutputs;
}

template <typename Format>
__global__ void __launch_bounds__(kFewWarps * 32, 1) FewRowsKernel(Product p) {
  const FewRowsOfBlock rows = FindFewRows(p.experts, static_cast<int>(blockIdx.y), p.n_rows);
  if (rows.n_rows == 0) return;
  SharedCarver carver;
  const int per_step = TermsOfStep<Format>(rows.n_rows);
  Term* const terms = carver.Take<Term>(2 * per_step);
  Term* const minima = Format::kHasMinimum ? carver.Take<Term>(2 * per_step) : nullptr;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int chunks = (p.blocks + kChunkBlocks - 1) / kChunkBlocks;
  const int steps = (chunks + kFewWarps - 1) / kFewWarps;
  const uint8_t* const tile =
      WeightsOf(p, rows.expert) + static_cast<long long>(blockIdx.x) * chunks * Format::kChunkBytes;
  const int per_group = rows.n_rows * kTileOutputs;
  const bool has_row = g < rows.n_rows;
  const uint8_t* const row =
      p.x + __shfl_sync(kAllLanes, SourceRow(p.experts, rows.row), has_row ? g : 0) * p.x_row_bytes;
  const A16Info* const infos =
      reinterpret_cast<const A16Info*>(row + static_cast<long long>(p.blocks) * kA16ValueBytes);

  typename Format::Share share = {}, next = {};
  if (warp < chunks) Format::Load(tile + static_cast<long long>(warp) * Format::kChunkBytes, lane, &share);
  float acc = 0.0f;  // of row thread / 8, output thread % 8, if there are so many rows
  for (int step = 0; step < steps; ++step) {
    const int chunk = step * kFewWarps + warp;
    if (chunk + kFewWarps < chunks) {
      Format::Load(tile + static_cast<long long>(chunk + kFewWarps) * Format::kChunkBytes, lane, &next);
    }
    GPU_UNROLL
    for (int b = 0; b < kChunkBlocks; ++b) {
      const int block = chunk * kChunkBlocks + b;
      if (block < p.blocks) {  // the same for the whole warp
        const uint32_t* x = reinterpret_cast<const uint32_t*>(row + block * kA16ValueBytes);
        uint32_t high[4] = {}, low[4] = {}, w[2];
        if (has_row) {
          high[0] = x[t];
          high[2] = x[4 + t];
          low[0] = x[8 + t];
          low[2] = x[12 + t];
        }
        Format::Words(share, b, p.table, w);
        int32_t dot[Format::kGroups][4];
        BlockDots<Format>(high, low, w, dot);
        if (has_row) {
          const A16Info info = infos[block];
          GPU_UNROLL
          for (int group = 0; group < Format::kGroups; ++group) {
            const int in_step = (warp * kChunkBlocks + b) * Format::kGroups + group;
            const int at = (step % 2) * per_step + in_step * per_group + g * kTileOutputs + 2 * t;
            const int offset = OffsetOf<Format>(info, group);
            GPU_UNROLL
            for (int i = 0; i < 2; ++i) {
              terms[at + i] = {static_cast<float>(dot[group][i] - offset),
                               Format::Scale(share, b, group, i, p.table) * info.scale};
              if (Format::kHasMinimum)
                minima[at + i] = {Format::Minimum(share, b, group, i), SumOf<Format>(info, group)};
            }
          }
        }
      }
    }
    share = next;
    __syncthreads();
    // The terms of the step before are done with: who wrote this step's passed the last barrier after reading them.
    if (thread < per_group) {
      const int groups = MinInt(kStepBlocks, p.blocks - step * kStepBlocks) * Format::kGroups;
      const int from = (step % 2) * per_step + thread;
      for (int i = 0; i < groups; ++i) {
        const Term term = terms[from + i * per_group];
        acc = fmaf(term.dot, term.scale, acc);
        if (Format::kHasMinimum) {
          const Term minimum = minima[from + i * per_group];
          acc = fmaf(minimum.dot, minimum.scale, acc);
        }
      }
    }
  }
  const int output = static_cast<int>(blockIdx.x) * kTileOutputs + thread % kTileOutputs;
  const int out_row = __shfl_sync(kAllLanes, rows.row, thread / kTileOutputs);
  if (thread < per_group && output < p.n_out) StoreOutput(p, rows.expert, out_row, output, acc);
}

inline constexpr int kManyWarps = 8;
inline constexpr int kRowTiles = kManyRows / 16;
inline constexpr int kWarpTiles = 2;  // of 8 outputs
inline constexpr int kManyOutputs = kManyWarps * kWarpTiles * kTileOutputs;
inline constexpr int kRowPitch = kChunkBlocks * kA16ValueBytes + 16;  // rows of ldmatrix in different banks
inline constexpr int kInfoPitch = kChunkBlocks;
inline constexpr int kStageBytes = kManyRows * kRowPitch;
inline constexpr int kStageInfos = kManyRows * kInfoPitch;
inline constexpr int kManyShared =
    2 * (kStageBytes + kStageInfos * static_cast<int>(sizeof(A16Info))) + kManyRows * static_cast<int>(sizeof(int));

// Brings a chunk of columns of 64 rows of x, -1 for those beyond the last; these and blocks beyond the last are left as
// they are and their sums not used.
__device__ __forceinline__ void FetchActivations(const Product& p, const int* sources, int chunk, uint8_t* values,
                                                 A16Info* infos) {
  const int thread = static_cast<int>(threadIdx.x);
  const int blocks = MinInt(kChunkBlocks, p.blocks - chunk * kChunkBlocks);
  const long long info_at = static_cast<long long>(p.blocks) * kA16ValueBytes;
  for (int i = thread; i < kManyRows * kChunkBlocks * 5; i += kManyWarps * 32) {
    const int r = i / (kChunkBlocks * 5), piece = i % (kChunkBlocks * 5), b = piece / 5;
    const int source = sources[r];
    if (source < 0 || b >= blocks) continue;
    const uint8_t* row = p.x + source * p.x_row_bytes;
    const int block = chunk * kChunkBlocks + b;
    if (piece % 5 < 4) {
      CopyAsync16(values + r * kRowPitch + b * kA16ValueBytes + piece % 5 * 16,
                  row + block * kA16ValueBytes + piece % 5 * 16);
    } else {
      CopyAsync16(infos + r * kInfoPitch + b, row + info_at + block * static_cast<int>(sizeof(A16Info)));
    }
  }
}

template <typename Format>
__global__ void __launch_bounds__(kManyWarps * 32, 1) ManyRowsKernel(Product p) {
  const ExpertTile rows = TileOfBlock(p.experts, static_cast<int>(blockIdx.y), p.n_rows);
  if (rows.rows == 0) return;
  const uint8_t* const weights = WeightsOf(p, rows.expert);
  SharedCarver carver;
  uint8_t* const stages = carver.Take<uint8_t>(2 * kStageBytes);
  A16Info* const stage_infos = carver.Take<A16Info>(2 * kStageInfos);
  int* const sources = carver.Take<int>(kManyRows);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int chunks = (p.blocks + kChunkBlocks - 1) / kChunkBlocks;
  const int tiles = (p.n_out + kTileOutputs - 1) / kTileOutputs;
  const int tile_begin = (static_cast<int>(blockIdx.x) * kManyWarps + warp) * kWarpTiles;
  const int row_tiles = (rows.rows + 15) / 16;

  const auto load = [&](int chunk, typename Format::Share(&shares)[kWarpTiles]) {
    GPU_UNROLL
    for (int n = 0; n < kWarpTiles; ++n) {
      const long long tile = MinInt(tile_begin + n, tiles - 1);
      Format::Load(weights + (tile * chunks + chunk) * Format::kChunkBytes, lane, &shares[n]);
    }
  };
  typename Format::Share shares[kWarpTiles], next[kWarpTiles];
  load(0, shares);
  for (int r = static_cast<int>(threadIdx.x); r < kManyRows; r += kManyWarps * 32) {
    sources[r] = r < rows.rows ? SourceRow(p.experts, RowAt(p.experts, rows.begin + r)) : -1;
  }
  __syncthreads();
  FetchActivations(p, sources, 0, stages, stage_infos);
  CommitCopies();

  float acc[kRowTiles][kWarpTiles][4] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = chunk % 2;
    if (chunk + 1 < chunks) {
      load(chunk + 1, next);
      FetchActivations(p, sources, chunk + 1, stages + (1 - stage) * kStageBytes,
                       stage_infos + (1 - stage) * kStageInfos);
    }
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();
    const uint8_t* values = stages + stage * kStageBytes;
    const A16Info* infos = stage_infos + stage * kStageInfos;
    GPU_UNROLL
    for (int b = 0; b < kChunkBlocks; ++b) {
      if (chunk * kChunkBlocks + b < p.blocks) {
        uint32_t w[kWarpTiles][2];
        GPU_UNROLL
        for (int n = 0; n < kWarpTiles; ++n) Format::Words(shares[n], b, p.table, w[n]);
        GPU_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          if (m < row_tiles) {
            uint32_t high[4], low[4];
            const uint8_t* row = values + (m * 16 + lane % 16) * kRowPitch + b * kA16ValueBytes + lane / 16 * 16;
            LoadMatrices4(high, row);
            LoadMatrices4(low, row + 32);
            const A16Info info[2] = {infos[(m * 16 + g) * kInfoPitch + b], infos[(m * 16 + g + 8) * kInfoPitch + b]};
            GPU_UNROLL
            for (int n = 0; n < kWarpTiles; ++n) {
              int32_t dot[Format::kGroups][4];
              BlockDots<Format>(high, low, w[n], dot);
              GPU_UNROLL
              for (int group = 0; group < Format::kGroups; ++group) {
                GPU_UNROLL
                for (int i = 0; i < 4; ++i) {
                  const A16Info& of_row = info[i / 2];
                  float& sum = acc[m][n][i];
                  const int exact = dot[group][i] - OffsetOf<Format>(of_row, group);
                  const float scale = Format::Scale(shares[n], b, group, i % 2, p.table);
                  sum = fmaf(static_cast<float>(exact), scale * of_row.scale, sum);
                  if (Format::kHasMinimum) {
                    sum = fmaf(Format::Minimum(shares[n], b, group, i % 2), SumOf<Format>(of_row, group), sum);
                  }
                }
              }
            }
          }
        }
      }
    }
    GPU_UNROLL
    for (int n = 0; n < kWarpTiles; ++n) shares[n] = next[n];
    __syncthreads();  // before the next round fills this stage again
  }
  // Asked again: kept until here, it would take registers from the sums.
  const ExpertTile done = TileOfBlock(p.experts, static_cast<int>(blockIdx.y), p.n_rows);
  GPU_UNROLL
  for (int m = 0; m < 2 * kRowTiles; ++m) {
    const int r = m * 8 + g;
    if (r >= done.rows) continue;
    const int row = RowAt(p.experts, done.begin + r);
    GPU_UNROLL
    for (int n = 0; n < kWarpTiles; ++n) {
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int output = (tile_begin + n) * kTileOutputs + 2 * t + i;
        if (output < p.n_out) StoreOutput(p, done.expert, row, output, acc[m / 2][n][m % 2 * 2 + i]);
      }
    }
  }
}

template <typename Format>
void LaunchFewRows(const Product& p, Queue* queue) {
  const unsigned tiles = static_cast<unsigned>(p.n_out + kTileOutputs - 1) / kTileOutputs;
  const size_t terms = 2 * static_cast<size_t>(TermsOfStep<Format>(p.n_rows)) * sizeof(Term);
  Launch("MatMul, few rows", FewRowsKernel<Format>, {tiles, BlocksOfRows(p.experts, p.n_rows)}, kFewWarps * 32,
         Format::kHasMinimum ? 2 * terms : terms, queue, p);
}

template <typename Format>
void LaunchIntegerProduct(Product p, Queue* queue) {
  p.experts.expert_bytes = static_cast<long long>((p.n_out + kTileOutputs - 1) / kTileOutputs) *
                           ((p.blocks + kChunkBlocks - 1) / kChunkBlocks) * Format::kChunkBytes;
  if (p.n_rows <= kFewRows) return LaunchFewRows<Format>(p, queue);
  const unsigned columns = static_cast<unsigned>(p.n_out + kManyOutputs - 1) / kManyOutputs;
  Launch("MatMul, many rows", ManyRowsKernel<Format>, {columns, BlocksOfRows(p.experts, p.n_rows)}, kManyWarps * 32,
         kManyShared, queue, p);
}

// The types of super-blocks (matmul_super.cu) and of tables (matmul_table.cu).
void LaunchSuperProduct(WeightType type, const Product& p, Queue* queue);
void LaunchTableProduct(WeightType type, const Product& p, Queue* queue);

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_MATMUL_INTEGER_H_
