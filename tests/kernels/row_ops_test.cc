// RmsNorm, RopeAngles, Rope, Gated, GatherRows: against double precision, and the same bits on every instruction set,
// for any number of threads and rows.
#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/kernel_fixture.h"

namespace layover::kernel_test {
namespace {

// Runs `op` on a compute stream of every variant, whole and row by row, and wants the same bits each time.
// op(stream, row_begin, row_end) returns those rows' result.
std::vector<float> SameEverywhere(int n_rows,
                                  const std::function<std::vector<float>(Stream*, int row_begin, int row_end)>& op) {
  std::vector<float> first;
  for (const Variant& variant : Variants()) {
    const std::unique_ptr<Stream> stream = OpenCpu(variant)->NewComputeStream();
    const std::vector<float> whole = op(stream.get(), 0, n_rows);
    if (first.empty()) first = whole;
    EXPECT_TRUE(SameBits(whole, first)) << variant.Name();
    std::vector<float> pieces;
    for (int row = 0; row < n_rows;) {
      const int end = std::min(n_rows, row + 1 + row % 3);
      const std::vector<float> piece = op(stream.get(), row, end);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
      row = end;
    }
    EXPECT_TRUE(SameBits(pieces, first)) << variant.Name() << ", rows in pieces";
  }
  return first;
}

class RmsNormTest : public testing::TestWithParam<int> {};

TEST_P(RmsNormTest, MatchesReferenceEverywhere) {
  const int dim = GetParam();
  const int n_rows = 41;
  const int stride = dim + 3;
  std::vector<float> x = NormalValues(static_cast<size_t>(n_rows) * stride, 1);
  for (int i = 0; i < dim; ++i) x[i] = 0;  // only eps under the root
  for (int i = 0; i < dim; ++i) x[stride + i] *= 1e-18f;
  const std::vector<float> weight = NormalValues(dim, 2);
  const std::vector<float> y = SameEverywhere(n_rows, [&](Stream* stream, int begin, int end) {
    std::vector<float> out(static_cast<size_t>(end - begin) * dim);
    RmsNormArgs args;
    args.x = x.data() + static_cast<ptrdiff_t>(begin) * stride;
    args.weight = weight.data();
    args.y = out.data();
    args.n_rows = end - begin;
    args.dim = dim;
    args.x_stride = stride;
    args.y_stride = dim;
    args.eps = 1e-5f;
    stream->RmsNorm(args);
    return out;
  });
  for (int row = 0; row < n_rows; ++row) {
    EXPECT_TRUE(
        WithinBounds(y.data() + static_cast<ptrdiff_t>(row) * dim,
                     reference::RmsNorm(x.data() + static_cast<ptrdiff_t>(row) * stride, weight.data(), dim, 1e-5f)))
        << "row " << row;
  }
}
INSTANTIATE_TEST_SUITE_P(Dims, RmsNormTest, testing::Values(1, 8, 16, 64, 100, 576, 1536));

TEST(RmsNorm, MayWorkInPlace) {
  const std::vector<float> x = NormalValues(5 * 64, 3);
  const std::vector<float> weight = NormalValues(64, 4);
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  std::vector<float> apart(x.size());
  std::vector<float> in_place = x;
  stream->RmsNorm({x.data(), weight.data(), apart.data(), 5, 64, 64, 64, 1e-6f});
  stream->RmsNorm({in_place.data(), weight.data(), in_place.data(), 5, 64, 64, 64, 1e-6f});
  EXPECT_TRUE(SameBits(in_place, apart));
}

std::vector<double> Frequencies(int n_pairs, double base) {
  std::vector<double> frequencies(n_pairs);
  for (int p = 0; p < n_pairs; ++p) frequencies[p] = std::pow(base, -static_cast<double>(p) / n_pairs);
  return frequencies;
}

TEST(RopeAngles, MatchReferenceEverywhere) {
  std::vector<int32_t> positions = {0, 1, 2, 63, 64, 65, 4095, 100'000, 1'048'575};
  for (int i = 0; i < 300; ++i) positions.push_back(7 * i * i);
  const int n_rows = static_cast<int>(positions.size());
  for (const int n_pairs : {4, 32, 40}) {
    const std::vector<double> frequencies = Frequencies(n_pairs, 10'000);
    const std::vector<float> angles = SameEverywhere(n_rows, [&](Stream* stream, int begin, int end) {
      std::vector<float> out(static_cast<size_t>(end - begin) * n_pairs * 2);
      stream->RopeAngles({positions.data() + begin, frequencies.data(), out.data(), end - begin, n_pairs, 1.25f});
      return out;
    });
    for (int row = 0; row < n_rows; ++row) {
      EXPECT_TRUE(WithinBounds(angles.data() + static_cast<ptrdiff_t>(row) * n_pairs * 2,
                               reference::RopeAngles(positions[row], frequencies.data(), n_pairs, 1.25)))
          << "position " << positions[row];
    }
  }
}

TEST(RopeAngles, OfPositionZeroAreExact) {
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  const std::vector<double> frequencies = Frequencies(8, 10'000);
  const int32_t position = 0;
  std::vector<float> angles(16);
  stream->RopeAngles({&position, frequencies.data(), angles.data(), 1, 8, 1.0f});
  for (int p = 0; p < 8; ++p) {
    EXPECT_EQ(angles[2 * p], 1.0f);
    EXPECT_EQ(angles[2 * p + 1], 0.0f);
  }
}

struct RopeCase {
  int heads;
  int head_dim;
  int n_pairs;
};

class RopeTest : public testing::TestWithParam<std::tuple<RopeCase, RopePairing>> {};

TEST_P(RopeTest, MatchesReferenceEverywhere) {
  const auto [shape, pairing] = GetParam();
  const int n_rows = 37;
  const int width = shape.heads * shape.head_dim;
  const int stride = width + 5;
  const std::vector<float> x = NormalValues(static_cast<size_t>(n_rows) * stride, 5);
  std::vector<float> angles(static_cast<size_t>(n_rows) * shape.n_pairs * 2);
  for (size_t i = 0; i < angles.size(); i += 2) {
    angles[i] = static_cast<float>(std::cos(0.1 * static_cast<double>(i)));
    angles[i + 1] = static_cast<float>(std::sin(0.1 * static_cast<double>(i)));
  }
  const std::vector<float> y = SameEverywhere(n_rows, [&](Stream* stream, int begin, int end) {
    std::vector<float> out(x.begin() + static_cast<ptrdiff_t>(begin) * stride,
                           x.begin() + static_cast<ptrdiff_t>(end) * stride);
    RopeArgs args;
    args.x = out.data();
    args.angles = angles.data() + static_cast<ptrdiff_t>(begin) * shape.n_pairs * 2;
    args.n_rows = end - begin;
    args.heads = shape.heads;
    args.head_dim = shape.head_dim;
    args.x_stride = stride;
    args.n_pairs = shape.n_pairs;
    args.pairing = pairing;
    stream->Rope(args);
    return out;
  });
  for (int row = 0; row < n_rows; ++row) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(row) * stride;
    std::vector<reference::Bounded> want =
        reference::Rope(x.data() + at, angles.data() + static_cast<ptrdiff_t>(row) * shape.n_pairs * 2, shape.heads,
                        shape.head_dim, shape.n_pairs, pairing);
    for (reference::Bounded& element : want)
      element.bound = std::max(element.bound, 1e-300);  // unchanged dims: exactly
    EXPECT_TRUE(WithinBounds(y.data() + at, want)) << "row " << row;
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         testing::Combine(testing::Values(RopeCase{9, 64, 32}, RopeCase{1, 80, 40},
                                                          RopeCase{3, 128, 64}, RopeCase{2, 256, 32},
                                                          RopeCase{2, 16, 8}, RopeCase{1, 8, 3}),
                                          testing::Values(RopePairing::kNorm, RopePairing::kNeox)));

class GatedTest : public testing::TestWithParam<GateKind> {};

TEST_P(GatedTest, MatchesReferenceEverywhere) {
  const int dim = 130;
  const int n_rows = 150;
  std::vector<float> gate = NormalValues(static_cast<size_t>(n_rows) * dim, 6, 4.0f);
  const std::vector<float> up = NormalValues(static_cast<size_t>(n_rows) * dim, 7);
  const float hard[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 20.0f, -20.0f, 88.0f, -88.0f, 104.0f, -104.0f, 1000.0f, -1000.0f};
  std::copy(std::begin(hard), std::end(hard), gate.begin());
  const std::vector<float> out = SameEverywhere(n_rows, [&](Stream* stream, int begin, int end) {
    std::vector<float> result(static_cast<size_t>(end - begin) * dim);
    const ptrdiff_t at = static_cast<ptrdiff_t>(begin) * dim;
    stream->Gated({gate.data() + at, up.data() + at, result.data(), end - begin, dim, dim, dim, dim, GetParam()});
    return result;
  });
  std::vector<reference::Bounded> want;
  for (size_t i = 0; i < gate.size(); ++i) want.push_back(reference::Gated(GetParam(), gate[i], up[i]));
  EXPECT_TRUE(WithinBounds(out.data(), want));
}

TEST_P(GatedTest, MayWriteOverEitherInput) {
  const std::vector<float> gate = NormalValues(3 * 40, 8);
  const std::vector<float> up = NormalValues(3 * 40, 9);
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  std::vector<float> apart(gate.size());
  stream->Gated({gate.data(), up.data(), apart.data(), 3, 40, 40, 40, 40, GetParam()});
  std::vector<float> over_gate = gate;
  stream->Gated({over_gate.data(), up.data(), over_gate.data(), 3, 40, 40, 40, 40, GetParam()});
  EXPECT_TRUE(SameBits(over_gate, apart));
  std::vector<float> over_up = up;
  stream->Gated({gate.data(), over_up.data(), over_up.data(), 3, 40, 40, 40, 40, GetParam()});
  EXPECT_TRUE(SameBits(over_up, apart));
}
std::string NameOfGate(const testing::TestParamInfo<GateKind>& info) {
  switch (info.param) {
    case GateKind::kSilu: return "silu";
    case GateKind::kGeluTanh: return "gelu_tanh";
    case GateKind::kSigmoid: return "sigmoid";
    case GateKind::kClampedSwiglu: return "clamped_swiglu";
  }
  return "";
}
INSTANTIATE_TEST_SUITE_P(Kinds, GatedTest, testing::Values(GateKind::kSilu, GateKind::kGeluTanh, GateKind::kSigmoid,
                                                             GateKind::kClampedSwiglu), NameOfGate);

TEST(Gated, OfAGateAloneIsItsActivation) {
  const std::vector<float> gate = NormalValues(5 * 19, 12), ones(5 * 19, 1.0f);
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kSigmoid}) {
    std::vector<float> alone(gate.size()), times_one(gate.size());
    stream->Gated({gate.data(), nullptr, alone.data(), 5, 19, 19, 0, 19, kind});
    stream->Gated({gate.data(), ones.data(), times_one.data(), 5, 19, 19, 19, 19, kind});
    EXPECT_TRUE(SameBits(alone, times_one));
  }
}

TEST(Gated, ClampedSwigluClampsAtSeven) {
  const float gate[] = {7.0f, 100.0f, -100.0f, 7.0f, 7.0f, 7.0f, 7.0f};
  const float up[] = {1.0f, 1.0f, 1.0f, 7.0f, 50.0f, -7.0f, -50.0f};
  float out[7];
  OpenCpu(BestVariant())->NewComputeStream()->Gated({gate, up, out, 1, 7, 7, 7, 7, GateKind::kClampedSwiglu});
  EXPECT_EQ(out[0], out[1]);  // the gate from above only ...
  EXPECT_NEAR(out[2], 0, 1e-30);
  EXPECT_EQ(out[3], out[4]);  // ... the other factor from both sides
  EXPECT_EQ(out[5], out[6]);
  EXPECT_NEAR(out[0], 13.9999, 1e-3);
  EXPECT_NEAR(out[5], -41.9997, 1e-3);
}

// The layout of q and its gate in hybrid models: [n_rows, heads, 2, head_dim]. Strides carry the norm of q out of it and
// the gate onto the attention's output.
TEST(InterleavedHeads, StridesSufficeForQueryAndGateSideBySide) {
  constexpr int kRows = 3, kHeads = 2, kDim = 24;
  const std::vector<float> pairs = NormalValues(kRows * kHeads * 2 * kDim, 13), weight = NormalValues(kDim, 14);
  const std::vector<float> attention = NormalValues(kRows * kHeads * kDim, 15);
  std::vector<float> q(attention.size()), out = attention;
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  stream->RmsNorm({pairs.data(), weight.data(), q.data(), kRows * kHeads, kDim, 2 * kDim, kDim, 1e-6f});
  stream->Gated({pairs.data() + kDim, out.data(), out.data(), kRows * kHeads, kDim, 2 * kDim, kDim, kDim,
                 GateKind::kSigmoid});
  for (int head = 0; head < kRows * kHeads; ++head) {
    const float* const both = &pairs[head * 2 * kDim];
    EXPECT_TRUE(WithinBounds(&q[head * kDim], reference::RmsNorm(both, weight.data(), kDim, 1e-6f)));
    for (int d = 0; d < kDim; ++d) {
      const int at = head * kDim + d;
      EXPECT_TRUE(WithinBounds(&out[at], {reference::Gated(GateKind::kSigmoid, both[kDim + d], attention[at])}));
    }
  }
}

TEST(Gated, KeepsNanVisible) {
  const float gate[] = {NAN, 1.0f};
  const float up[] = {1.0f, NAN};
  float out[2];
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  stream->Gated({gate, up, out, 1, 2, 2, 2, 2, GateKind::kSilu});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST(GatherRows, CopiesTheRowsNamed) {
  const std::vector<float> x = NormalValues(6 * 10, 10);
  const int32_t rows[] = {5, 0, 5};
  std::vector<float> out(3 * 10);
  OpenCpu(BestVariant())->NewComputeStream()->GatherRows({x.data(), rows, out.data(), 3, 10});
  std::vector<float> want;
  for (const int row : rows) want.insert(want.end(), x.begin() + row * 10, x.begin() + (row + 1) * 10);
  EXPECT_TRUE(SameBits(out, want));
}

}  // namespace
}  // namespace layover::kernel_test
