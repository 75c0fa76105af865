// The operations of row_ops.h for AVX2.
#define LAYOVER_SIMD_AVX2 1
#include "kernels/cpu/row_ops_kernel.inc"
