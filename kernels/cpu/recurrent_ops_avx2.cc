// CausalConv and GatedDeltaNet for AVX2.
#define LAYOVER_SIMD_AVX2 1
#include "kernels/cpu/recurrent_ops_kernel.inc"
