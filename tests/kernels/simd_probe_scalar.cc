// The probe for any machine.
#define LAYOVER_SIMD_SCALAR 1
#include "tests/kernels/simd_probe.inc"
