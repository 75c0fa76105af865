// The K/V codec for AVX-512.
#define LAYOVER_SIMD_AVX512 1
#include "kernels/cpu/kv_codec_kernel.inc"
