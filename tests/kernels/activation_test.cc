// PrepareActivation: the rounding of kA16 against its definition, and the same bytes on every instruction set.
#include "kernels/cpu/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/packed_layout.h"
#include "tests/kernels/reference_matmul.h"

namespace layover {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<uint8_t> Prepare(CpuIsa isa, const std::vector<float>& x, int dim) {
  const int n_rows = static_cast<int>(x.size()) / dim;
  std::vector<uint8_t> out(CpuActivationBytes(ActivationFormat::kA16, n_rows, dim), 0xcd);
  CpuPrepareActivationRange(isa, {x.data(), n_rows, dim, dim, ActivationFormat::kA16, out.data()}, 0, n_rows);
  return out;
}

int ValueAt(const std::vector<uint8_t>& row, int k) {
  const auto* halves = reinterpret_cast<const int8_t*>(row.data()) + k / 32 * kA16ValueBytes + k % 32;
  return halves[0] * 256 + halves[32];
}

A16Block BlockAt(const std::vector<uint8_t>& row, int dim, int b) {
  A16Block block;
  std::memcpy(&block, row.data() + dim * 2 + b * sizeof(block), sizeof(block));
  return block;
}

// One block each of what can go wrong.
std::vector<float> HardBlocks() {
  std::vector<float> x;
  const auto add = [&x](auto value_at) {
    for (int k = 0; k < 32; ++k) x.push_back(value_at(k));
  };
  add([](int) { return 0.0f; });
  add([](int) { return -0.0f; });
  add([](int k) { return k == 17 ? 1.0f : 0.0f; });
  add([](int k) { return k == 3 ? 32639.0f : static_cast<float>(k) + 0.5f; });  // ties, to even
  add([](int k) { return k == 3 ? -32639.0f : static_cast<float>(-k) - 0.5f; });
  add([](int k) { return k % 2 ? 3e38f : -3e38f; });
  add([](int) { return std::numeric_limits<float>::max(); });
  add([](int) { return -1.0f; });                                              // every value at the limit
  add([](int k) { return std::ldexp(1.0f, -100) * (k == 0 ? 1.0f : 0.3f); });  // the smallest block kept
  add([](int) { return std::nextafter(std::ldexp(1.0f, -100), 0.0f); });       // the largest that is not
  add([](int) { return std::numeric_limits<float>::denorm_min(); });
  add([](int k) { return k == 31 ? kInfinity : 1.0f; });
  add([](int k) { return k == 16 ? -kInfinity : 1.0f; });
  add([](int k) { return k == 0 ? kNan : 1.0f; });
  add([](int k) { return k == 15 ? -kNan : kInfinity; });
  return x;
}

TEST(PrepareActivation, BytesAreTheSameOnEveryIsa) {
  std::vector<float> x = HardBlocks();
  const int dim = static_cast<int>(x.size());
  const std::vector<float> more = RandomRows(20, dim, 1);
  x.insert(x.end(), more.begin(), more.end());
  const std::vector<uint8_t> want = Prepare(CpuIsa::kScalar, x, dim);
  for (const CpuIsa isa : AvailableIsas()) {
    EXPECT_EQ(std::memcmp(Prepare(isa, x, dim).data(), want.data(), want.size()), 0) << CpuIsaName(isa);
  }
}

TEST(PrepareActivation, FollowsItsDefinition) {
  const int dim = 576;
  const std::vector<float> x = RandomRows(1, dim, 2);
  const std::vector<double> error = A16Error(x, dim);
  const std::vector<uint8_t> row = Prepare(BestCpuIsa(), x, dim);
  for (int b = 0; b < dim / 32; ++b) {
    const A16Block block = BlockAt(row, dim, b);
    int sum = 0, first = 0, largest = 0;
    for (int k = 32 * b; k < 32 * (b + 1); ++k) {
      const int a = ValueAt(row, k);
      EXPECT_LE(std::abs(static_cast<double>(block.scale) * a - x[k]), error[k]) << k;
      sum += a;
      if (k % 32 < 16) first += a;
      largest = std::max(largest, std::abs(a));
    }
    EXPECT_EQ(largest, 32639);
    EXPECT_EQ(block.sum_x128, 128 * sum);
    EXPECT_EQ(block.first_half_x128, 128 * first);
    EXPECT_EQ(block.scaled_sum, static_cast<float>(sum) * block.scale);
  }
}

TEST(PrepareActivation, HardBlocksComeOutAsDefined) {
  const std::vector<float> x = HardBlocks();
  const int dim = static_cast<int>(x.size());
  const std::vector<uint8_t> row = Prepare(BestCpuIsa(), x, dim);
  const auto value = [&row](int b, int k) { return ValueAt(row, 32 * b + k); };
  const auto scale = [&row, dim](int b) { return BlockAt(row, dim, b).scale; };
  EXPECT_EQ(scale(0), 0.0f);
  EXPECT_EQ(scale(1), 0.0f);
  EXPECT_EQ(value(2, 17), 32639);
  EXPECT_EQ(value(2, 16), 0);
  EXPECT_EQ(scale(3), 1.0f);
  EXPECT_EQ(value(3, 0), 0);   // 0.5
  EXPECT_EQ(value(3, 1), 2);   // 1.5
  EXPECT_EQ(value(3, 2), 2);   // 2.5
  EXPECT_EQ(value(4, 1), -2);  // -1.5
  EXPECT_EQ(value(4, 3), -32639);
  EXPECT_EQ(value(6, 9), 32639);
  EXPECT_EQ(BlockAt(row, dim, 6).sum_x128, 128 * 32 * 32639);
  EXPECT_EQ(value(7, 9), -32639);
  EXPECT_GT(scale(8), 0.0f);
  EXPECT_EQ(value(8, 0), 32639);
  EXPECT_EQ(scale(9), 0.0f);
  EXPECT_EQ(value(9, 0), 0);
  EXPECT_EQ(scale(10), 0.0f);
  for (int b = 11; b <= 14; ++b) {
    EXPECT_TRUE(std::isnan(scale(b))) << b;
    EXPECT_TRUE(std::isnan(BlockAt(row, dim, b).scaled_sum)) << b;
    for (int k = 0; k < 32; ++k) EXPECT_EQ(value(b, k), 0);
  }
}

TEST(PrepareActivation, StridesAndRangesAndPlainFloats) {
  const int dim = 64, stride = 96;
  const std::vector<float> x = RandomRows(3, stride, 3);
  for (const ActivationFormat format : {ActivationFormat::kF32, ActivationFormat::kA16}) {
    const size_t row_bytes = CpuActivationBytes(format, 1, dim);
    std::vector<uint8_t> together(3 * row_bytes), apart(3 * row_bytes), alone(row_bytes);
    PrepareActivationArgs args{x.data(), 3, dim, stride, format, together.data()};
    CpuPrepareActivationRange(BestCpuIsa(), args, 0, 3);
    args.out = apart.data();
    for (const int row : {2, 0, 1}) CpuPrepareActivationRange(BestCpuIsa(), args, row, row + 1);
    EXPECT_EQ(together, apart);
    CpuPrepareActivationRange(BestCpuIsa(), {x.data() + 2 * stride, 1, dim, dim, format, alone.data()}, 0, 1);
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + 2 * row_bytes, row_bytes), 0);
    if (format == ActivationFormat::kF32) {
      EXPECT_EQ(std::memcmp(alone.data(), x.data() + 2 * stride, row_bytes), 0);
    }
  }
}

}  // namespace
}  // namespace layover
