// The sixteen lanes: own exp against double, conversions against float16.h, and the same bits on every instruction set.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/float16.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/simd_probe.h"

namespace layover::kernel_test {
namespace {

const SimdProbe& ProbeOf(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return avx512::kSimdProbe;
  if (isa == CpuIsa::kAvx2) return avx2::kSimdProbe;
#endif
  return scalar::kSimdProbe;
}

std::vector<CpuIsa> Isas() {
  std::vector<CpuIsa> isas;
  for (int isa = 0; isa <= static_cast<int>(BestCpuIsa()); ++isa) isas.push_back(static_cast<CpuIsa>(isa));
  return isas;
}

// Every 997th float there is, NaNs included, filled up to whole vectors.
std::vector<float> FloatsOfAllKinds() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 997) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  while (values.size() % 16 != 0) values.push_back(1.0f);
  return values;
}

// How far `got` is from the exact value, in units of the last place of a float of that size.
double UlpsOff(float got, double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Exp, IsWithinTwoUlpOfTheExactValue) {
  std::vector<float> x = FloatsOfAllKinds();
  for (float value = -104; value < 89; value += 0.0007f) x.push_back(value);
  while (x.size() % 16 != 0) x.push_back(1.0f);
  std::vector<float> y(x.size());
  ProbeOf(BestCpuIsa()).exp(x.data(), static_cast<int>(x.size()), y.data());
  double worst = 0;
  float worst_at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i]));
    } else if (exact > static_cast<double>(std::numeric_limits<float>::max()) * 1.0000001) {
      ASSERT_EQ(y[i], INFINITY) << x[i];
    } else if (exact < 0x1p-151) {
      ASSERT_EQ(y[i], 0.0f) << x[i];
    } else if (std::isfinite(y[i]) && UlpsOff(y[i], exact) > worst) {
      worst = UlpsOff(y[i], exact);
      worst_at = x[i];
    }
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_at;
  RecordProperty("worst_ulp", fmt::format("{:.3f}", worst));
}

TEST(Exp, IsExactWhereAttentionRestsOnIt) {
  const std::array<float, 16> x = {0.0f, -0.0f, -INFINITY, INFINITY, -200.0f, 100.0f};
  for (const CpuIsa isa : Isas()) {
    std::array<float, 16> y;
    ProbeOf(isa).exp(x.data(), 16, y.data());
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], INFINITY);
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_EQ(y[5], INFINITY);
  }
}

TEST(Lanes, ExpHasTheSameBitsOnEveryIsa) {
  const std::vector<float> x = FloatsOfAllKinds();
  std::vector<float> want(x.size());
  ProbeOf(CpuIsa::kScalar).exp(x.data(), static_cast<int>(x.size()), want.data());
  for (const CpuIsa isa : Isas()) {
    std::vector<float> got(x.size());
    ProbeOf(isa).exp(x.data(), static_cast<int>(x.size()), got.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(want[i]) && std::isnan(got[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << x[i] << " " << CpuIsaName(isa);
    }
  }
}

TEST(Lanes, HalvesConvertAsFloat16Says) {
  const std::vector<float> x = FloatsOfAllKinds();
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const CpuIsa isa : Isas()) {
    std::vector<uint16_t> got(x.size());
    ProbeOf(isa).to_half(x.data(), static_cast<int>(x.size()), got.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], FloatToHalf(x[i])) << x[i] << " " << CpuIsaName(isa);
    std::vector<float> floats(halves.size());
    ProbeOf(isa).from_half(halves.data(), static_cast<int>(halves.size()), floats.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(HalfToFloat(halves[i]))) << i;
    }
  }
}

TEST(Lanes, ReductionsFollowTheTree) {
  const std::vector<float> x = NormalValues(16, 1);
  std::vector<float> tree = x;
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) tree[i] += tree[i + half];
  }
  for (const CpuIsa isa : Isas()) {
    EXPECT_EQ(ProbeOf(isa).reduce_add(x.data()), tree[0]) << CpuIsaName(isa);
    EXPECT_EQ(ProbeOf(isa).reduce_max(x.data()), *std::max_element(x.begin(), x.end())) << CpuIsaName(isa);
  }
}

TEST(Lanes, SelectRangeTakesHalfOpenRangesThatMayLieOutside) {
  std::array<float, 16> inside, outside, got;
  inside.fill(1);
  outside.fill(2);
  for (const CpuIsa isa : Isas()) {
    for (int begin = -20; begin <= 36; ++begin) {
      for (int end = -20; end <= 36; ++end) {
        ProbeOf(isa).select_range(begin, end, inside.data(), outside.data(), got.data());
        for (int i = 0; i < 16; ++i) ASSERT_EQ(got[i], i >= begin && i < end ? 1 : 2) << begin << " " << end;
      }
    }
  }
}

TEST(Lanes, PairsSplitAndJoin) {
  const std::vector<float> x = NormalValues(32, 2);
  for (const CpuIsa isa : Isas()) {
    std::vector<float> even(16), odd(16), joined(32);
    ProbeOf(isa).split_and_join_pairs(x.data(), even.data(), odd.data(), joined.data());
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(even[i], x[2 * i]);
      EXPECT_EQ(odd[i], x[2 * i + 1]);
    }
    EXPECT_TRUE(SameBits(joined, x));
  }
}

}  // namespace
}  // namespace layover::kernel_test
