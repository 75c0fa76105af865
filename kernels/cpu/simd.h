// Sixteen float lanes, the same on every instruction set: one zmm register, two ymm registers, or a plain array. A
// kernel is written once against this (<op>_kernel.inc) and compiled three times (<op>_avx512.cc, <op>_avx2.cc,
// <op>_scalar.cc); each lane then does the same IEEE operations in the same order, so the bits agree by construction.
//
// A file that includes this first defines LAYOVER_SIMD_AVX512, LAYOVER_SIMD_AVX2 or LAYOVER_SIMD_SCALAR. All code
// stands in the namespace of that instruction set: two files must never offer the linker differently compiled copies of
// one inline function. For the same reason nothing here or in a .inc uses templates or inline functions of std that are
// not sure to be inlined: an AVX-512 copy of one could end up in code that an older machine runs.
//
// NaN: it stays NaN, its payload may differ.
#ifndef LAYOVER_KERNELS_CPU_SIMD_H_
#define LAYOVER_KERNELS_CPU_SIMD_H_

#include <cstdint>
#include <cstring>

#if defined(LAYOVER_SIMD_AVX512)
#define LAYOVER_SIMD_NAMESPACE avx512
#include "kernels/cpu/simd_avx512.h"
#elif defined(LAYOVER_SIMD_AVX2)
#define LAYOVER_SIMD_NAMESPACE avx2
#include "kernels/cpu/simd_avx2.h"
#elif defined(LAYOVER_SIMD_SCALAR)
#define LAYOVER_SIMD_NAMESPACE scalar
#include "kernels/cpu/simd_scalar.h"
#else
#error "define LAYOVER_SIMD_AVX512, LAYOVER_SIMD_AVX2 or LAYOVER_SIMD_SCALAR"
#endif

namespace layover::LAYOVER_SIMD_NAMESPACE {

// Lanes below n; the others are zero.
inline F32x16 LoadPart(const float* p, int n) {
  if (n >= 16) return Load(p);
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return Load(lanes);
}

inline void StorePart(float* p, int n, F32x16 x) {
  if (n >= 16) return Store(p, x);
  float lanes[16];
  Store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

// e^x, within 1 ulp (2 near the smallest results); 1 exactly at 0, 0 below -104, infinity above 88.73.
// x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial of degree 6 (relative error 3e-9), times 2^n.
inline F32x16 Exp(F32x16 x) {
  x = Min(Broadcast(89.0f), Max(Broadcast(-105.0f), x));  // NaN passes through, see Min
  const F32x16 round = Broadcast(12582912.0f);            // 1.5 * 2^23: adding it rounds to an integer
  const F32x16 n = Sub(Fma(x, Broadcast(kLog2E), round), round);
  F32x16 r = Fma(n, Broadcast(-kLn2High), x);
  r = Fma(n, Broadcast(-kLn2Low), r);
  F32x16 p = Broadcast(kExpPolynomial[4]);
  p = Fma(p, r, Broadcast(kExpPolynomial[3]));
  p = Fma(p, r, Broadcast(kExpPolynomial[2]));
  p = Fma(p, r, Broadcast(kExpPolynomial[1]));
  p = Fma(p, r, Broadcast(kExpPolynomial[0]));
  p = Fma(p, r, Broadcast(1.0f));
  p = Fma(p, r, Broadcast(1.0f));
  return ScaleByPowerOf2(p, n);
}

// 1 / (1 + e^-x)
inline F32x16 Sigmoid(F32x16 x) {
  const F32x16 one = Broadcast(1.0f);
  return Div(one, Add(one, Exp(Sub(Broadcast(0.0f), x))));
}

// x / (1 + e^-x)
inline F32x16 Silu(F32x16 x) {
  return Div(x, Add(Broadcast(1.0f), Exp(Sub(Broadcast(0.0f), x))));
}

}  // namespace layover::LAYOVER_SIMD_NAMESPACE

#endif  // LAYOVER_KERNELS_CPU_SIMD_H_
