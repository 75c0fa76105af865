// K/V pages of the CUDA back end: canonical rows are the CPU back end's, byte for byte, and move as they should.
#include <cmath>
#include <numeric>

#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/kv_fixture.h"

namespace layover::gpu_test {
namespace {

using kernel_test::kAllKvTypes;
using kernel_test::NormalValues;
using kernel_test::ShuffledPages;
using kernel_test::StepSlices;

class Pages {
 public:
  Pages(Memory* memory, KvType type, int n_pages, int kv_heads, int head_dim) : memory_(memory) {
    const size_t bytes = memory->device()->KvPoolBytes(type, n_pages, kv_heads, head_dim);
    layer_ = {memory->Zeroed<uint8_t>(bytes), memory->Zeroed<uint8_t>(bytes), type, n_pages, kv_heads, head_dim};
  }
  const KvLayer& layer() const { return layer_; }
  std::vector<uint8_t> Read(int page, int begin, int end) {
    std::vector<uint8_t> rows(2 * RowBytes() * static_cast<size_t>(end - begin));
    memory_->stream()->ReadKvRows(layer_, page, begin, end, rows.data(), rows.data() + rows.size() / 2);
    memory_->Finish();
    return rows;
  }
  void Write(int page, int begin, int end, const std::vector<uint8_t>& rows) {
    memory_->stream()->WriteKvRows(layer_, page, begin, end, rows.data(), rows.data() + rows.size() / 2);
    memory_->Finish();
  }
  std::vector<uint8_t> All() {
    std::vector<uint8_t> all;
    for (int page = 0; page < layer_.n_pages; ++page) {
      const std::vector<uint8_t> rows = Read(page, 0, kPageTokens);
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }
  size_t RowBytes() const { return KvRowBytes(layer_.type, layer_.kv_heads, layer_.head_dim); }

 private:
  Memory* const memory_;
  KvLayer layer_;
};

SliceTable Upload(Memory* memory, const StepSlices& step) {
  SliceTable table = step.Table();
  table.slices = memory->Put(step.slices);
  table.page_tables = memory->Put(step.page_tables);
  return table;
}

TEST(GpuStoreKv, CanonicalRowsAreTheCpus) {
  struct Shape {
    int kv_heads;
    int head_dim;
  };
  for (const KvType type : kAllKvTypes) {
    const bool blocked = type == KvType::kQ8_0 || type == KvType::kQ4_0;
    for (const Shape shape : {Shape{1, 32}, Shape{3, 64}, Shape{2, blocked ? 96 : 40}, Shape{1, 256}}) {
      SCOPED_TRACE(fmt::format("{}, {} heads of {}", KvTypeName(type), shape.kv_heads, shape.head_dim));
      const int width = shape.kv_heads * shape.head_dim, stride = width + 8;
      StepSlices step;
      const std::vector<int32_t> pages = ShuffledPages(6, 3);
      step.Add(0, 70, {pages.begin(), pages.begin() + 2});
      step.Add(63, 1, {pages.begin() + 2, pages.begin() + 3});
      step.Add(60, 9, {pages.begin() + 3, pages.begin() + 5});
      std::vector<float> k = NormalValues(static_cast<size_t>(step.rows()) * stride, 5);
      std::vector<float> v = NormalValues(static_cast<size_t>(step.rows()) * stride, 6, 100.0f);
      for (int i = 0; i < width; ++i) {
        k[i] = 0;
        k[static_cast<size_t>(stride) + i] *= 0x1p-30f;  // f16 scale zero
        k[2 * static_cast<size_t>(stride) + i] *= 1e7f;  // scale overflows
      }
      k[3 * static_cast<size_t>(stride)] = NAN;
      v[4 * static_cast<size_t>(stride) + 1] = -INFINITY;
      v[5 * static_cast<size_t>(stride) + 2] = v[5 * static_cast<size_t>(stride) + 7] = -250.0f;  // equal extremes
      SameOnBoth<uint8_t>([&](Device* device) {
        Memory memory(device);
        Pages cache(&memory, type, 6, shape.kv_heads, shape.head_dim);
        memory.stream()->StoreKv({cache.layer(), memory.Put(k), memory.Put(v), stride, Upload(&memory, step)});
        memory.Finish();
        return cache.All();
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GpuKvPages, RowsComeBackAndPagesAreCopiedAndCleared) {
  for (const KvType type : kAllKvTypes) {
    std::vector<uint8_t> bytes(2 * 64 * KvRowBytes(type, 2, 64));
    std::iota(bytes.begin(), bytes.end(), uint8_t{1});
    ForEverySchedule(4, [&](Device* device) {
      Memory memory(device);
      Pages cache(&memory, type, 3, 2, 64);
      cache.Write(1, 0, 64, bytes);
      ASSERT_EQ(cache.Read(1, 0, 64), bytes);
      EXPECT_EQ(cache.Read(0, 0, 64), std::vector<uint8_t>(bytes.size()));
      // Some rows only.
      const std::vector<uint8_t> some(2 * 5 * cache.RowBytes(), 0xab);
      cache.Write(2, 20, 25, some);
      EXPECT_EQ(cache.Read(2, 20, 25), some);
      EXPECT_EQ(cache.Read(2, 19, 20), std::vector<uint8_t>(2 * cache.RowBytes()));
      EXPECT_EQ(cache.Read(2, 25, 26), std::vector<uint8_t>(2 * cache.RowBytes()));
      // One half only.
      std::vector<uint8_t> k(64 * cache.RowBytes());
      memory.stream()->ReadKvRows(cache.layer(), 1, 0, 64, k.data(), nullptr);
      memory.Finish();
      EXPECT_EQ(k, std::vector<uint8_t>(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(k.size())));
      memory.stream()->WriteKvRows(cache.layer(), 0, 3, 4, nullptr, k.data());
      memory.Finish();
      const std::vector<uint8_t> written = cache.Read(0, 3, 4);
      EXPECT_EQ(written[0], 0);
      EXPECT_EQ(written[written.size() / 2], k[0]);

      memory.stream()->CopyKvPage(cache.layer(), 1, 2, 37);
      memory.Finish();
      EXPECT_EQ(cache.Read(2, 0, 37), cache.Read(1, 0, 37));
      EXPECT_EQ(cache.Read(2, 37, 64), std::vector<uint8_t>(2 * 27 * cache.RowBytes()));
      memory.stream()->ZeroKvPage(cache.layer(), 1);
      memory.Finish();
      EXPECT_EQ(cache.Read(1, 0, 64), std::vector<uint8_t>(bytes.size()));
      EXPECT_NE(cache.Read(2, 0, 37), std::vector<uint8_t>(2 * 37 * cache.RowBytes()));
    });
  }
}

}  // namespace
}  // namespace layover::gpu_test
