// The K/V codec for any machine, one float at a time.
#define LAYOVER_SIMD_SCALAR 1
#include "kernels/cpu/kv_codec_kernel.inc"
