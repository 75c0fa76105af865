// CausalConv and GatedDeltaNet for any machine, one float at a time.
#define LAYOVER_SIMD_SCALAR 1
#include "kernels/cpu/recurrent_ops_kernel.inc"
