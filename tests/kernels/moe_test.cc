// MoeRoute and MoeCombine against double precision; MoeMatMul gives the bits of MatMul with each expert alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/reference_matmul.h"
#include "tests/kernels/reference_recurrent.h"

namespace layover::kernel_test {
namespace {

struct Routed {
  std::vector<int32_t> chosen;
  std::vector<float> weights;
};

Routed Route(const Variant& variant, const std::vector<float>& logits, int experts, int k, bool after,
             float scale = 1) {
  const int n_rows = static_cast<int>(logits.size()) / experts;
  Routed routed{std::vector<int32_t>(n_rows * k, -1), std::vector<float>(n_rows * k, NAN)};
  const std::unique_ptr<Stream> stream = OpenCpu(variant)->NewComputeStream();
  stream->MoeRoute({logits.data(), routed.chosen.data(), routed.weights.data(), n_rows, experts, k, after, scale});
  return routed;
}

TEST(MoeRoute, MatchesReferenceOnEveryVariant) {
  for (const auto& [experts, k] : {std::pair{4, 2}, {8, 2}, {32, 4}, {128, 8}, {512, 10}, {37, 20}, {5, 5}, {1, 1}}) {
    for (const bool after : {false, true}) {
      const int n_rows = 23;
      std::vector<float> logits = NormalValues(static_cast<size_t>(n_rows) * experts, 1, 2.0f);
      for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::round(logits[i]);  // ties
      const Routed want = Route(Variants().front(), logits, experts, k, after, 1.5f);
      for (int row = 0; row < n_rows; ++row) {
        const reference::Route exact = reference::MoeRoute(&logits[row * experts], experts, k, after, 1.5);
        EXPECT_EQ(std::vector<int32_t>(&want.chosen[row * k], &want.chosen[row * k] + k), exact.chosen) << experts;
        EXPECT_TRUE(WithinBounds(&want.weights[row * k], exact.weights)) << experts << " experts, row " << row;
      }
      for (const Variant& variant : Variants()) {
        const Routed got = Route(variant, logits, experts, k, after, 1.5f);
        EXPECT_EQ(got.chosen, want.chosen) << variant.Name();
        EXPECT_TRUE(SameBits(got.weights, want.weights)) << variant.Name();
      }
    }
  }
}

TEST(MoeRoute, TiesGoToTheLowerIdAndTheSumHasAFloor) {
  EXPECT_EQ(Route(BestVariant(), {1, 3, 3, 3, 0, 2}, 6, 2, false).chosen, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Route(BestVariant(), {-1, -1, -1, -1, -1, 5}, 6, 2, true).chosen, (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(Route(BestVariant(), {-INFINITY, -INFINITY, 0, -INFINITY}, 4, 3, true).chosen,
            (std::vector<int32_t>{0, 1, 2}));
  // 1,024 equal experts: p of one chosen is 2^-10, above the floor; nothing can be below it but what is all but zero.
  EXPECT_EQ(Route(BestVariant(), std::vector<float>(1024, 7.0f), 1024, 1, false).weights[0], 1.0f);
}

TEST(MoeRoute, NanMakesItsRowsWeightsNanAndKeepsIdsValid) {
  for (const bool after : {false, true}) {
    for (const Variant& variant : Variants()) {
      std::vector<float> logits = NormalValues(3 * 20, 2);
      for (int e = 0; e < 20; ++e) logits[e] = NAN;
      logits[20 + 19] = NAN;
      const Routed got = Route(variant, logits, 20, 4, after);
      for (int j = 0; j < 8; ++j) EXPECT_TRUE(std::isnan(got.weights[j])) << variant.Name();
      for (int j = 8; j < 12; ++j) EXPECT_TRUE(std::isfinite(got.weights[j]));
      for (int row = 0; row < 3; ++row) {
        for (int j = 0; j < 4; ++j) {
          const int id = got.chosen[4 * row + j];
          EXPECT_TRUE(id >= 0 && id < 20);
          EXPECT_TRUE(j == 0 || id > got.chosen[4 * row + j - 1]);
        }
      }
    }
  }
}

TEST(MoeCombine, MatchesReferenceAndMayAlias) {
  for (const auto& [k, dim] : {std::pair{2, 64}, {8, 100}, {1, 7}}) {
    const int n_rows = 9;
    const std::vector<float> parts = NormalValues(static_cast<size_t>(n_rows) * k * dim, 3);
    const std::vector<float> weights = NormalValues(static_cast<size_t>(n_rows) * k, 4);
    const std::vector<float> residual = NormalValues(static_cast<size_t>(n_rows) * dim, 5);
    std::vector<float> first;
    for (const Variant& variant : Variants()) {
      std::vector<float> out(residual.size(), NAN), in_place = residual;
      const std::unique_ptr<Stream> stream = OpenCpu(variant)->NewComputeStream();
      stream->MoeCombine({parts.data(), weights.data(), residual.data(), out.data(), n_rows, k, dim});
      stream->MoeCombine({parts.data(), weights.data(), in_place.data(), in_place.data(), n_rows, k, dim});
      EXPECT_TRUE(SameBits(in_place, out)) << variant.Name();
      if (first.empty()) first = out;
      EXPECT_TRUE(SameBits(out, first)) << variant.Name();
    }
    for (int row = 0; row < n_rows; ++row) {
      EXPECT_TRUE(WithinBounds(&first[row * dim], reference::MoeCombine(&parts[row * k * dim], &weights[row * k],
                                                                        &residual[row * dim], k, dim)));
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- MoeMatMul

struct Mixture {
  WeightType type;
  int experts, n_out, cols, n_rows, k;
  bool x_per_choice;
};

// Distinct experts in ascending order for every row; the last expert is in nearly all of them.
std::vector<int32_t> Choices(const Mixture& m, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> chosen;
  for (int row = 0; row < m.n_rows; ++row) {
    std::vector<int32_t> ids(m.experts - 1);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(m.k - 1);
    ids.push_back(m.experts - 1);
    std::sort(ids.begin(), ids.end());
    chosen.insert(chosen.end(), ids.begin(), ids.end());
  }
  return chosen;
}

std::vector<uint8_t> PrepareRows(Device* device, Stream* stream, ActivationFormat format, const std::vector<float>& x,
                                 int dim) {
  const int n_rows = static_cast<int>(x.size()) / dim;
  std::vector<uint8_t> prepared(device->ActivationBytes(format, n_rows, dim));
  stream->PrepareActivation({x.data(), n_rows, dim, dim, format, prepared.data()});
  return prepared;
}

void ExpectBitsOfSingleExperts(const Mixture& m) {
  const RawWeight raw = RandomWeight(m.type, m.n_out, m.cols, 6, m.experts);
  const std::vector<int32_t> chosen = Choices(m, 7);
  const std::vector<float> x = NormalValues(static_cast<size_t>(m.n_rows) * (m.x_per_choice ? m.k : 1) * m.cols, 8);
  const std::vector<float> bias = NormalValues(static_cast<size_t>(m.experts) * m.n_out, 9);
  std::vector<float> want(chosen.size() * m.n_out);
  for (const Variant& variant : Variants()) {
    const std::unique_ptr<Device> device = OpenCpu(variant);
    const std::unique_ptr<Stream> stream = device->NewComputeStream();
    auto slab = device->PackWeight(raw.Source());
    ASSERT_TRUE(slab.ok()) << slab.status();
    const ActivationFormat format = (*slab)->activation;
    const std::vector<uint8_t> prepared = PrepareRows(device.get(), stream.get(), format, x, m.cols);
    const size_t row_bytes = device->ActivationBytes(format, 1, m.cols);
    if (variant.isa == CpuIsa::kScalar && variant.threads == 1) {
      for (int e = 0; e < m.experts; ++e) {
        auto one = device->PackWeight({m.type, 1, m.n_out, m.cols, raw.row(e * m.n_out), raw.data.size() / m.experts});
        for (size_t i = 0; i < chosen.size(); ++i) {
          if (chosen[i] != e) continue;
          const size_t row = m.x_per_choice ? i : i / m.k;
          stream->MatMul({one->get(), prepared.data() + row * row_bytes, 1, &want[i * m.n_out], m.n_out,
                          &bias[static_cast<size_t>(e) * m.n_out]});
        }
      }
    }
    std::vector<float> got(want.size(), NAN);
    stream->MoeMatMul(
        {slab->get(), prepared.data(), chosen.data(), got.data(), m.n_rows, m.k, m.x_per_choice, bias.data()});
    EXPECT_TRUE(SameBits(got, want)) << variant.Name() << ", " << WeightTypeName(m.type) << ", " << m.n_rows << " rows";
  }
}

TEST(MoeMatMul, BitsAreThoseOfMatMulWithEachExpert) {
  for (const WeightType type : kMatMulTypes) {
    for (const int n_rows : {1, 9, 40}) ExpectBitsOfSingleExperts({type, 6, 50, 256, n_rows, 3, n_rows == 9});
  }
}

TEST(MoeMatMul, AnExpertOfManyRowsIsCutIntoBlocks) {
  ExpectBitsOfSingleExperts({WeightType::kQ4_0, 3, 33, 64, 430, 2, false});
  ExpectBitsOfSingleExperts({WeightType::kF32, 3, 5, 6, 430, 2, true});
}

TEST(MoeMatMulDeathTest, RefusesAnExpertThatIsNotThere) {
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  const std::unique_ptr<Stream> stream = device->NewComputeStream();
  const RawWeight raw = RandomWeight(WeightType::kF32, 4, 4, 6, 2);
  auto slab = device->PackWeight(raw.Source());
  const std::vector<float> x(4);
  std::vector<float> out(4);
  const int32_t chosen = 2;
  EXPECT_DEATH(stream->MoeMatMul({slab->get(), x.data(), &chosen, out.data(), 1, 1}), "chosen");
}

}  // namespace
}  // namespace layover::kernel_test
