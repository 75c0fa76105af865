// MatMul and MoeMatMul on the CPU, cut into tasks that the caller spreads over its threads; nothing here starts one.
// Tasks write disjoint outputs, may run in any order and on any thread, and the bits of an output do not depend on how
// the range of tasks is cut. kernels/README.md has the arithmetic.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_H_
#define LAYOVER_KERNELS_CPU_MATMUL_H_

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

namespace layover {

// A task is 32 outputs of a block of rows; columns run fastest, so neighbouring tasks read neighbouring weights and one
// long range is faster than many short ones. At least 1 if n_rows > 0.
int CpuMatMulTasks(const MatMulArgs& args);

// args.weight is a CpuPackedWeight. Runs tasks [task_begin, task_end) of CpuMatMulTasks(args).
void CpuMatMulRange(CpuIsa isa, const MatMulArgs& args, int task_begin, int task_end);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_H_
