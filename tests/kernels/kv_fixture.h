// A K/V cache of one layer with pages in random order, filled through StoreKv, for the tests of pages and attention.
#ifndef LAYOVER_TESTS_KERNELS_KV_FIXTURE_H_
#define LAYOVER_TESTS_KERNELS_KV_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace layover::kernel_test {

inline constexpr KvType kAllKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0};

class TestCache {
 public:
  TestCache(Device* device, KvType type, int n_pages, int kv_heads, int head_dim) {
    const size_t bytes = device->KvPoolBytes(type, n_pages, kv_heads, head_dim);
    k_ = std::move(device->Allocate(bytes)).value();
    v_ = std::move(device->Allocate(bytes)).value();
    layer_ = {k_->data(), v_->data(), type, n_pages, kv_heads, head_dim};
  }
  const KvLayer& layer() const { return layer_; }
  size_t row_bytes() const { return KvRowBytes(layer_.type, layer_.kv_heads, layer_.head_dim); }

  // Canonical rows of a page: K and V one after the other.
  std::vector<uint8_t> Read(Stream* stream, int page, int begin, int end) const {
    std::vector<uint8_t> rows(2 * (end - begin) * row_bytes());
    stream->ReadKvRows(layer_, page, begin, end, rows.data(), rows.data() + rows.size() / 2);
    return rows;
  }
  void Write(Stream* stream, int page, int begin, int end, const std::vector<uint8_t>& rows) const {
    stream->WriteKvRows(layer_, page, begin, end, rows.data(), rows.data() + rows.size() / 2);
  }

 private:
  std::unique_ptr<DeviceBuffer> k_;
  std::unique_ptr<DeviceBuffer> v_;
  KvLayer layer_;
};

// A step's slices with the memory behind them.
struct StepSlices {
  std::vector<SequenceSlice> slices;
  std::vector<int32_t> page_tables;

  // `pages` covers positions [0, begin + count).
  void Add(int begin, int count, const std::vector<int32_t>& pages) {
    slices.push_back({rows(), count, begin, static_cast<int32_t>(page_tables.size())});
    page_tables.insert(page_tables.end(), pages.begin(), pages.end());
  }
  int rows() const { return slices.empty() ? 0 : slices.back().row_begin + slices.back().row_count; }
  SliceTable Table() const {
    int max_positions = 0;
    for (const SequenceSlice& slice : slices) {
      max_positions = std::max(max_positions, slice.position_begin + slice.row_count);
    }
    return {slices.data(), static_cast<int>(slices.size()), page_tables.data(), rows(), max_positions};
  }
};

inline int PagesFor(int positions) {
  return (positions + kPageTokens - 1) / kPageTokens;
}

// Page ids [0, n) in random order.
inline std::vector<int32_t> ShuffledPages(int n, uint32_t seed) {
  std::vector<int32_t> pages(n);
  std::iota(pages.begin(), pages.end(), 0);
  std::mt19937 random(seed);
  std::shuffle(pages.begin(), pages.end(), random);
  return pages;
}

}  // namespace layover::kernel_test

#endif  // LAYOVER_TESTS_KERNELS_KV_FIXTURE_H_
