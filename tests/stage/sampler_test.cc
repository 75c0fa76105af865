// The sampler against a plain double-precision reference, with its distribution, its order of ties and its bits.
#include "stage_worker/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "common/digest.h"
#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "stage_worker/fixed_math.h"
#include "tests/kernels/reference_top_k.h"

namespace layover {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomRow(size_t n, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> logit(0, spread);
  std::vector<float> row(n);
  for (float& x : row) x = logit(random);
  return row;
}

// Made without library functions, whose last bits differ by machine: values from 0 to 9.99.
std::vector<float> PlainRow(size_t n) {
  std::vector<float> row(n);
  for (size_t i = 0; i < n; ++i) row[i] = static_cast<float>((i * 2654435761u >> 7) % 1000) / 100.0f;
  return row;
}

// ------------------------------------------------------------------------------------------ the reference

struct Candidate {
  int32_t id;
  double logit;
};

// Everything that may be drawn, best first, with probabilities; written to be read.
std::map<int32_t, double> Distribution(const std::vector<float>& row, const SamplerSpec& spec,
                                       const std::vector<int32_t>& history, size_t output_begin) {
  std::vector<double> logits(row.begin(), row.end());
  for (const auto& [id, bias] : spec.logit_bias) logits[id] += bias;
  std::map<int32_t, int> recent;
  for (size_t i = history.size() - std::min<size_t>(history.size(), 64); i < history.size(); ++i)
    recent[history[i]] = 1;
  for (const auto& [id, unused] : recent) {
    logits[id] = logits[id] > 0 ? logits[id] / spec.repeat_penalty : logits[id] * spec.repeat_penalty;
  }
  std::map<int32_t, int> counts;
  for (size_t i = output_begin; i < history.size(); ++i) ++counts[history[i]];
  for (const auto& [id, n] : counts) logits[id] -= n * double{spec.frequency_penalty} + double{spec.presence_penalty};
  for (const int32_t id : spec.banned) logits[id] = -std::numeric_limits<double>::infinity();

  std::vector<Candidate> candidates;
  for (size_t id = 0; id < logits.size(); ++id) candidates.push_back({static_cast<int32_t>(id), logits[id]});
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (spec.temperature <= 0) return {{candidates[0].id, 1.0}};
  if (spec.top_k > 0) candidates.resize(std::min<size_t>(candidates.size(), spec.top_k));
  const double max = candidates[0].logit;
  const auto total = [&](double temperature) {
    double sum = 0;
    for (const Candidate& c : candidates) sum += std::exp((c.logit - max) / temperature);
    return sum;
  };
  if (spec.top_p < 1) {
    const double all = total(1);
    double sum = 0;
    size_t n = 0;
    while (n < candidates.size() && sum < spec.top_p * all) sum += std::exp(candidates[n++].logit - max);
    candidates.resize(std::max<size_t>(n, 1));
  }
  while (candidates.size() > 1 && std::exp(candidates.back().logit - max) < spec.min_p) candidates.pop_back();
  std::map<int32_t, double> probabilities;
  const double all = total(spec.temperature);
  for (const Candidate& c : candidates) probabilities[c.id] = std::exp((c.logit - max) / spec.temperature) / all;
  return probabilities;
}

// Draws at many positions and holds the counts against the reference with a chi-square test.
void ExpectDistribution(const std::vector<float>& row, const SamplerSpec& spec,
                        const std::vector<int32_t>& history = {}, size_t output_begin = 0) {
  constexpr int kDraws = 10'000;
  const std::map<int32_t, double> expected = Distribution(row, spec, history, output_begin);
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[Sample(row, spec, i, history, static_cast<int64_t>(output_begin)).id];
  for (const auto& [id, n] : counts) EXPECT_TRUE(expected.contains(id)) << "id " << id << " drawn " << n << " times";
  double chi_square = 0;
  double rare = 0;  // ids expected less than ten times are taken together
  int rare_count = 0;
  int degrees = -1;
  for (const auto& [id, probability] : expected) {
    const double n = probability * kDraws;
    if (n < 10) {
      rare += n;
      rare_count += counts[id];
      continue;
    }
    chi_square += (counts[id] - n) * (counts[id] - n) / n;
    ++degrees;
  }
  if (rare >= 10) {
    chi_square += (rare_count - rare) * (rare_count - rare) / rare;
    ++degrees;
  }
  // Five standard deviations of a chi-square variable above its mean; the seeds are fixed.
  EXPECT_LE(chi_square, degrees + 5 * std::sqrt(2.0 * std::max(degrees, 1))) << degrees << " degrees of freedom";
}

// ------------------------------------------------------------------------------------------ drawing

TEST(Sampler, DrawsFromTheReferenceDistribution) {
  const std::vector<float> row = RandomRow(200, 1, 1.5f);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
    ExpectDistribution(row, {.seed = seed});
    ExpectDistribution(row, {.temperature = 0.5f, .seed = seed});
    ExpectDistribution(row, {.temperature = 1.7f, .seed = seed});
    ExpectDistribution(row, {.top_k = 7, .seed = seed});
    ExpectDistribution(row, {.top_p = 0.6f, .seed = seed});
    ExpectDistribution(row, {.min_p = 0.2f, .seed = seed});
    ExpectDistribution(row, {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.05f, .top_k = 40, .seed = seed});
    ExpectDistribution(row, {.top_p = 0.95f, .min_p = 0.1f, .seed = seed});
  }
}

TEST(Sampler, DrawsWithPenaltiesAndBias) {
  const std::vector<float> row = RandomRow(100, 2, 1.5f);
  std::vector<int32_t> history;
  std::mt19937 random(3);
  for (int i = 0; i < 150; ++i) history.push_back(static_cast<int32_t>(random() % 100));
  ExpectDistribution(row, {.repeat_penalty = 1.3f, .seed = 1}, history, 100);
  ExpectDistribution(row, {.presence_penalty = 0.7f, .seed = 1}, history, 100);
  ExpectDistribution(row, {.frequency_penalty = 0.4f, .seed = 1}, history, 100);
  ExpectDistribution(row, {.seed = 1, .logit_bias = {{5, 2.5f}, {6, -100.0f}}, .banned = {7, 8}}, history, 100);
  ExpectDistribution(row,
                     {.temperature = 0.7f,
                      .top_p = 0.9f,
                      .top_k = 30,
                      .repeat_penalty = 1.1f,
                      .presence_penalty = -0.3f,
                      .frequency_penalty = 0.2f,
                      .seed = 9,
                      .logit_bias = {{1, 1.0f}}},
                     history, 120);
}

TEST(Sampler, TruncationEqualsTheReferenceOnBigRows) {
  // What may be drawn at all, on rows of a real vocabulary's size: draw at many positions, all must be allowed, and the
  // extremes of the uniform numbers must find the first and the last candidate.
  const std::vector<float> row = RandomRow(49152, 4, 3);
  const SamplerSpec specs[] = {{.top_k = 40},
                               {.top_p = 0.3f},
                               {.top_p = 0.9f},
                               {.min_p = 0.3f},
                               {.min_p = 0.9f},
                               {.top_p = 0.99f, .min_p = 0.5f},
                               {.top_p = 0.5f, .top_k = 5000}};
  for (SamplerSpec spec : specs) {
    const std::map<int32_t, double> expected = Distribution(row, spec, {}, 0);
    std::map<int32_t, int> seen;
    for (int i = 0; i < 50; ++i) ++seen[Sample(row, spec, i, {}, 0).id];
    for (const auto& [id, n] : seen) EXPECT_TRUE(expected.contains(id));
    // Made flat by a huge temperature, the few that are left are all seen.
    if (expected.size() > 50) continue;
    spec.temperature = 1e6f;
    for (int i = 0; i < 500; ++i) ++seen[Sample(row, spec, i, {}, 0).id];
    EXPECT_EQ(seen.size(), expected.size());
  }
}

TEST(Sampler, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> row = RandomRow(1000, 5);
  const SamplerSpec spec = {.seed = 7};
  std::vector<int32_t> forward;
  for (int i = 0; i < 50; ++i) forward.push_back(Sample(row, spec, i, {}, 0).id);
  for (int i = 49; i >= 0; --i) EXPECT_EQ(Sample(row, spec, i, {}, 0).id, forward[i]);
  int equal = 0;
  for (int i = 0; i < 50; ++i) equal += Sample(row, {.seed = 8}, i, {}, 0).id == forward[i];
  EXPECT_LT(equal, 10);
}

TEST(Sampler, KeepsItsChoices) {
  // Fixed answers: a change of generator, order or arithmetic shows here, on every machine alike.
  const std::vector<float> row = PlainRow(777);
  std::vector<int32_t> chosen;
  for (int64_t position : {0, 1, 63, 64, 1'000'000}) {
    chosen.push_back(Sample(row, {.seed = 42}, position, {}, 0).id);
    chosen.push_back(Sample(row, {.temperature = 0.7f, .top_p = 0.9f, .top_k = 40, .seed = 42}, position, {}, 0).id);
    chosen.push_back(Sample(row, {.top_p = 0.5f, .min_p = 0.2f, .seed = 42}, position, {}, 0).id);
  }
  EXPECT_THAT(chosen, ElementsAre(476, 263, 254, 762, 41, 372, 354, 612, 399, 653, 671, 313, 64, 136, 621));
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(Sample(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(std::vector<float>{-0.0f, 0.0f}, {.temperature = 0}, 0, {}, 0).id, 0);
  EXPECT_EQ(Sample(std::vector<float>{0, kInfinity, kInfinity}, {.temperature = 0}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(std::vector<float>{kNan, -5, kNan}, {.temperature = 0}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(std::vector<float>{kNan, -5, 7}, {.temperature = -1}, 0, {}, 0).id, 2);
  for (const int32_t at : {0, 3, 4, 7, 8, 15, 16, 17, 18}) {
    std::vector<float> row(19, 0.0f);
    row[at] = 1;
    EXPECT_EQ(Sample(row, {.temperature = 0}, 0, {}, 0).id, at);
  }
}

TEST(Sampler, TopKOfEqualsKeepsTheLowestIds) {
  const std::vector<float> row(1000, 0.0f);
  std::map<int32_t, int> seen;
  for (int i = 0; i < 500; ++i) ++seen[Sample(row, {.top_k = 5}, i, {}, 0).id];
  std::vector<int32_t> ids;
  for (const auto& [id, n] : seen) ids.push_back(id);
  EXPECT_THAT(ids, ElementsAre(0, 1, 2, 3, 4));
}

TEST(Sampler, Penalties) {
  const SamplerSpec greedy = {.temperature = 0};
  const std::vector<float> row = {1.0f, 0.9f, -1.0f, -1.1f};
  SamplerSpec repeat = greedy;
  repeat.repeat_penalty = 1.2f;
  EXPECT_EQ(Sample(row, repeat, 1, std::vector<int32_t>{0}, 1).id, 1) << "a positive logit is divided";
  EXPECT_EQ(Sample(std::vector<float>{-kInfinity, -kInfinity, -1.0f, -1.1f}, repeat, 1, std::vector<int32_t>{2}, 1).id,
            3)
      << "a negative one is multiplied";
  std::vector<int32_t> long_history(limits::kRepeatPenaltyWindow + 1, 3);
  long_history[0] = 0;
  EXPECT_EQ(Sample(row, repeat, 65, long_history, 0).id, 0) << "65 tokens back is out of the window";
  long_history.erase(long_history.begin() + 1);
  EXPECT_EQ(Sample(row, repeat, 64, long_history, 0).id, 1) << "64 tokens back is in it";

  SamplerSpec presence = greedy;
  presence.presence_penalty = 0.2f;
  EXPECT_EQ(Sample(row, presence, 1, std::vector<int32_t>{0}, 0).id, 1);
  EXPECT_EQ(Sample(row, presence, 1, std::vector<int32_t>{0}, 1).id, 0) << "the prompt does not count";
  SamplerSpec frequency = greedy;
  frequency.frequency_penalty = 0.06f;
  EXPECT_EQ(Sample(row, frequency, 1, std::vector<int32_t>{0}, 0).id, 0);
  EXPECT_EQ(Sample(row, frequency, 2, std::vector<int32_t>{0, 0}, 0).id, 1) << "counted, not just seen";
}

TEST(Sampler, BiasAndBannedIds) {
  const std::vector<float> row = {1.0f, 0.9f, 0.8f};
  EXPECT_EQ(Sample(row, {.temperature = 0, .logit_bias = {{2, 0.5f}}}, 0, {}, 0).id, 2);
  EXPECT_EQ(Sample(row, {.temperature = 0, .banned = {0}}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.temperature = 0, .logit_bias = {{0, 1000.0f}}, .banned = {0}}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.temperature = 0, .logit_bias = {{-1, 9.0f}, {3, 9.0f}}, .banned = {-1, 99}}, 0, {}, 0).id, 0);
  for (int i = 0; i < 200; ++i) EXPECT_NE(Sample(row, {.temperature = 9, .banned = {1}}, i, {}, 0).id, 1);
}

TEST(Sampler, PaddingIsLeftToTheCaller) {
  // The row's span ends where the vocabulary does; the padding behind is never looked at.
  std::vector<float> padded(64, 100.0f);
  std::fill(padded.begin(), padded.begin() + 50, 0.0f);
  const auto row = std::span<const float>(padded).first(50);
  EXPECT_EQ(Sample(row, {.temperature = 0}, 0, {}, 0).id, 0);
  for (int i = 0; i < 200; ++i) EXPECT_LT(Sample(row, {}, i, {}, 0).id, 50);
  EXPECT_NEAR(LogSoftmax(row).Logprob(49), -std::log(50.0), 1e-6);
}

TEST(Sampler, OddParametersStillGiveAToken) {
  const std::vector<float> row = {0.5f, 1.0f, 0.25f};
  EXPECT_EQ(Sample(row, {.temperature = 1e-45f}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.temperature = 1e-9f}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.temperature = kNan}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.top_p = 0.0f}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.top_p = -1.0f, .top_k = 2}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.min_p = 2.0f}, 0, {}, 0).id, 1);
  EXPECT_EQ(Sample(row, {.min_p = 2.0f, .top_k = 2}, 0, {}, 0).id, 1);
  EXPECT_LT(Sample(row, {.top_p = kNan, .min_p = kNan}, 0, {}, 0).id, 3);
  EXPECT_LT(Sample(row, {.temperature = kInfinity, .top_k = 1 << 30}, 0, {}, 0).id, 3);
  const std::vector<float> nothing = {kNan, -kInfinity, kNan};
  EXPECT_EQ(Sample(nothing, {}, 0, {}, 0).id, 0);
  EXPECT_EQ(Sample(nothing, {.banned = {0, 1}}, 0, {}, 0).id, 2);
  EXPECT_EQ(Sample(nothing, {.banned = {0, 1, 2}}, 0, {}, 0).id, 0);
  const std::vector<float> huge = {kInfinity, 0, kInfinity, kNan, -kInfinity};
  for (int i = 0; i < 100; ++i) {
    const int32_t id = Sample(huge, {.top_p = 0.9f}, i, {}, 0).id;
    EXPECT_TRUE(id == 0 || id == 2);
  }
}

// ------------------------------------------------------------------------------------------ log-softmax

TEST(LogSoftmax, EqualsDoublePrecision) {
  for (const size_t n : {size_t{1}, size_t{3}, size_t{64}, size_t{65}, size_t{1000}, size_t{49152}}) {
    for (const float spread : {0.1f, 3.0f, 30.0f}) {
      const std::vector<float> row = RandomRow(n, 6, spread);
      const double max = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float x : row) sum += std::exp(x - max);
      const LogSoftmax softmax(row);
      for (size_t id = 0; id < n; id += 1 + n / 100) {
        const double expected = row[id] - max - std::log(sum);
        EXPECT_NEAR(softmax.Logprob(static_cast<int32_t>(id)), expected, 1e-6 + std::abs(expected) * 1e-7);
      }
    }
  }
}

TEST(LogSoftmax, TopIsSortedWithTiesByLowerId) {
  const auto top = TopLogprobs(std::vector<float>{1, 5, 3, 5, 3, -kInfinity, kNan}, 4);
  std::vector<int32_t> ids;
  for (const TokenLogprob& entry : top) ids.push_back(entry.id);
  EXPECT_THAT(ids, ElementsAre(1, 3, 2, 4));
  EXPECT_EQ(top[0].logprob, top[1].logprob);
  EXPECT_EQ(TopLogprobs(std::vector<float>{1, 5, 3, kNan}, 9).size(), 3u);
  EXPECT_EQ(TopLogprobs(std::vector<float>{1, -kInfinity, 3}, 9).size(), 2u);
  EXPECT_TRUE(TopLogprobs(std::vector<float>{1, 5, 3}, 0).empty());
}

TEST(LogSoftmax, TopEqualsSorting) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row(1 + random() % 3000);
    for (float& x : row) x = static_cast<float>(random() % 50);  // many ties
    if (round % 3 == 0) std::sort(row.begin(), row.end());       // each beats all before
    std::vector<int32_t> sorted(row.size());
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    const size_t k = random() % 120;
    const auto top = TopLogprobs(row, static_cast<int>(k));
    ASSERT_EQ(top.size(), std::min(k, row.size()));
    for (size_t i = 0; i < top.size(); ++i) ASSERT_EQ(top[i].id, sorted[i]);
  }
}

TEST(LogSoftmax, ExcludedAndHugeLogits) {
  const std::vector<float> row = {kInfinity, 0, -kInfinity, kNan};
  const LogSoftmax softmax(row);
  EXPECT_EQ(softmax.Logprob(0), 0);
  EXPECT_EQ(softmax.Logprob(2), -kInfinity);
  EXPECT_EQ(softmax.Logprob(3), -kInfinity);
  const std::vector<float> two = {0, kInfinity, std::numeric_limits<float>::max()};
  EXPECT_NEAR(LogSoftmax(two).Logprob(1), -std::log(2.0), 1e-6);
  const std::vector<float> nothing = {-kInfinity, kNan};
  EXPECT_EQ(LogSoftmax(nothing).Logprob(0), -kInfinity);
}

// ------------------------------------------------------------------------------------------ arithmetic

TEST(FixedMath, ExpIsAccurateEverywhere) {
  std::vector<float> x;
  for (float value = 0; value > -87; value -= 0.00371f) x.push_back(value);
  std::vector<float> y(x.size());
  ScaledExp(x, 0, 1, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i] / expected, 1, 3e-7) << x[i];
  }
  EXPECT_EQ(y[0], 1.0f);
  const std::vector<float> edges = {-87.0f, -87.1f, -1e30f, -kInfinity, kNan};
  std::vector<float> ends(edges.size());
  ScaledExp(edges, 0, 1, ends.data());
  EXPECT_GT(ends[0], 0);
  EXPECT_THAT(std::vector<float>(ends.begin() + 1, ends.end()), ElementsAre(0, 0, 0, 0));
}

TEST(FixedMath, SumOfExpEqualsExpThenBlockSums) {
  for (const size_t n : {size_t{1}, size_t{63}, size_t{64}, size_t{200}, size_t{4096}}) {
    const std::vector<float> row = RandomRow(n, 9);
    std::vector<float> weights(n);
    ScaledExp(row, 20, 1, weights.data());
    double total = 0;
    for (const double sum : BlockSums(weights)) total += sum;
    EXPECT_EQ(SumOfExp(row, 20), total);
  }
}

TEST(FixedMath, LogIsAccurate) {
  for (double x = 1; x < 1e7; x *= 1.0137) EXPECT_NEAR(FixedLog(x), std::log(x), 1e-15 + std::log(x) * 3e-16) << x;
  EXPECT_EQ(FixedLog(1), 0);
}

TEST(FixedMath, BitsAreTheSameOnEveryMachine) {
  const std::vector<float> row = PlainRow(5000);
  std::vector<float> y(row.size());
  ScaledExp(row, 50, 0.77f, y.data());
  EXPECT_EQ(DigestOf(y.data(), y.size() * sizeof(float)).Hex(), "ddf5ba342f29ff71dedddd00efe638b3");
  const double sums[] = {SumOfExp(row, 50), FixedLog(1234.5)};
  EXPECT_EQ(DigestOf(sums, sizeof sums).Hex(), "b458fe4af075d83057953f504312e11d");
}

TEST(Philox, KnownAnswers) {
  // From the generator's own distribution (Random123, kat_vectors).
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, UniformNumbers) {
  EXPECT_EQ(UniformAt(0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1.0p-53);
  double sum = 0;
  for (int64_t i = 0; i < 100'000; ++i) {
    const double u = UniformAt(3, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
  EXPECT_NE(UniformAt(1, 0), UniformAt(uint64_t{1} << 32, 0));
  EXPECT_NE(UniformAt(0, 1), UniformAt(0, int64_t{1} << 32));
}

TEST(SamplerFromBest, IsTheTokenOfTheWholeRow) {
  // Rows of ties and odd values, of a vocabulary that top_k may exceed, under settings of which some take the row.
  std::mt19937 random(5);
  int from_best = 0, from_row = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    const int n = seed % 3 == 0 ? 60 : 3000;
    const std::vector<float> row = reference::HardRows(1 + static_cast<int>(seed % 2), n, seed);  // the last one: nothing
    const std::span<const float> first(row.data(), static_cast<size_t>(n));
    SamplerSpec spec;
    spec.seed = seed;
    spec.temperature = std::array{0.0f, 0.7f, 1.0f, 1e-30f}[random() % 4];
    spec.top_k = std::array{0, 1, 40, 100, limits::kMaxTopK + 1}[random() % 5];
    spec.top_p = std::array{1.0f, 0.9f, 0.2f}[random() % 3];
    spec.min_p = std::array{0.0f, 0.05f, 1.0f}[random() % 3];
    if (random() % 2 == 0) spec.banned = {reference::TopKOf(first, 1).ids[0], 3, 59};
    const int k = BestNeeded(spec, first.size());
    (k > 0 ? from_best : from_row) += 1;
    if (k == 0) continue;
    const reference::TopK best = reference::TopKOf(first, k);
    for (int64_t position = 0; position < 5; ++position) {
      EXPECT_EQ(SampleFromBest({best.ids, best.values}, spec, position, first.size()).id,
                Sample(first, spec, position, {}, 0).id)
          << "seed " << seed << ", position " << position;
    }
  }
  EXPECT_GT(from_best, 100);
  EXPECT_GT(from_row, 50);
}

TEST(SamplerFromBest, TakesTheRowWhereMoreDependsOnIt) {
  const size_t n = 1000;
  SamplerSpec spec{.temperature = 1, .top_k = 40};
  EXPECT_EQ(BestNeeded(spec, n), 40);
  spec.banned = {1, 2};
  EXPECT_EQ(BestNeeded(spec, n), 42);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 0, .banned = {7}}, n), 2);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 1, .top_k = limits::kMaxTopK}, n), limits::kMaxTopK);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 1, .top_k = limits::kMaxTopK + 1}, n), 0);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 1, .top_k = 40}, 40), 0);  // all are kept: no choice of the best
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 1}, n), 0);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 0, .repeat_penalty = 1.1f}, n), 0);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 0, .presence_penalty = 0.1f}, n), 0);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 0, .frequency_penalty = 0.1f}, n), 0);
  EXPECT_EQ(BestNeeded(SamplerSpec{.temperature = 0, .logit_bias = {{1, 1.0f}}}, n), 0);
}

}  // namespace
}  // namespace layover
