// The products in plain C++: the fallback for machines without AVX2, and the text that the other two are checked
// against. Each output follows kernels/README.md literally; std::fma rounds once on every machine.
#include <cmath>
#include <cstring>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

void StoreOutput(const MatMulJob& job, int row, int output, float sum) {
  const ptrdiff_t at = (job.out_rows == nullptr ? row : job.out_rows[row]) * job.out_stride + output;
  if (job.bias != nullptr) sum += job.bias[output];
  if (job.residual != nullptr) sum += job.residual[at];
  job.out[at] = sum;
}

// The 16-bit values of all rows, [n_rows][cols].
void JoinHalves(const MatMulJob& job, int16_t* values) {
  for (int row = 0; row < job.n_rows; ++row) {
    const auto* halves = reinterpret_cast<const int8_t*>(job.x + row * job.x_row_bytes);
    for (int k = 0; k < job.cols; ++k) {
      const int8_t* block = halves + k / kBlockCols * kA16ValueBytes + k % kBlockCols;
      *values++ = static_cast<int16_t>(block[0] * 256 + block[kBlockCols]);
    }
  }
}

int32_t Dot(const int16_t* q, const int16_t* a, int n) {
  int32_t sum = 0;
  for (int k = 0; k < n; ++k) sum += q[k] * a[k];
  return sum;
}

struct Group {
  const int16_t* q;
  int cols;
  float scale;
  float minimum;
  bool has_minimum;
};

// sum_x128: 128 times the sum of the group's a.
float AddGroup(const Group& w, const int16_t* a, float a_scale, int32_t sum_x128, float acc) {
  acc = std::fma(static_cast<float>(Dot(w.q, a, w.cols)), w.scale * a_scale, acc);
  if (w.has_minimum) acc = std::fma(w.minimum, static_cast<float>(sum_x128 / 128) * a_scale, acc);
  return acc;
}

float AddBlock(const PackedFormat& format, const PlainBlock& w, const int16_t* a, const A16Block& block, float acc) {
  const bool m = format.has_minimum;
  if (format.group == kBlockCols) {
    return AddGroup({w.q, kBlockCols, w.scale[0], w.minimum[0], m}, a, block.scale, block.sum_x128, acc);
  }
  const int32_t second = block.sum_x128 - block.first_half_x128;
  acc = AddGroup({w.q, 16, w.scale[0], w.minimum[0], m}, a, block.scale, block.first_half_x128, acc);
  return AddGroup({w.q + 16, 16, w.scale[1], w.minimum[1], m}, a + 16, block.scale, second, acc);
}

template <WeightType kType>
void MatMulInteger(const MatMulJob& job) {
  const PackedFormat& format = *FindPackedFormat(kType);
  auto* values = reinterpret_cast<int16_t*>(job.scratch);
  auto* sums = reinterpret_cast<float*>(values + static_cast<size_t>(job.n_rows) * job.cols);
  JoinHalves(job, values);
  for (int output = job.tile_begin * kTileRows; output < job.tile_end * kTileRows && output < job.n_out; ++output) {
    const uint8_t* tile = job.tiles + output / kTileRows * job.tile_bytes;
    for (int row = 0; row < job.n_rows; ++row) sums[row] = 0.0f;
    for (int b = 0; b < job.cols / kBlockCols; ++b) {
      PlainBlock weights;
      format.read_block(tile, b, output % kTileRows, &weights);
      for (int row = 0; row < job.n_rows; ++row) {
        A16Block block;
        std::memcpy(&block, job.x + row * job.x_row_bytes + job.cols * 2 + b * sizeof(A16Block), sizeof(block));
        const int16_t* a = values + static_cast<size_t>(row) * job.cols + b * kBlockCols;
        sums[row] = AddBlock(format, weights, a, block, sums[row]);
      }
    }
    for (int row = 0; row < job.n_rows; ++row) StoreOutput(job, row, output, sums[row]);
  }
}

template <WeightType kType>
void MatMulFloat(const MatMulJob& job) {
  const PackedFormat& format = *FindPackedFormat(kType);
  for (int output = job.tile_begin * kTileRows; output < job.tile_end * kTileRows && output < job.n_out; ++output) {
    const uint8_t* tile = job.tiles + output / kTileRows * job.tile_bytes;
    for (int row = 0; row < job.n_rows; ++row) {
      const auto* x = reinterpret_cast<const float*>(job.x + row * job.x_row_bytes);
      float sum = 0.0f;
      for (int k = 0; k < job.cols; ++k) sum = std::fma(format.read_float(tile, k, output % kTileRows), x[k], sum);
      StoreOutput(job, row, output, sum);
    }
  }
}

size_t ScratchBytes(int n_rows, int cols) {
  return static_cast<size_t>(n_rows) * (static_cast<size_t>(cols) * sizeof(int16_t) + sizeof(float));
}

}  // namespace

const MatMulKernels kMatMulScalar = {
    .f32 = MatMulFloat<WeightType::kF32>,
    .f16 = MatMulFloat<WeightType::kF16>,
    .bf16 = MatMulFloat<WeightType::kBF16>,
    .q4_0 = MatMulInteger<WeightType::kQ4_0>,
    .q4_1 = MatMulInteger<WeightType::kQ4_1>,
    .q8_0 = MatMulInteger<WeightType::kQ8_0>,
    .q6_k = MatMulInteger<WeightType::kQ6_K>,
    .scratch_bytes = ScratchBytes,
};

}  // namespace layover
