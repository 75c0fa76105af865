// MatMul on the CPU, cut into tasks that the caller spreads over its threads; nothing here starts one.
// Tasks write disjoint outputs, may run in any order and on any thread, and the bits of an output do not depend on how
// the range of tasks is cut. kernels/README.md has the arithmetic.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_H_
#define LAYOVER_KERNELS_CPU_MATMUL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/ops.h"

namespace layover {

// A task is 32 outputs of a block of rows; columns run fastest, so neighbouring tasks read neighbouring weights and one
// long range is faster than many short ones. At least 1 if n_rows > 0.
int CpuMatMulTasks(const MatMulArgs& args);

// args.weight is a CpuPackedWeight. Runs tasks [task_begin, task_end) of CpuMatMulTasks(args).
void CpuMatMulRange(CpuIsa isa, const MatMulArgs& args, int task_begin, int task_end);

// Rows that one piece may have: enough to pay for unpacking its weights, few enough that their activations stay in the
// L2 cache.
inline constexpr int kMatMulPieceRows = 192;

// One expert's weight times rows that stand back to back.
struct MatMulPiece {
  const CpuPackedWeight* weight = nullptr;
  int expert = 0;
  int column_begin = 0;  // column tasks [column_begin, column_end) of CpuMatMulColumns(weight)
  int column_end = 0;
  const uint8_t* x = nullptr;  // [n_rows] prepared rows
  int n_rows = 0;              // up to kMatMulPieceRows
  float* out = nullptr;
  ptrdiff_t out_stride = 0;
  const int32_t* out_rows = nullptr;  // [n_rows], where row r goes; null: to row r
  const float* bias = nullptr;        // [n_out] of the expert, or null
  const float* residual = nullptr;    // as out, or null
};
int CpuMatMulColumns(const CpuPackedWeight& weight);
void CpuRunMatMulPiece(CpuIsa isa, const MatMulPiece& piece);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_H_
