// CausalConv and GatedDeltaNet for AVX-512.
#define LAYOVER_SIMD_AVX512 1
#include "kernels/cpu/recurrent_ops_kernel.inc"
