// The probe for AVX512.
#if defined(__x86_64__)
#define LAYOVER_SIMD_AVX512 1
#include "tests/kernels/simd_probe.inc"
#endif
