// Attention for AVX2.
#define LAYOVER_SIMD_AVX2 1
#include "kernels/cpu/attention_kernel.inc"
