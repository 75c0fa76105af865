// The operations of row_ops.h for any machine, one float at a time.
#define LAYOVER_SIMD_SCALAR 1
#include "kernels/cpu/row_ops_kernel.inc"
