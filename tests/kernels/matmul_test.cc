// MatMul: against double precision within a derived bound, and the same bits for every number of rows, every cut into
// tasks and every instruction set.
#include "kernels/cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/packed_layout.h"
#include "tests/kernels/reference_matmul.h"

namespace layover {
namespace {

std::unique_ptr<PackedWeight> Pack(const RawWeight& raw) {
  static auto& arena = *new CpuWeightArena;
  auto packed = PackCpuWeight(raw.Source(), &arena);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

struct Prepared {
  std::vector<uint8_t> bytes;
  int n_rows = 0;
};

Prepared Prepare(const PackedWeight& weight, const std::vector<float>& x) {
  const int n_rows = static_cast<int>(x.size()) / weight.cols;
  Prepared prepared{std::vector<uint8_t>(CpuActivationBytes(weight.activation, n_rows, weight.cols)), n_rows};
  CpuPrepareActivationRange(CpuIsa::kScalar,
                            {x.data(), n_rows, weight.cols, weight.cols, weight.activation, prepared.bytes.data()}, 0,
                            n_rows);
  return prepared;
}

// The activations that a product really sees, as double.
std::vector<double> ValuesOf(const PackedWeight& weight, const Prepared& x) {
  std::vector<double> values;
  const size_t row_bytes = CpuActivationBytes(weight.activation, 1, weight.cols);
  for (int row = 0; row < x.n_rows; ++row) {
    const uint8_t* bytes = x.bytes.data() + row * row_bytes;
    for (int k = 0; k < weight.cols; ++k) {
      if (weight.activation == ActivationFormat::kF32) {
        values.push_back(reinterpret_cast<const float*>(bytes)[k]);
        continue;
      }
      const auto* halves = reinterpret_cast<const int8_t*>(bytes) + k / 32 * kA16ValueBytes + k % 32;
      A16Block block;
      std::memcpy(&block, bytes + weight.cols * 2 + k / 32 * sizeof(block), sizeof(block));
      values.push_back(static_cast<double>(block.scale) * (halves[0] * 256 + halves[32]));
    }
  }
  return values;
}

struct Product {
  const PackedWeight& weight;
  const Prepared& x;
  int n_rows;
  const float* bias = nullptr;
  const float* residual = nullptr;
};

constexpr float kUntouched = 1234.5f;

// Runs the tasks in the order of `cuts`, pairs of begin and end; empty: all at once.
std::vector<float> Multiply(CpuIsa isa, const Product& run, const std::vector<std::pair<int, int>>& cuts = {}) {
  const int stride = run.weight.rows + 3;
  std::vector<float> out(static_cast<size_t>(run.n_rows) * stride, kUntouched);
  std::vector<float> residual(out.size());
  for (int row = 0; run.residual != nullptr && row < run.n_rows; ++row) {
    std::copy_n(run.residual + row * run.weight.rows, run.weight.rows, residual.data() + row * stride);
  }
  MatMulArgs args{&run.weight, run.x.bytes.data(), run.n_rows, out.data(), stride, run.bias};
  if (run.residual != nullptr) args.residual = residual.data();
  if (cuts.empty()) CpuMatMulRange(isa, args, 0, CpuMatMulTasks(args));
  for (const auto& [begin, end] : cuts) CpuMatMulRange(isa, args, begin, end);
  std::vector<float> dense;
  for (int row = 0; row < run.n_rows; ++row) {
    const float* at = out.data() + static_cast<size_t>(row) * stride;
    dense.insert(dense.end(), at, at + run.weight.rows);
    for (int gap = run.weight.rows; gap < stride; ++gap) EXPECT_EQ(at[gap], kUntouched) << "written past the row";
  }
  return dense;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> FirstRows(const std::vector<float>& all, int n_rows, int n_out) {
  return {all.begin(), all.begin() + static_cast<size_t>(n_rows) * n_out};
}

struct Shape {
  int rows, cols;
};
// Output counts around tiles of 16 and tasks of 32; odd numbers of blocks.
const std::vector<Shape> kBlock32Shapes = {{1, 32}, {16, 64}, {17, 96}, {31, 576}, {33, 160}, {65, 1536}, {100, 576}};
const std::vector<Shape> kBlock256Shapes = {{1, 256}, {16, 512}, {31, 768}, {33, 256}, {65, 1536}};
const std::vector<Shape> kFloatShapes = {{1, 1}, {16, 3}, {17, 97}, {31, 576}, {33, 50}, {65, 1536}};

const std::vector<Shape>& ShapesOf(WeightType type) {
  const int block = BlockElements(type);
  return block == 1 ? kFloatShapes : block == 32 ? kBlock32Shapes : kBlock256Shapes;
}

class MatMul : public testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Types, MatMul, testing::ValuesIn(kMatMulTypes),
                         [](const auto& type) { return std::string(WeightTypeName(type.param)); });

TEST_P(MatMul, BitsDependOnNothingButTheRow) {
  for (const Shape& shape : ShapesOf(GetParam())) {
    const RawWeight raw = RandomWeight(GetParam(), shape.rows, shape.cols, 11);
    const auto weight = Pack(raw);
    const Prepared x = Prepare(*weight, RandomRows(70, shape.cols, 12));
    const std::vector<float> want = Multiply(CpuIsa::kScalar, {*weight, x, 70});
    for (const CpuIsa isa : AvailableIsas()) {
      for (const int n_rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 17, 18, 19, 24, 25, 31, 37, 64, 70}) {
        EXPECT_TRUE(SameBits(Multiply(isa, {*weight, x, n_rows}), FirstRows(want, n_rows, shape.rows)))
            << CpuIsaName(isa) << ", " << n_rows << " rows, weight [" << shape.rows << ", " << shape.cols << "]";
      }
    }
  }
}

// The same product, sixteen rows at a time.
std::vector<float> MultiplyInPieces(const PackedWeight& weight, const Prepared& x, const float* bias,
                                    const float* residual) {
  const size_t row_bytes = x.bytes.size() / x.n_rows;
  std::vector<float> all;
  for (int row = 0; row < x.n_rows; row += 16) {
    const uint8_t* begin = x.bytes.data() + row * row_bytes;
    const Prepared piece{{begin, begin + 16 * row_bytes}, 16};
    const std::vector<float> part =
        Multiply(BestCpuIsa(), {weight, piece, 16, bias, residual + static_cast<size_t>(row) * weight.rows});
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST_P(MatMul, BitsDoNotDependOnTheCutIntoTasks) {
  const int n_rows = 400, n_out = 100, cols = 256;  // three blocks of rows, four tasks across
  const RawWeight raw = RandomWeight(GetParam(), n_out, cols, 13);
  const auto weight = Pack(raw);
  const Prepared x = Prepare(*weight, RandomRows(n_rows, cols, 14));
  const std::vector<float> bias = RandomRows(1, n_out, 15);
  const std::vector<float> residual = RandomRows(n_rows, n_out, 16);
  const Product run{*weight, x, n_rows, bias.data(), residual.data()};
  const std::vector<float> want = MultiplyInPieces(*weight, x, bias.data(), residual.data());
  const int tasks = CpuMatMulTasks({weight.get(), x.bytes.data(), n_rows});
  EXPECT_EQ(tasks, 12);
  std::mt19937 random(17);
  for (const CpuIsa isa : AvailableIsas()) {
    EXPECT_TRUE(SameBits(Multiply(isa, run), want)) << CpuIsaName(isa);
    for (int round = 0; round < 8; ++round) {
      std::vector<std::pair<int, int>> cuts;
      for (int begin = 0; begin < tasks;) {
        const int end = std::min(tasks, begin + 1 + static_cast<int>(random() % (round + 1)));
        cuts.emplace_back(begin, end);
        begin = end;
      }
      std::shuffle(cuts.begin(), cuts.end(), random);
      EXPECT_TRUE(SameBits(Multiply(isa, run, cuts), want)) << CpuIsaName(isa) << ", round " << round;
    }
  }
}

TEST_P(MatMul, StaysWithinTheBoundOfDouble) {
  for (const Shape& shape : ShapesOf(GetParam())) {
    const int n_rows = 15;
    const RawWeight raw = RandomWeight(GetParam(), shape.rows, shape.cols, 21);
    const auto weight = Pack(raw);
    const std::vector<float> x = RandomRows(n_rows, shape.cols, 22);
    const std::vector<float> bias = RandomRows(1, shape.rows, 23);
    const std::vector<float> residual = RandomRows(n_rows, shape.rows, 24);
    const Prepared prepared = Prepare(*weight, x);
    const std::vector<float> got = Multiply(BestCpuIsa(), {*weight, prepared, n_rows, bias.data(), residual.data()});
    // On the activations as prepared, and on the floats they came from.
    const auto close = WithinBound(
        got, MultiplyInDouble(raw, ValuesOf(*weight, prepared), {}, n_rows, bias.data(), residual.data()), shape.rows);
    EXPECT_TRUE(close);
    const bool integers = weight->activation == ActivationFormat::kA16;
    const std::vector<double> x_error = integers ? A16Error(x, shape.cols) : std::vector<double>();
    const auto near = WithinBound(
        got, MultiplyInDouble(raw, {x.begin(), x.end()}, x_error, n_rows, bias.data(), residual.data()), shape.rows);
    EXPECT_TRUE(near);
    if (shape.cols >= 1536) {
      std::printf("%s [%d, %d]: %s\n", std::string(WeightTypeName(GetParam())).c_str(), shape.rows, shape.cols,
                  close.message());
    }
  }
}

TEST_P(MatMul, BiasAndResidualAreAddedLastAndMayAlias) {
  const int n_out = 45, cols = 256;
  const RawWeight raw = RandomWeight(GetParam(), n_out, cols, 31);
  const auto weight = Pack(raw);
  const std::vector<float> bias = RandomRows(1, n_out, 32);
  for (const int n_rows : {1, 3, 16, 29}) {
    const Prepared x = Prepare(*weight, RandomRows(n_rows, cols, 33));
    const std::vector<float> residual = RandomRows(n_rows, n_out, 34);
    const std::vector<float> plain = Multiply(CpuIsa::kScalar, {*weight, x, n_rows});
    std::vector<float> with_bias, with_both;
    for (int i = 0; i < n_rows * n_out; ++i) {
      with_bias.push_back(plain[i] + bias[i % n_out]);
      with_both.push_back(with_bias[i] + residual[i]);
    }
    for (const CpuIsa isa : AvailableIsas()) {
      EXPECT_TRUE(SameBits(Multiply(isa, {*weight, x, n_rows, bias.data()}), with_bias));
      EXPECT_TRUE(SameBits(Multiply(isa, {*weight, x, n_rows, bias.data(), residual.data()}), with_both));
      std::vector<float> in_place = residual;
      const MatMulArgs args{weight.get(), x.bytes.data(), n_rows, in_place.data(), n_out, bias.data(), in_place.data()};
      CpuMatMulRange(isa, args, 0, CpuMatMulTasks(args));
      EXPECT_TRUE(SameBits(in_place, with_both)) << CpuIsaName(isa) << ", " << n_rows << " rows in place";
    }
  }
}

// The largest dots there are: every weight byte and every activation at one end. An accumulator that does not hold them
// comes out with the wrong sign.
TEST_P(MatMul, ExtremesDoNotOverflow) {
  if (BlockElements(GetParam()) == 1) return;  // no integers
  const int n_out = 16, cols = 512, n_rows = 14;
  for (const uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
    RawWeight raw = RandomWeight(GetParam(), n_out, cols, 41);
    for (size_t at = 0; at < raw.data.size(); at += BlockBytes(raw.type)) {
      std::memset(raw.data.data() + at, fill, BlockBytes(raw.type));
      PutScales(raw.type, raw.data.data() + at, 1.5f, 1.5f);
    }
    const auto weight = Pack(raw);
    std::vector<float> x(n_rows * cols, 3.0f);
    for (int k = 0; k < cols; ++k) x[cols + k] = -3.0f;                     // row 1: all at the other end
    for (int k = 0; k < cols; ++k) x[2 * cols + k] = k % 2 ? 3.0f : -3.0f;  // row 2: cancels
    const Prepared prepared = Prepare(*weight, x);
    const ReferenceProduct want = MultiplyInDouble(raw, ValuesOf(*weight, prepared), {}, n_rows);
    for (const CpuIsa isa : AvailableIsas()) {
      const std::vector<float> got = Multiply(isa, {*weight, prepared, n_rows});
      EXPECT_TRUE(WithinBound(got, want, n_out)) << CpuIsaName(isa);
      EXPECT_TRUE(SameBits(Multiply(isa, {*weight, prepared, 3}), FirstRows(got, 3, n_out))) << CpuIsaName(isa);
    }
  }
}

TEST_P(MatMul, ZerosAndSubnormals) {
  const int n_out = 20, cols = 256, n_rows = 13;
  RawWeight raw = RandomWeight(GetParam(), n_out, cols, 51);
  // Every third block has subnormal scales (or is a subnormal), every third a zero one.
  for (size_t i = 0; i < raw.data.size() / BlockBytes(raw.type); ++i) {
    uint8_t* block = raw.data.data() + i * BlockBytes(raw.type);
    if (i % 3 == 2) continue;
    const float tiny = i % 3 == 0 ? 0x1p-24f : 0.0f;
    if (BlockElements(raw.type) > 1) PutScales(raw.type, block, tiny, tiny);
    if (BlockElements(raw.type) == 1) {
      std::memset(block, 0, BlockBytes(raw.type));
      block[0] = i % 3 == 0;
    }
  }
  const auto weight = Pack(raw);
  std::vector<float> x = RandomRows(n_rows, cols, 52);
  for (int k = 0; k < cols; ++k) {
    x[k] = 0.0f;
    x[cols + k] *= 1e-38f;
    x[2 * cols + k] *= 1e-29f;
    if (k < 32) x[3 * cols + k] = 0.0f;
    if (k >= 64) x[4 * cols + k] *= 1e-20f;
  }
  const Prepared prepared = Prepare(*weight, x);
  const ReferenceProduct want = MultiplyInDouble(raw, ValuesOf(*weight, prepared), {}, n_rows);
  const std::vector<float> scalar = Multiply(CpuIsa::kScalar, {*weight, prepared, n_rows});
  EXPECT_TRUE(WithinBound(scalar, want, n_out));
  for (int o = 0; o < n_out; ++o) EXPECT_EQ(scalar[o], 0.0f);
  for (const CpuIsa isa : AvailableIsas()) {
    for (const int rows : {5, n_rows}) {
      EXPECT_TRUE(SameBits(Multiply(isa, {*weight, prepared, rows}), FirstRows(scalar, rows, n_out)))
          << CpuIsaName(isa);
    }
  }
}

TEST_P(MatMul, NanAndInfinityPoisonTheirRowOnly) {
  const int n_out = 20, cols = 256, n_rows = 14;
  const RawWeight raw = RandomWeight(GetParam(), n_out, cols, 61);
  const auto weight = Pack(raw);
  std::vector<float> x = RandomRows(n_rows, cols, 62);
  const std::vector<float> clean = Multiply(CpuIsa::kScalar, {*weight, Prepare(*weight, x), n_rows});
  x[3 * cols + 40] = std::numeric_limits<float>::quiet_NaN();
  x[8 * cols + 255] = -std::numeric_limits<float>::infinity();
  const Prepared prepared = Prepare(*weight, x);
  for (const CpuIsa isa : AvailableIsas()) {
    const std::vector<float> got = Multiply(isa, {*weight, prepared, n_rows});
    for (int i = 0; i < n_rows * n_out; ++i) {
      const int row = i / n_out;
      if (row == 3 || row == 8) {
        EXPECT_FALSE(std::isfinite(got[i])) << CpuIsaName(isa) << " row " << row << " output " << i % n_out;
      } else {
        EXPECT_EQ(std::memcmp(&got[i], &clean[i], 4), 0) << CpuIsaName(isa) << " row " << row;
      }
    }
  }
}

TEST(MatMulTest, AComparisonWithNanFails) {
  const ReferenceProduct want{{1.0, 2.0}, {0.1, 0.1}};
  EXPECT_TRUE(WithinBound({1.05f, 2.0f}, want, 2));
  EXPECT_FALSE(WithinBound({1.05f, 2.2f}, want, 2));
  EXPECT_FALSE(WithinBound({std::numeric_limits<float>::quiet_NaN(), 2.0f}, want, 2));
  EXPECT_FALSE(WithinBound({1.0f, std::numeric_limits<float>::quiet_NaN()}, want, 2));
}

}  // namespace
}  // namespace layover
