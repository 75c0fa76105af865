// K/V values to and from the canonical bytes of a row (KvType in ops.h), the same on every instruction set.
//
// Exactly, for a block x[32] (each step rounded to float to nearest even, divisions as IEEE):
//   f16   nearest even; above the range infinity.
//   q8_0  d = f16(max|x| / 127); r = 1 / d; q = clamp(nearest-even(x * r), -127, 127). A value is read as q * d.
//   q4_0  m = the x of largest magnitude (the first of equals); d = f16(m / -8); r = 1 / d;
//         q = clamp(nearest-even(x * r) + 8, 0, 15). A value is read as (q - 8) * d.
// d is rounded before it is divided by (unlike ggml), so q is the nearest for the d that is stored. Where d comes out
// as zero, of either sign, it is stored as +0 and q as that of zero. A block with an infinity or a NaN gets d = NaN;
// one whose d overflows gets d = infinity: no value of either reads as a number.
#ifndef LAYOVER_KERNELS_CPU_KV_CODEC_H_
#define LAYOVER_KERNELS_CPU_KV_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

namespace layover {

// n values (a multiple of 32 for q8_0 and q4_0), such as a whole row [kv_heads, head_dim].
using EncodeKvFunction = void (*)(const float* x, int n, void* out);
using DecodeKvFunction = void (*)(const void* in, int n, float* x);

EncodeKvFunction CpuEncodeKv(CpuIsa isa, KvType type);
DecodeKvFunction CpuDecodeKv(CpuIsa isa, KvType type);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_KV_CODEC_H_
