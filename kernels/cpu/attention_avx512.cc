// Attention for AVX-512.
#define LAYOVER_SIMD_AVX512 1
#include "kernels/cpu/attention_kernel.inc"
