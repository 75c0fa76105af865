// Cuts a product into tasks and hands runs of them to the kernels of an instruction set.
#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "common/check.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/packed_layout.h"

namespace layover {
namespace {

constexpr int kTaskTiles = 2;  // 32 outputs: what the tall products unpack at once

const CpuPackedWeight& PackedOf(const MatMulArgs& args) {
  LAYOVER_CHECK(args.weight != nullptr && args.weight->experts == 1);
  return static_cast<const CpuPackedWeight&>(*args.weight);
}

const MatMulKernels& KernelsOf(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return kMatMulAvx512;
  if (isa == CpuIsa::kAvx2) return kMatMulAvx2;
#endif
  return kMatMulScalar;
}

MatMulKernels::Kernel KernelOf(const MatMulKernels& kernels, WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return kernels.f32;
    case WeightType::kF16:
      return kernels.f16;
    case WeightType::kBF16:
      return kernels.bf16;
    case WeightType::kQ4_0:
      return kernels.q4_0;
    case WeightType::kQ4_1:
      return kernels.q4_1;
    case WeightType::kQ8_0:
      return kernels.q8_0;
    case WeightType::kQ6_K:
      return kernels.q6_k;
    default:
      return nullptr;
  }
}

// A thread's working memory for unpacked weights; grows to the largest product it has seen.
uint8_t* Scratch(size_t bytes) {
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<uint8_t, Free> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    size = (bytes + 4095) / 4096 * 4096;
    memory.reset(static_cast<uint8_t*>(std::aligned_alloc(4096, size)));
    LAYOVER_CHECK(memory != nullptr);
  }
  return memory.get();
}

}  // namespace

int CpuMatMulColumns(const CpuPackedWeight& weight) {
  return (weight.tiles() + kTaskTiles - 1) / kTaskTiles;
}

void CpuRunMatMulPiece(CpuIsa isa, const MatMulPiece& piece) {
  const CpuPackedWeight& weight = *piece.weight;
  LAYOVER_CHECK(piece.n_rows <= kMatMulPieceRows && 0 <= piece.expert && piece.expert < weight.experts);
  const MatMulKernels& kernels = KernelsOf(isa);
  const MatMulKernels::Kernel kernel = KernelOf(kernels, weight.type);
  LAYOVER_CHECK(kernel != nullptr);
  kernel(MatMulJob{
      .tiles = weight.data() + static_cast<size_t>(piece.expert) * weight.tiles() * weight.tile_bytes(),
      .tile_bytes = weight.tile_bytes(),
      .tile_begin = piece.column_begin * kTaskTiles,
      .tile_end = std::min(piece.column_end * kTaskTiles, weight.tiles()),
      .cols = weight.cols,
      .n_out = weight.rows,
      .x = piece.x,
      .x_row_bytes = CpuActivationBytes(weight.activation, 1, weight.cols),
      .n_rows = piece.n_rows,
      .out = piece.out,
      .out_stride = piece.out_stride,
      .out_rows = piece.out_rows,
      .bias = piece.bias,
      .residual = piece.residual,
      .scratch = Scratch(kernels.scratch_bytes(piece.n_rows, weight.cols)),
  });
}

int CpuMatMulTasks(const MatMulArgs& args) {
  return CpuMatMulColumns(PackedOf(args)) * ((args.n_rows + kMatMulPieceRows - 1) / kMatMulPieceRows);
}

void CpuMatMulRange(CpuIsa isa, const MatMulArgs& args, int task_begin, int task_end) {
  LAYOVER_CHECK(0 <= task_begin && task_begin <= task_end && task_end <= CpuMatMulTasks(args));
  const CpuPackedWeight& weight = PackedOf(args);
  const int column_tasks = CpuMatMulColumns(weight);
  const size_t x_row_bytes = CpuActivationBytes(weight.activation, 1, weight.cols);

  // Runs of tasks that share a block of rows.
  while (task_begin < task_end) {
    const int row_begin = task_begin / column_tasks * kMatMulPieceRows;
    const int column_begin = task_begin % column_tasks;
    const int columns = std::min(task_end - task_begin, column_tasks - column_begin);
    const ptrdiff_t out_offset = static_cast<ptrdiff_t>(row_begin) * args.out_stride;
    MatMulPiece piece;
    piece.weight = &weight;
    piece.column_begin = column_begin;
    piece.column_end = column_begin + columns;
    piece.x = static_cast<const uint8_t*>(args.x) + row_begin * x_row_bytes;
    piece.n_rows = std::min(kMatMulPieceRows, args.n_rows - row_begin);
    piece.out = args.out + out_offset;
    piece.out_stride = args.out_stride;
    piece.bias = args.bias;
    piece.residual = args.residual == nullptr ? nullptr : args.residual + out_offset;
    CpuRunMatMulPiece(isa, piece);
    task_begin += columns;
  }
}

}  // namespace layover
