// TopK as its contract says it: a stable sort of the whole row. And rows that are hard for it.
#ifndef LAYOVER_TESTS_KERNELS_REFERENCE_TOP_K_H_
#define LAYOVER_TESTS_KERNELS_REFERENCE_TOP_K_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace layover::reference {

struct TopK {
  std::vector<int32_t> ids;   // [k]
  std::vector<float> values;  // [k]
};

inline TopK TopKOf(std::span<const float> row, int k) {
  std::vector<int32_t> order;
  for (size_t id = 0; id < row.size(); ++id) {
    if (row[id] > -std::numeric_limits<float>::infinity()) order.push_back(static_cast<int32_t>(id));
  }
  const auto value = [&](int32_t id) {
    return std::min(row[static_cast<size_t>(id)], std::numeric_limits<float>::max());
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  TopK top{std::vector<int32_t>(static_cast<size_t>(k), -1),
           std::vector<float>(static_cast<size_t>(k), -std::numeric_limits<float>::infinity())};
  for (size_t i = 0; i < std::min(order.size(), static_cast<size_t>(k)); ++i) {
    top.ids[i] = order[i];
    top.values[i] = value(order[i]) + 0.0f;  // no -0
  }
  return top;
}

// Rows of [n_rows, stride] with many equal values, some that are no numbers, and a last row of nothing but those.
inline std::vector<float> HardRows(int n_rows, int stride, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(static_cast<size_t>(n_rows) * static_cast<size_t>(stride));
  for (float& value : x) value = std::round(static_cast<float>(static_cast<int>(random() % 4001) - 2000)) / 64.0f;
  const float odd[] = {NAN,
                       -INFINITY,
                       INFINITY,
                       -0.0f,
                       0.0f,
                       std::numeric_limits<float>::max(),
                       std::numeric_limits<float>::lowest(),
                       std::numeric_limits<float>::denorm_min()};
  for (size_t i = 0; i < x.size(); i += 1 + random() % 37) x[i] = odd[random() % std::size(odd)];
  for (size_t i = x.size() - static_cast<size_t>(stride); i < x.size(); ++i) x[i] = i % 3 == 0 ? NAN : -INFINITY;
  return x;
}

}  // namespace layover::reference

#endif  // LAYOVER_TESTS_KERNELS_REFERENCE_TOP_K_H_
