#include "stage_worker/fixed_math.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// The lanes live in registers only if these small functions are part of their loops.
#define LAYOVER_INLINE inline __attribute__((always_inline))

namespace layover {
namespace {

constexpr size_t kLanes = 4;
using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kLowest = -std::numeric_limits<float>::infinity();

LAYOVER_INLINE Float4 Splat(float x) {
  return Float4{x, x, x, x};
}

LAYOVER_INLINE Float4 Load(const float* from) {
  Float4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

LAYOVER_INLINE Int4 BitsOfFloat(Float4 x) {
  Int4 bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

LAYOVER_INLINE Float4 FloatOfBits(Int4 bits) {
  Float4 x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// exp(x) for x <= 0; 0 below -87 and for NaN: x = n ln 2 + f, e^f = 1 + f + f^2 p(f) for |f| <= 0.347, 2^n into the
// exponent. The polynomial is that of the Cephes library's expf.
LAYOVER_INLINE Float4 ExpOfNonPositive(Float4 x) {
  constexpr float kSmallest = -87.0f;
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr float kLn2High = 0.693359375f;        // few enough bits that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  const Int4 is_normal = x >= Splat(kSmallest);  // all ones or all zeros
  const Float4 n = (x * Splat(1.44269504f) + Splat(kRoundToInteger)) - Splat(kRoundToInteger);
  const Float4 f = (x - n * Splat(kLn2High)) - n * Splat(kLn2Low);
  Float4 p = Splat(1.9875691500e-4f);
  p = p * f + Splat(1.3981999507e-3f);
  p = p * f + Splat(8.3334519073e-3f);
  p = p * f + Splat(4.1665795894e-2f);
  p = p * f + Splat(1.6666665459e-1f);
  p = p * f + Splat(5.0000001201e-1f);
  const Float4 mantissa = (p * (f * f) + f) + Splat(1.0f);
  const Float4 exponent = FloatOfBits(BitsOfFloat(n) & is_normal);  // elsewhere n may be no int32
  const Int4 bits = BitsOfFloat(mantissa) + (__builtin_convertvector(exponent, Int4) << 23);
  return FloatOfBits(bits & is_normal);
}

LAYOVER_INLINE Float4 ClampInfinity(Float4 x) {
  return x > Splat(kLargest) ? Splat(kLargest) : x;
}

// exp((x - max) * scale). Only a row with +infinity in it has `max` at the largest float.
LAYOVER_INLINE Float4 ScaledExp4(Float4 x, float max, float scale) {
  if (max == kLargest) x = ClampInfinity(x);
  return ExpOfNonPositive((x - Splat(max)) * Splat(scale));
}

// Fewer than four values, filled up with -infinity.
Float4 LoadPart(std::span<const float> values) {
  float part[kLanes] = {kLowest, kLowest, kLowest, kLowest};
  std::copy(values.begin(), values.end(), part);
  return Load(part);
}

// Eight lanes, lane 0 first.
double SumOfLanes(Float4 low, Float4 high) {
  double sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(low[lane]);
  for (size_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(high[lane]);
  return sum;
}

}  // namespace

void ScaledExp(std::span<const float> logits, float max, float scale, float* out) {
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Float4 value = ScaledExp4(Load(logits.data() + i), max, scale);
    std::memcpy(out + i, &value, sizeof value);
  }
  if (i == logits.size()) return;
  const Float4 value = ScaledExp4(LoadPart(logits.subspan(i)), max, scale);
  std::memcpy(out + i, &value, (logits.size() - i) * sizeof(float));
}

double SumOfExp(std::span<const float> logits, float max) {
  double total = 0;
  size_t begin = 0;
  for (; begin + kSumBlock <= logits.size(); begin += kSumBlock) {
    Float4 low = Splat(0.0f);
    Float4 high = Splat(0.0f);
    for (size_t i = begin; i < begin + kSumBlock; i += 2 * kLanes) {
      low += ScaledExp4(Load(logits.data() + i), max, 1.0f);
      high += ScaledExp4(Load(logits.data() + i + kLanes), max, 1.0f);
    }
    total += SumOfLanes(low, high);
  }
  float rest[kSumBlock];
  ScaledExp(logits.subspan(begin), max, 1.0f, rest);
  for (const double sum : BlockSums(std::span<const float>(rest, logits.size() - begin))) total += sum;
  return total;
}

std::vector<double> BlockSums(std::span<const float> values) {
  std::vector<double> sums;
  sums.reserve(values.size() / kSumBlock + 1);
  for (size_t begin = 0; begin < values.size(); begin += kSumBlock) {
    float padded[kSumBlock] = {};
    const size_t n = std::min(kSumBlock, values.size() - begin);
    const float* block = values.data() + begin;
    if (n < kSumBlock) {
      std::copy(block, block + n, padded);
      block = padded;
    }
    Float4 low = Splat(0.0f);   // lanes 0 to 3
    Float4 high = Splat(0.0f);  // lanes 4 to 7
    for (size_t i = 0; i < kSumBlock; i += 2 * kLanes) {
      low += Load(block + i);
      high += Load(block + i + kLanes);
    }
    sums.push_back(SumOfLanes(low, high));
  }
  return sums;
}

float MaxOf(std::span<const float> values) {
  Float4 best[2] = {Splat(kLowest), Splat(kLowest)};  // two, so that one comparison need not wait for the other
  size_t i = 0;
  for (; i + 2 * kLanes <= values.size(); i += 2 * kLanes) {
    const Float4 first = Load(values.data() + i);
    const Float4 second = Load(values.data() + i + kLanes);
    best[0] = first > best[0] ? first : best[0];
    best[1] = second > best[1] ? second : best[1];
  }
  float max = kLowest;
  for (size_t lane = 0; lane < kLanes; ++lane) max = std::max({max, best[0][lane], best[1][lane]});
  for (; i < values.size(); ++i) max = values[i] > max ? values[i] : max;
  return std::min(max, kLargest);
}

double FixedLog(double x) {
  constexpr double kLn2 = 0.693147180559945309417232121458;
  constexpr double kSqrtHalf = 0.707106781186547524400844362105;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // exact
  if (mantissa < kSqrtHalf) {
    mantissa *= 2;
    --exponent;
  }
  // log m = 2 atanh z, z = (m - 1) / (m + 1), |z| < 0.172.
  const double z = (mantissa - 1) / (mantissa + 1);
  const double z2 = z * z;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * z2 + 1.0 / k;
  return exponent * kLn2 + 2 * z * sum;
}

}  // namespace layover
