#include "kernels/top_k.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

namespace layover {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr uint32_t kSign = 0x80000000u;

constexpr size_t kGroup = 32;

// Most groups of a long row have none, and the compiler makes a few vector comparisons of this.
bool AnyAbove(std::span<const float, kGroup> group, float threshold) {
  int above = 0;
  for (size_t i = 0; i < kGroup; ++i) above |= group[i] > threshold;
  return above != 0;
}

}  // namespace

uint64_t TopKKey(float logit, size_t id) {
  const auto bits = std::bit_cast<uint32_t>(std::min(logit, kLargest) + 0.0f);  // -0 becomes +0
  const uint32_t ordered = bits & kSign ? ~bits : bits | kSign;
  return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

int32_t IdOfTopKKey(uint64_t key) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

float LogitOfTopKKey(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(ordered & kSign ? ordered & ~kSign : ~ordered);
}

// One pass: what beats the k-th best so far is gathered, and thinned to k whenever the buffer is full.
std::vector<uint64_t> SelectTopK(std::span<const float> row, size_t k) {
  k = std::min(k, row.size());
  if (k == 0) return {};
  const size_t capacity = std::max<size_t>(4 * k, 256);
  std::vector<uint64_t> keys;
  keys.reserve(capacity);
  // An id that comes later must be above it: on a tie the earlier one stays. A NaN never is.
  float threshold = -std::numeric_limits<float>::infinity();
  const auto thin = [&] {
    if (keys.size() <= k) return;
    std::nth_element(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(k) - 1, keys.end(), std::greater<>());
    keys.resize(k);
    threshold = LogitOfTopKKey(keys[k - 1]);
  };
  for (size_t begin = 0; begin < row.size(); begin += kGroup) {
    const std::span<const float> group = row.subspan(begin, std::min(kGroup, row.size() - begin));
    if (group.size() == kGroup && !AnyAbove(group.first<kGroup>(), threshold)) continue;
    for (size_t i = 0; i < group.size(); ++i) {
      if (!(group[i] > threshold)) continue;
      keys.push_back(TopKKey(group[i], begin + i));
      if (keys.size() == capacity) thin();
    }
  }
  thin();
  std::sort(keys.begin(), keys.end(), std::greater<>());
  return keys;
}

}  // namespace layover
