// The probe for AVX2.
#if defined(__x86_64__)
#define LAYOVER_SIMD_AVX2 1
#include "tests/kernels/simd_probe.inc"
#endif
