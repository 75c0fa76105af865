// The K/V codec for AVX2.
#define LAYOVER_SIMD_AVX2 1
#include "kernels/cpu/kv_codec_kernel.inc"
