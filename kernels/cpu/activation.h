// PrepareActivation on the CPU: rows of floats into what MatMul reads. The bytes are the same on every instruction set.
//
// kF32: the rows themselves, without stride.
// kA16: per row, first the values, then what goes with each block of 32 (dim / 32 blocks):
//   values  [blocks][64]  int8 high[32], int8 low[32]: a = 256 * high + low, |a| <= 32639
//   blocks  [blocks]      A16Block
// x is close to scale * a. Exactly: m = max|x| of the block; scale = m / 32639 and a = nearest-even(x * (32639 / m)),
// each operation rounded to float. A block with m < 2^-100 counts as zero (a = 0, scale = 0): its inverse would leave
// the float range. A block that holds an infinity or a NaN gets a = 0 and scale = NaN, so that every product with it
// is NaN rather than a plausible number.
#ifndef LAYOVER_KERNELS_CPU_ACTIVATION_H_
#define LAYOVER_KERNELS_CPU_ACTIVATION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

namespace layover {

size_t CpuActivationBytes(ActivationFormat format, int n_rows, int dim);

// Rows [row_begin, row_end) of args.n_rows; rows are independent, so the caller may split them over threads.
void CpuPrepareActivationRange(CpuIsa isa, const PrepareActivationArgs& args, int row_begin, int row_end);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_ACTIVATION_H_
