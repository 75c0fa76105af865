// MatMul with float weights: one chain of fused steps per output, columns ascending, as the contract has it. That chain
// is no sum of a tensor core, so these run on the ordinary units.
//
//   FewFloatRowsKernel   up to 8 rows: a lane is an output and walks its columns, 16 bytes at a time.
//   ManyFloatRowsKernel  64 rows by 64 outputs, a thread 4 by 4 of them, 16 columns at a time through shared memory.
//
// Products of experts are the same kernels with rows from all over the step (product_rows.h).
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/expert_groups.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/weight_layout.h"

namespace layover::gpu {
namespace {

struct F32Weights {
  static constexpr int kPerUnit = 4;
  __device__ static __forceinline__ float Value(const uint4& unit, int i) { return __uint_as_float(WordOf(unit, i)); }
};
struct F16Weights {
  static constexpr int kPerUnit = 8;
  __device__ static __forceinline__ float Value(const uint4& unit, int i) {
    return HalfToFloat(static_cast<uint16_t>(WordOf(unit, i / 2) >> (16 * (i % 2))));
  }
};
struct BF16Weights {
  static constexpr int kPerUnit = 8;
  __device__ static __forceinline__ float Value(const uint4& unit, int i) {
    const uint32_t word = WordOf(unit, i / 2);
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
};

struct FloatProduct {
  const uint4* weights;  // [tile of 32 outputs][unit][32]
  const float* x;        // rows of cols
  float* out;
  const float* bias;
  const float* residual;
  int out_stride;
  int n_rows;
  int n_out;
  int cols;
  ExpertChoices experts;
};

__device__ __forceinline__ void StoreFloatOutput(const FloatProduct& p, int row, int output, float sum) {
  const long long at = static_cast<long long>(row) * p.out_stride + output;
  if (p.bias != nullptr) sum = sum + p.bias[output];
  if (p.residual != nullptr) sum = sum + p.residual[at];
  p.out[at] = sum;
}

__device__ __forceinline__ void TakeExpert(long long expert, FloatProduct* p) {
  p->weights += expert * (p->experts.expert_bytes / 16);
  if (p->bias != nullptr) p->bias += expert * p->n_out;
}

template <typename Weights>
__global__ void __launch_bounds__(32) FewFloatRowsKernel(FloatProduct p) {
  const FewRowsOfBlock rows = FindFewRows(p.experts, static_cast<int>(blockIdx.y), p.n_rows);
  if (rows.n_rows == 0) return;
  TakeExpert(rows.expert, &p);
  int source[kFewRows];
  GPU_UNROLL
  for (int r = 0; r < kFewRows; ++r) source[r] = __shfl_sync(kAllLanes, SourceRow(p.experts, rows.row), r);
  const int lane = static_cast<int>(threadIdx.x);
  const int output = static_cast<int>(blockIdx.x) * kFloatTileOutputs + lane;
  const int units = (p.cols + Weights::kPerUnit - 1) / Weights::kPerUnit;
  const uint4* w = p.weights + static_cast<long long>(blockIdx.x) * units * kFloatTileOutputs + lane;
  float acc[kFewRows] = {};
  for (int unit = 0; unit < units; ++unit, w += kFloatTileOutputs) {
    const uint4 values = Load16<uint4>(w);
    GPU_UNROLL
    for (int i = 0; i < Weights::kPerUnit; ++i) {
      const int k = unit * Weights::kPerUnit + i;
      if (k < p.cols) {
        const float weight = Weights::Value(values, i);
        GPU_UNROLL
        for (int r = 0; r < kFewRows; ++r) {
          if (r < rows.n_rows) acc[r] = fmaf(weight, p.x[static_cast<long long>(source[r]) * p.cols + k], acc[r]);
        }
      }
    }
  }
  GPU_UNROLL
  for (int r = 0; r < kFewRows; ++r) {
    const int row = __shfl_sync(kAllLanes, rows.row, r);
    if (r < rows.n_rows && output < p.n_out) StoreFloatOutput(p, row, output, acc[r]);
  }
}

constexpr int kTile = kManyRows;  // rows and outputs
constexpr int kDepth = 16;        // columns at a time
constexpr int kPitch = kTile + 4;

template <typename Weights>
__global__ void __launch_bounds__(256) ManyFloatRowsKernel(FloatProduct p) {
  const ExpertTile rows = TileOfBlock(p.experts, static_cast<int>(blockIdx.y), p.n_rows);
  if (rows.rows == 0) return;
  TakeExpert(rows.expert, &p);
  GPU_SHARED(float4, w_tile, [kDepth][kPitch / 4]);  // [column][output]
  GPU_SHARED(float4, x_tile, [kDepth][kPitch / 4]);  // [column][row]
  GPU_SHARED(int, sources, [kTile]);                 // rows of x, -1 beyond the last
  const int thread = static_cast<int>(threadIdx.x);
  const int out_begin = static_cast<int>(blockIdx.x) * kTile;
  const int units = (p.cols + Weights::kPerUnit - 1) / Weights::kPerUnit;
  constexpr int kUnits = kDepth / Weights::kPerUnit;
  float* const w_floats = &w_tile[0][0].x;
  float* const x_floats = &x_tile[0][0].x;
  const int my_row = thread / 16, my_out = thread % 16;  // times four
  if (thread < kTile) {
    sources[thread] = thread < rows.rows ? SourceRow(p.experts, RowAt(p.experts, rows.begin + thread)) : -1;
  }
  __syncthreads();
  float acc[4][4] = {};
  for (int begin = 0; begin < p.cols; begin += kDepth) {
    const int depth = MinInt(kDepth, p.cols - begin);
    for (int i = thread; i < kTile * kUnits; i += 256) {
      const int o = i % kTile, unit = begin / Weights::kPerUnit + i / kTile;
      const long long tile = (out_begin + o) / kFloatTileOutputs;
      uint4 values = {};
      if (out_begin + o < p.n_out && unit < units) {
        values = Load16<uint4>(p.weights + (tile * units + unit) * kFloatTileOutputs + o % kFloatTileOutputs);
      }
      GPU_UNROLL
      for (int j = 0; j < Weights::kPerUnit; ++j) {
        w_floats[(i / kTile * Weights::kPerUnit + j) * kPitch + o] = Weights::Value(values, j);
      }
    }
    for (int i = thread; i < kTile * kDepth; i += 256) {
      const int r = i / kDepth, k = i % kDepth;
      const long long source = sources[r];
      x_floats[k * kPitch + r] = source >= 0 && k < depth ? p.x[source * p.cols + begin + k] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < depth; ++k) {
      const float4 w4 = w_tile[k][my_out], x4 = x_tile[k][my_row];
      const float w[4] = {w4.x, w4.y, w4.z, w4.w}, x[4] = {x4.x, x4.y, x4.z, x4.w};
      GPU_UNROLL
      for (int r = 0; r < 4; ++r) {
        GPU_UNROLL
        for (int o = 0; o < 4; ++o) acc[r][o] = fmaf(w[o], x[r], acc[r][o]);
      }
    }
    __syncthreads();
  }
  GPU_UNROLL
  for (int r = 0; r < 4; ++r) {
    if (my_row * 4 + r >= rows.rows) continue;
    const int row = RowAt(p.experts, rows.begin + my_row * 4 + r);
    GPU_UNROLL
    for (int o = 0; o < 4; ++o) {
      const int output = out_begin + my_out * 4 + o;
      if (output < p.n_out) StoreFloatOutput(p, row, output, acc[r][o]);
    }
  }
}

template <typename Weights>
void LaunchFloatProduct(FloatProduct p, Queue* queue) {
  const unsigned tiles = static_cast<unsigned>(p.n_out + kFloatTileOutputs - 1) / kFloatTileOutputs;
  const int units = (p.cols + Weights::kPerUnit - 1) / Weights::kPerUnit;
  p.experts.expert_bytes = static_cast<long long>(tiles) * units * kFloatTileOutputs * 16;
  const unsigned blocks = BlocksOfRows(p.experts, p.n_rows);
  if (p.n_rows <= kFewRows) {
    Launch("MatMul of floats, few rows", FewFloatRowsKernel<Weights>, {tiles, blocks}, 32, 0, queue, p);
    return;
  }
  const unsigned columns = static_cast<unsigned>(p.n_out + kTile - 1) / kTile;
  Launch("MatMul of floats, many rows", ManyFloatRowsKernel<Weights>, {columns, blocks}, 256, 0, queue, p);
}

void LaunchOfType(WeightType type, const FloatProduct& p, Queue* queue) {
  switch (type) {
    case WeightType::kF32:
      return LaunchFloatProduct<F32Weights>(p, queue);
    case WeightType::kF16:
      return LaunchFloatProduct<F16Weights>(p, queue);
    case WeightType::kBF16:
      return LaunchFloatProduct<BF16Weights>(p, queue);
    default:
      return;  // PackWeight refuses the others
  }
}

}  // namespace

void LaunchMatMulFloat(const MatMulArgs& args, const CardWeight& weights, Queue* queue) {
  FloatProduct p = {};
  p.weights = static_cast<const uint4*>(weights.data);
  p.x = static_cast<const float*>(args.x);
  p.out = args.out;
  p.bias = args.bias;
  p.residual = args.residual;
  p.out_stride = args.out_stride;
  p.n_rows = args.n_rows;
  p.n_out = args.weight->rows;
  p.cols = args.weight->cols;
  LaunchOfType(args.weight->type, p, queue);
}

void LaunchMoeMatMulFloat(const MoeMatMulArgs& args, const CardWeight& weights, void* groups, Queue* queue) {
  FloatProduct p = {};
  p.weights = static_cast<const uint4*>(weights.data);
  p.x = static_cast<const float*>(args.x);
  p.out = args.out;
  p.bias = args.bias;
  p.out_stride = args.weight->rows;
  p.n_rows = args.n_rows;
  p.n_out = args.weight->rows;
  p.cols = args.weight->cols;
  p.experts = LaunchGroupChoices(args, groups, queue);
  LaunchOfType(args.weight->type, p, queue);
}

}  // namespace layover::gpu
