#include "kernels/cpu/activation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

using PrepareRow = void (*)(const float* x, int dim, uint8_t* out);

PrepareRow PrepareRowFor(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return PrepareA16RowAvx512;
  if (isa == CpuIsa::kAvx2) return PrepareA16RowAvx2;
#endif
  return PrepareA16RowScalar;
}

void PrepareBlock(const float* x, int8_t* values, A16Block* block) {
  uint32_t largest = 0;  // as bits: ordered like |x|, and a NaN is above everything
  for (int k = 0; k < kBlockCols; ++k) largest = std::max(largest, std::bit_cast<uint32_t>(x[k]) & 0x7fffffffu);
  std::memset(values, 0, kA16ValueBytes);
  *block = A16Block{};
  if (largest >= kFloatInfinityBits) {
    block->scale = block->scaled_sum = std::bit_cast<float>(kFloatNanBits);
    return;
  }
  if (largest < kA16SmallestMaximumBits) return;

  const float inverse = kA16Max / std::bit_cast<float>(largest);
  int32_t sums[2] = {0, 0};
  for (int k = 0; k < kBlockCols; ++k) {
    const auto a = static_cast<int32_t>(std::lrintf(x[k] * inverse));
    values[k] = static_cast<int8_t>((a + 128) >> 8);
    values[kBlockCols + k] = static_cast<int8_t>(a & 255);
    sums[k / 16] += a;
  }
  block->scale = std::bit_cast<float>(largest) / kA16Max;
  block->scaled_sum = static_cast<float>(sums[0] + sums[1]) * block->scale;
  block->sum_x128 = (sums[0] + sums[1]) * 128;
  block->first_half_x128 = sums[0] * 128;
}

}  // namespace

void PrepareA16RowScalar(const float* x, int dim, uint8_t* out) {
  const int blocks = dim / kBlockCols;
  for (int b = 0; b < blocks; ++b) {
    A16Block block;
    PrepareBlock(x + b * kBlockCols, reinterpret_cast<int8_t*>(out) + b * kA16ValueBytes, &block);
    std::memcpy(out + blocks * kA16ValueBytes + b * sizeof(A16Block), &block, sizeof(block));
  }
}

size_t CpuActivationBytes(ActivationFormat format, int n_rows, int dim) {
  LAYOVER_CHECK(n_rows >= 0 && dim > 0);
  const auto rows = static_cast<size_t>(n_rows);
  if (format == ActivationFormat::kF32) return rows * dim * sizeof(float);
  LAYOVER_CHECK(dim % kBlockCols == 0);
  return rows * (dim / kBlockCols) * kA16BlockBytes;
}

void CpuPrepareActivationRange(CpuIsa isa, const PrepareActivationArgs& args, int row_begin, int row_end) {
  LAYOVER_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= args.n_rows);
  const size_t row_bytes = CpuActivationBytes(args.format, 1, args.dim);
  const PrepareRow prepare_row = PrepareRowFor(isa);
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + static_cast<size_t>(row) * args.x_stride;
    uint8_t* out = static_cast<uint8_t*>(args.out) + row * row_bytes;
    if (args.format == ActivationFormat::kF32) {
      std::memcpy(out, x, row_bytes);
    } else {
      prepare_row(x, args.dim, out);
    }
  }
}

}  // namespace layover
