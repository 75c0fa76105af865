// EmbedRows: a block is a row of the table, read out of its packed layout.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/weight_formats_table.h"

namespace layover::gpu {
namespace {

template <typename Format>
struct IntegerTable {
  CardWeight weight;
  int cols;
  __device__ __forceinline__ float Value(int row, int k) const {
    const long long chunks = (cols + kChunkCols - 1) / kChunkCols;
    const uint8_t* data = static_cast<const uint8_t*>(weight.data);
    const uint8_t* chunk = data + (row / kTileOutputs * chunks + k / kChunkCols) * Format::kChunkBytes;
    return Format::Value(chunk, row % kTileOutputs, k % kChunkCols / 32, k % 32, weight.table);
  }
};

// kBytes 4: F32; 2: F16, or BF16 if kBrain.
template <int kBytes, bool kBrain>
struct FloatTable {
  CardWeight weight;
  int cols;
  __device__ __forceinline__ float Value(int row, int k) const {
    constexpr int kPerUnit = 16 / kBytes;
    const long long units = (cols + kPerUnit - 1) / kPerUnit;
    const uint8_t* data = static_cast<const uint8_t*>(weight.data);
    const uint8_t* unit =
        data + ((row / kFloatTileOutputs * units + k / kPerUnit) * kFloatTileOutputs + row % kFloatTileOutputs) * 16;
    if (kBytes == 4) return reinterpret_cast<const float*>(unit)[k % kPerUnit];
    const uint16_t half = reinterpret_cast<const uint16_t*>(unit)[k % kPerUnit];
    return kBrain ? __uint_as_float(static_cast<uint32_t>(half) << 16) : HalfToFloat(half);
  }
};

struct EmbedTask {
  const int32_t* ids;
  float* out;
  int cols;
  float scale;
};

template <typename Table>
__global__ void __launch_bounds__(256) EmbedRowsKernel(Table table, EmbedTask task) {
  const int id = task.ids[blockIdx.x];
  float* out = task.out + static_cast<long long>(blockIdx.x) * task.cols;
  for (int k = static_cast<int>(threadIdx.x); k < task.cols; k += static_cast<int>(blockDim.x)) {
    const float value = table.Value(id, k);
    out[k] = task.scale == 1.0f ? value : value * task.scale;
  }
}

template <typename Table>
void LaunchTable(const EmbedRowsArgs& args, const CardWeight& weights, Queue* queue) {
  const Table table{weights, args.table->cols};
  const EmbedTask task{args.ids, args.out, args.table->cols, args.scale};
  Launch("EmbedRows", EmbedRowsKernel<Table>, {static_cast<unsigned>(args.n_rows)}, 256, 0, queue, table, task);
}

}  // namespace

void LaunchEmbedRows(const EmbedRowsArgs& args, const CardWeight& weights, Queue* queue) {
  switch (args.table->type) {
    case WeightType::kF32:
      return LaunchTable<FloatTable<4, false>>(args, weights, queue);
    case WeightType::kF16:
      return LaunchTable<FloatTable<2, false>>(args, weights, queue);
    case WeightType::kBF16:
      return LaunchTable<FloatTable<2, true>>(args, weights, queue);
    case WeightType::kQ4_0:
      return LaunchTable<IntegerTable<Q4_0Format>>(args, weights, queue);
    case WeightType::kQ4_1:
      return LaunchTable<IntegerTable<Q4_1Format>>(args, weights, queue);
    case WeightType::kQ8_0:
      return LaunchTable<IntegerTable<Q8_0Format>>(args, weights, queue);
    case WeightType::kQ6_K:
      return LaunchTable<IntegerTable<Q6_KFormat>>(args, weights, queue);
    case WeightType::kQ5_0:
      return LaunchTable<IntegerTable<Q5_0Format>>(args, weights, queue);
    case WeightType::kQ5_1:
      return LaunchTable<IntegerTable<Q5_1Format>>(args, weights, queue);
    case WeightType::kQ4_K:
      return LaunchTable<IntegerTable<Q4_KFormat>>(args, weights, queue);
    case WeightType::kQ5_K:
      return LaunchTable<IntegerTable<Q5_KFormat>>(args, weights, queue);
    case WeightType::kQ2_K:
      return LaunchTable<IntegerTable<Q2_KFormat>>(args, weights, queue);
    case WeightType::kIQ4_NL:
      return LaunchTable<IntegerTable<IQ4_NLFormat>>(args, weights, queue);
    case WeightType::kMXFP4:
      return LaunchTable<IntegerTable<MXFP4Format>>(args, weights, queue);
    case WeightType::kIQ4_XS:
    case WeightType::kIQ3_S:
    case WeightType::kIQ3_XXS:
      return LaunchTable<IntegerTable<Table4Format>>(args, weights, queue);
    case WeightType::kQ3_K:
    case WeightType::kIQ2_XXS:
    case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S:
    case WeightType::kIQ1_S:
    case WeightType::kIQ1_M:
      return LaunchTable<IntegerTable<Table3Format>>(args, weights, queue);
    default:
      return;  // PackWeight refuses the others
  }
}

}  // namespace layover::gpu
