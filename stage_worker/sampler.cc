#include "stage_worker/sampler.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "common/check.h"
#include "common/limits.h"
#include "kernels/top_k.h"
#include "stage_worker/fixed_math.h"

namespace layover {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<int32_t> IdsOf(const std::vector<uint64_t>& keys) {
  std::vector<int32_t> ids(keys.size());
  std::transform(keys.begin(), keys.end(), ids.begin(), IdOfTopKKey);
  return ids;
}

// The highest logit's id, the lowest of several; -1 if all are excluded.
int32_t ArgMax(std::span<const float> logits) {
  const float max = MaxOf(logits);
  if (max == kExcluded) return -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::min(logits[id], kLargest) == max) return static_cast<int32_t>(id);
  }
  LAYOVER_CHECK(false);
}

// Beyond the ban of ids.
bool ChangesLogits(const SamplerSpec& spec) {
  return !spec.logit_bias.empty() || spec.repeat_penalty != 1.0f || spec.presence_penalty != 0.0f ||
         spec.frequency_penalty != 0.0f;
}

bool IsBanned(const SamplerSpec& spec, int32_t id) {
  return std::find(spec.banned.begin(), spec.banned.end(), id) != spec.banned.end();
}

// Steps 1 and 2 of the header's list.
std::vector<float> AdjustedLogits(std::span<const float> row, const SamplerSpec& spec, std::span<const int32_t> history,
                                  int64_t output_begin) {
  std::vector<float> logits(row.begin(), row.end());
  const auto is_id = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); };
  for (const auto& [id, bias] : spec.logit_bias) {
    if (is_id(id)) logits[id] += bias;
  }
  const auto n = static_cast<int64_t>(history.size());
  if (spec.repeat_penalty != 1.0f) {
    const int64_t begin = std::max<int64_t>(n - limits::kRepeatPenaltyWindow, 0);
    std::vector<int32_t> recent(history.begin() + begin, history.end());
    std::sort(recent.begin(), recent.end());
    recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
    for (const int32_t id : recent) {
      if (!is_id(id)) continue;
      logits[id] = logits[id] > 0 ? logits[id] / spec.repeat_penalty : logits[id] * spec.repeat_penalty;
    }
  }
  if (spec.presence_penalty != 0.0f || spec.frequency_penalty != 0.0f) {
    absl::flat_hash_map<int32_t, int32_t> counts;
    for (int64_t i = std::clamp<int64_t>(output_begin, 0, n); i < n; ++i) ++counts[history[i]];
    for (const auto& [id, count] : counts) {
      if (is_id(id)) logits[id] -= static_cast<float>(count) * spec.frequency_penalty + spec.presence_penalty;
    }
  }
  for (const int32_t id : spec.banned) {
    if (is_id(id)) logits[id] = kExcluded;
  }
  return logits;
}

std::vector<float> ValuesAt(std::span<const float> values, const std::vector<int32_t>& ids) {
  std::vector<float> chosen(ids.size());
  std::transform(ids.begin(), ids.end(), chosen.begin(), [&](int32_t id) { return values[id]; });
  return chosen;
}

bool KeepsTopK(const SamplerSpec& spec, size_t n_ids) {
  return spec.top_k > 0 && static_cast<size_t>(spec.top_k) < n_ids;
}

double Total(const std::vector<double>& block_sums) {
  double total = 0;
  for (const double sum : block_sums) total += sum;
  return total;
}

// How many of `weights`, best first, hold the sum `wanted`; more than there are if all hold less.
size_t HeadOf(std::span<const float> weights, double wanted) {
  double sum = 0;
  for (size_t n = 0; n < weights.size(); ++n) {
    sum += static_cast<double>(weights[n]);
    if (sum >= wanted) return n + 1;
  }
  return weights.size() + 1;
}

// A bound that at least the head of `wanted` weight is not below, found from sums over ranges of logits.
float BoundOfHead(std::span<const float> logits, std::span<const float> weights, float max, double wanted) {
  constexpr float kBinsPerUnit = 8;
  constexpr size_t kBins = 88 * static_cast<size_t>(kBinsPerUnit);  // below max - 88 no weight is left
  std::array<double, kBins> bins = {};
  for (size_t id = 0; id < logits.size(); ++id) {
    if (weights[id] <= 0) continue;
    const float distance = (max - std::min(logits[id], kLargest)) * kBinsPerUnit;
    bins[std::min(static_cast<size_t>(distance), kBins - 1)] += static_cast<double>(weights[id]);
  }
  double sum = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    sum += bins[bin];
    // One bin more than needed, for the rounding of the bins' edges and sums.
    if (sum >= wanted) return max - static_cast<float>(bin + 2) / kBinsPerUnit;
  }
  return kExcluded;
}

// Ids that hold top_p of the probability, best first. `weights` are those of all logits.
std::vector<int32_t> TopP(std::span<const float> logits, std::span<const float> weights, float max, double top_p) {
  const double wanted = top_p * Total(BlockSums(weights));
  const float bound = BoundOfHead(logits, weights, max, wanted);
  std::vector<uint64_t> keys;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] >= bound && weights[id] > 0) keys.push_back(TopKKey(logits[id], id));
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  std::vector<int32_t> ids = IdsOf(keys);
  ids.resize(std::min(ids.size(), HeadOf(ValuesAt(weights, ids), wanted)));
  return ids;
}

// Index into `weights`, drawn in proportion to them.
size_t Draw(std::span<const float> weights, double uniform) {
  const std::vector<double> sums = BlockSums(weights);
  double target = uniform * Total(sums);
  size_t block = 0;
  while (block + 1 < sums.size() && target >= sums[block]) target -= sums[block++];
  size_t last_possible = block * kSumBlock;
  double sum = 0;
  for (size_t i = block * kSumBlock; i < std::min((block + 1) * kSumBlock, weights.size()); ++i) {
    if (weights[i] <= 0) continue;
    last_possible = i;
    sum += static_cast<double>(weights[i]);
    if (sum > target) break;
  }
  return last_possible;
}

// Step 5: an index into `logits`, none of them above `max`.
size_t DrawTempered(std::span<const float> logits, float max, const SamplerSpec& spec, double uniform) {
  // Of the tiniest temperatures the inverse is no float; then the highest logit alone has a weight.
  const float scale = std::min(1.0f / spec.temperature, kLargest);
  std::vector<float> weights(logits.size());
  ScaledExp(logits, max, scale, weights.data());
  return Draw(weights, uniform);
}

// How many of `weights`, best first and the best one 1, min_p leaves. The best one always stays.
size_t HowManyReach(std::span<const float> weights, float min_p) {
  min_p = std::min(min_p, 1.0f);
  const auto below = std::find_if(weights.begin(), weights.end(), [&](float weight) { return weight < min_p; });
  return static_cast<size_t>(below - weights.begin());
}

// The rest of step 4 after top_k, and step 5, over logits of ids that are left, best first: the index drawn.
size_t DrawFromBest(std::span<const float> best, const SamplerSpec& spec, double uniform) {
  const float max = std::min(best.front(), kLargest);
  std::vector<float> weights(best.size());
  ScaledExp(best, max, 1.0f, weights.data());
  size_t n = best.size();
  if (spec.top_p < 1.0f) n = std::min(n, HeadOf(weights, spec.top_p * Total(BlockSums(weights))));
  const size_t likely = HowManyReach(std::span(weights).first(n), spec.min_p);
  return DrawTempered(best.first(likely), max, spec, uniform);
}

// Steps 4 and 5.
int32_t DrawToken(std::span<const float> logits, const SamplerSpec& spec, double uniform) {
  if (KeepsTopK(spec, logits.size())) {
    const std::vector<int32_t> ids = IdsOf(SelectTopK(logits, static_cast<size_t>(spec.top_k)));
    return ids[DrawFromBest(ValuesAt(logits, ids), spec, uniform)];
  }
  const float max = MaxOf(logits);
  if (spec.top_p >= 1.0f && spec.min_p <= 0.0f) return static_cast<int32_t>(DrawTempered(logits, max, spec, uniform));
  std::vector<float> weights(logits.size());
  ScaledExp(logits, max, 1.0f, weights.data());
  std::vector<int32_t> ids;
  if (spec.top_p < 1.0f) {
    ids = TopP(logits, weights, max, spec.top_p);
    ids.resize(HowManyReach(ValuesAt(weights, ids), spec.min_p));
  } else {
    const float min_p = std::min(spec.min_p, 1.0f);
    for (size_t id = 0; id < weights.size(); ++id) {
      if (!(weights[id] < min_p)) ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids[DrawTempered(ValuesAt(logits, ids), max, spec, uniform)];
}

// Where nothing is left to draw from.
int32_t LowestAllowed(size_t n, const SamplerSpec& spec) {
  for (int32_t id = 0; static_cast<size_t>(id) < n; ++id) {
    if (!IsBanned(spec, id)) return id;
  }
  return 0;
}

}  // namespace

SampledToken Sample(std::span<const float> row, const SamplerSpec& spec, int64_t position,
                    std::span<const int32_t> history, int64_t output_begin) {
  LAYOVER_CHECK(!row.empty());
  std::vector<float> adjusted;
  if (ChangesLogits(spec) || !spec.banned.empty()) {
    adjusted = AdjustedLogits(row, spec, history, output_begin);
    row = adjusted;
  }
  int32_t id = ArgMax(row);
  if (id < 0) return {LowestAllowed(row.size(), spec)};
  if (spec.temperature > 0.0f) id = DrawToken(row, spec, UniformAt(spec.seed, position));
  return {id};
}

int BestNeeded(const SamplerSpec& spec, size_t n_ids) {
  if (ChangesLogits(spec)) return 0;
  if (spec.temperature > 0.0f && !KeepsTopK(spec, n_ids)) return 0;
  const size_t needed = spec.banned.size() + static_cast<size_t>(spec.temperature > 0.0f ? spec.top_k : 1);
  return needed <= limits::kMaxTopK ? static_cast<int>(needed) : 0;
}

SampledToken SampleFromBest(const BestLogits& best, const SamplerSpec& spec, int64_t position, size_t n_ids) {
  const size_t kept = spec.temperature > 0.0f ? static_cast<size_t>(spec.top_k) : 1;
  std::vector<int32_t> ids;
  std::vector<float> logits;
  for (size_t i = 0; i < best.ids.size() && best.ids[i] >= 0 && ids.size() < kept; ++i) {
    if (IsBanned(spec, best.ids[i])) continue;
    ids.push_back(best.ids[i]);
    logits.push_back(best.logits[i]);
  }
  if (ids.empty()) return {LowestAllowed(n_ids, spec)};
  if (spec.temperature <= 0.0f) return {ids.front()};
  return {ids[DrawFromBest(logits, spec, UniformAt(spec.seed, position))]};
}

LogSoftmax::LogSoftmax(std::span<const float> row) : row_(row), max_(MaxOf(row)) {
  const double total = SumOfExp(row, max_);
  log_sum_ = total > 0 ? FixedLog(total) : 0;
}

float LogSoftmax::Logprob(int32_t id) const {
  LAYOVER_CHECK(id >= 0 && static_cast<size_t>(id) < row_.size());
  const float logit = std::min(row_[id], kLargest);
  if (!(logit > kExcluded)) return kExcluded;
  return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max_) - log_sum_);
}

std::vector<TokenLogprob> LogSoftmax::Top(int k) const {
  std::vector<TokenLogprob> top;
  for (const int32_t id : IdsOf(SelectTopK(row_, static_cast<size_t>(std::max(k, 0))))) {
    top.push_back({id, Logprob(id)});
  }
  return top;
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> row, int k) {
  return LogSoftmax(row).Top(k);
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

double UniformAt(uint64_t seed, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  const std::array<uint32_t, 4> words = Philox4x32({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0, 0},
                                                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace layover
