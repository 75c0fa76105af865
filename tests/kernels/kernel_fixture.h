// What the kernel tests share: devices of every instruction set and thread count, seeded values, and comparisons that a
// NaN fails.
#ifndef LAYOVER_TESTS_KERNELS_KERNEL_FIXTURE_H_
#define LAYOVER_TESTS_KERNELS_KERNEL_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops.h"
#include "tests/kernels/reference.h"

namespace layover::kernel_test {

// One way to run an operation; all must give the same bits.
struct Variant {
  CpuIsa isa = CpuIsa::kScalar;
  int threads = 1;
  std::string Name() const { return fmt::format("{}, {} threads", CpuIsaName(isa), threads); }
};

// The first is the one that the others are compared with.
inline std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (int isa = 0; isa <= static_cast<int>(BestCpuIsa()); ++isa) {
    for (const int threads : {1, 2, 3}) variants.push_back({static_cast<CpuIsa>(isa), threads});
  }
  return variants;
}

inline std::unique_ptr<Device> OpenCpu(const Variant& variant) {
  auto device = OpenDevice("cpu", {variant.threads, std::string(CpuIsaName(variant.isa))});
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(device).value();
}

inline Variant BestVariant() {
  return {BestCpuIsa(), 1};
}

// Normal values, reproducible.
inline std::vector<float> NormalValues(size_t n, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

inline testing::AssertionResult SameBits(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " values, not " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
    return testing::AssertionFailure() << fmt::format("value {} of {}: {:.9g} is not {:.9g}", i, got.size(), got[i],
                                                      want[i]);
  }
  return testing::AssertionSuccess();
}

// Reports the element that is farthest out in units of its bound. A NaN is farther out than anything.
inline testing::AssertionResult WithinBounds(const float* got, const std::vector<reference::Bounded>& want) {
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double ratio = std::abs(got[i] - want[i].value) / want[i].bound;
    if (!(ratio <= worst)) {
      worst = ratio;
      at = i;
      if (std::isnan(ratio)) break;
    }
  }
  if (worst <= 1) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format(
             "value {}: {:.9g}, reference {:.9g}, bound {:.3g}, off by {:.2f} bounds", at, got[at], want[at].value,
             want[at].bound, worst);
}

}  // namespace layover::kernel_test

#endif  // LAYOVER_TESTS_KERNELS_KERNEL_FIXTURE_H_
