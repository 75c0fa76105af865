// The contract's own functions on the device: exp, sigmoid, cos and sin, and the sums of sixteen lanes. Same steps,
// same constants and so the same bits as kernels/cpu/simd.h and row_ops_kernel.inc.
#ifndef LAYOVER_KERNELS_CUDA_DEVICE_MATH_H_
#define LAYOVER_KERNELS_CUDA_DEVICE_MATH_H_

#include "kernels/cpu/math_tables.h"
#include "kernels/cuda/gpu.h"

namespace layover::gpu {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr float kMinusInfinity = -__builtin_huge_valf();

// b where either is a NaN, as the CPU's.
__device__ __forceinline__ float Max(float a, float b) {
  return a > b ? a : b;
}
__device__ __forceinline__ float Min(float a, float b) {
  return a < b ? a : b;
}
__device__ __forceinline__ int MaxInt(int a, int b) {
  return a > b ? a : b;
}
__device__ __forceinline__ int MinInt(int a, int b) {
  return a < b ? a : b;
}

// p * 2^n, rounded once.
__device__ __forceinline__ float ScaleByPowerOf2(float p, float n) {
  if (n != n) return n;
  const int exponent = static_cast<int>(n);
  const int first = exponent >> 1;
  const int second = exponent - first;
  return p * __int_as_float((first + 127) << 23) * __int_as_float((second + 127) << 23);
}

__device__ __forceinline__ float Exp(float x) {
  constexpr float kC0 = kExpPolynomial[0], kC1 = kExpPolynomial[1], kC2 = kExpPolynomial[2], kC3 = kExpPolynomial[3],
                  kC4 = kExpPolynomial[4];
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = Min(89.0f, Max(-105.0f, x));
  const float n = fmaf(x, kLog2E, kRound) - kRound;
  float r = fmaf(n, -kLn2High, x);
  r = fmaf(n, -kLn2Low, r);
  float p = kC4;
  p = fmaf(p, r, kC3);
  p = fmaf(p, r, kC2);
  p = fmaf(p, r, kC1);
  p = fmaf(p, r, kC0);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return ScaleByPowerOf2(p, n);
}

__device__ __forceinline__ float Sigmoid(float x) {
  return 1.0f / (1.0f + Exp(0.0f - x));
}

// cos and sin of x >= 0.
__device__ __forceinline__ void CosSin(double x, double* cos_out, double* sin_out) {
  constexpr double kS0 = kSinPolynomial[0], kS1 = kSinPolynomial[1], kS2 = kSinPolynomial[2], kS3 = kSinPolynomial[3],
                   kS4 = kSinPolynomial[4], kS5 = kSinPolynomial[5];
  constexpr double kC0 = kCosPolynomial[0], kC1 = kCosPolynomial[1], kC2 = kCosPolynomial[2], kC3 = kCosPolynomial[3],
                   kC4 = kCosPolynomial[4], kC5 = kCosPolynomial[5];
  constexpr double kRound = 0x1.8p52;
  const double k = (x * kTwoOverPi + kRound) - kRound;
  const double r = fma(-k, kHalfPiLow, fma(-k, kHalfPiHigh, x));
  const double z = r * r;
  double s = fma(fma(fma(fma(fma(kS5, z, kS4), z, kS3), z, kS2), z, kS1), z, kS0);
  double c = fma(fma(fma(fma(fma(kC5, z, kC4), z, kC3), z, kC2), z, kC1), z, kC0);
  s = fma(r * z, s, r);
  c = fma(z * z, c, fma(-0.5, z, 1.0));
  const int quadrant = static_cast<int>(static_cast<long long>(k) & 3);
  const double cos_abs = quadrant & 1 ? s : c;
  const double sin_abs = quadrant & 1 ? c : s;
  *cos_out = quadrant == 1 || quadrant == 2 ? -cos_abs : cos_abs;
  *sin_out = quadrant >= 2 ? -sin_abs : sin_abs;
}

// The tree of sixteen lanes: (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1); both halves of the warp at once.
__device__ __forceinline__ float TreeSum(float x) {
  x = x + __shfl_xor_sync(kAllLanes, x, 8);
  x = x + __shfl_xor_sync(kAllLanes, x, 4);
  x = x + __shfl_xor_sync(kAllLanes, x, 2);
  return x + __shfl_xor_sync(kAllLanes, x, 1);
}

// One of the four words; `i` is known when compiling, after unrolling.
__device__ __forceinline__ uint32_t WordOf(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_DEVICE_MATH_H_
