// The operations of row_ops.h for AVX-512.
#define LAYOVER_SIMD_AVX512 1
#include "kernels/cpu/row_ops_kernel.inc"
