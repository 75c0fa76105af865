// K/V values and where they lie: the codec against its statement (kv_codec.h), pages against canonical rows, and
// threads at work on different rows of one page.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "kernels/cpu/kv_codec.h"
#include "kernels/float16.h"
#include "tests/kernels/kv_fixture.h"

namespace layover::kernel_test {
namespace {

std::vector<CpuIsa> Isas() {
  std::vector<CpuIsa> isas;
  for (int isa = 0; isa <= static_cast<int>(BestCpuIsa()); ++isa) isas.push_back(static_cast<CpuIsa>(isa));
  return isas;
}

// ---------------------------------------------------------------------------------------------------------- codec

// The statement of kv_codec.h, block by block, with the standard library.
void EncodeBlockAsStated(KvType type, const float* x, uint8_t* out) {
  float extreme = 0;
  bool finite = true;
  for (int i = 0; i < 32; ++i) {
    finite = finite && std::isfinite(x[i]);
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  }
  const bool q8 = type == KvType::kQ8_0;
  uint16_t d = !finite ? 0x7e00 : FloatToHalf(q8 ? std::abs(extreme) / 127.0f : extreme / -8.0f);
  if (d == 0x8000) d = 0;
  std::memcpy(out, &d, 2);
  for (int i = 0; i < 32; ++i) {
    int q = 0;
    if (finite && (d & 0x7fff) != 0) {
      const float rounded = std::nearbyint(x[i] * (1.0f / HalfToFloat(d)));
      q = static_cast<int>(q8 ? std::clamp(rounded, -127.0f, 127.0f) : std::clamp(rounded, -8.0f, 7.0f));
    }
    if (q8) {
      out[2 + i] = static_cast<uint8_t>(q);
    } else if (i < 16) {
      out[2 + i] = static_cast<uint8_t>(q + 8);
    } else {
      out[2 + i - 16] |= static_cast<uint8_t>((q + 8) << 4);
    }
  }
}

std::vector<float> CodecValues() {
  std::vector<float> x = NormalValues(64 * 32, 1);
  const auto block = [&](auto value) {
    for (int i = 0; i < 32; ++i) x.push_back(value(i));
  };
  block([](int) { return 0.0f; });
  block([](int) { return -0.0f; });
  block([](int i) { return i == 31 ? 1e-40f : 0.0f; });
  block([](int i) { return static_cast<float>(i) * 1e-6f; });       // d is a subnormal half
  block([](int i) { return static_cast<float>(i - 16) * 3e-8f; });  // d rounds to zero, or nearly
  block([](int i) { return static_cast<float>(i) * 127.0f / 31.0f; });
  block([](int i) { return i % 2 ? 63.5f : 127.0f; });  // ties
  block([](int i) { return i == 3 ? -8.0f : static_cast<float>(i % 8) - 3.5f; });
  block([](int i) { return i == 0 ? -5.0f : 5.0f; });  // extremes of two signs: the first one counts
  block([](int i) { return i == 7 ? INFINITY : 1.0f; });
  block([](int i) { return i == 7 ? NAN : 1.0f; });
  block([](int i) { return i == 7 ? 3e38f : 1.0f; });  // d overflows the half
  return x;
}

TEST(KvCodec, EncodesAsStatedOnEveryIsa) {
  const std::vector<float> x = CodecValues();
  const int n = static_cast<int>(x.size());
  for (const KvType type : {KvType::kQ8_0, KvType::kQ4_0}) {
    const size_t block_bytes = KvRowBytes(type, 1, 32);
    std::vector<uint8_t> want(KvRowBytes(type, 1, n));
    for (int b = 0; b < n / 32; ++b) EncodeBlockAsStated(type, &x[b * 32], &want[b * block_bytes]);
    for (const CpuIsa isa : Isas()) {
      std::vector<uint8_t> got(want.size());
      CpuEncodeKv(isa, type)(x.data(), n, got.data());
      for (int b = 0; b < n / 32; ++b) {
        EXPECT_EQ(std::memcmp(&got[b * block_bytes], &want[b * block_bytes], block_bytes), 0)
            << KvTypeName(type) << " block " << b << " " << CpuIsaName(isa);
      }
    }
  }
}

TEST(KvCodec, PlainTypesAreTheConversionsOfFloat16) {
  const std::vector<float> x = NormalValues(100, 2);  // no multiple of 16
  std::vector<uint16_t> halves(100);
  for (int i = 0; i < 100; ++i) halves[i] = FloatToHalf(x[i]);
  for (const CpuIsa isa : Isas()) {
    std::vector<uint16_t> got(100);
    CpuEncodeKv(isa, KvType::kF16)(x.data(), 100, got.data());
    EXPECT_EQ(got, halves);
    std::vector<float> back(100);
    CpuEncodeKv(isa, KvType::kF32)(x.data(), 100, back.data());
    EXPECT_TRUE(SameBits(back, x));
  }
}

TEST(KvCodec, DecodesToTheNearestThatTheBlockCanHold) {
  const std::vector<float> x = NormalValues(64 * 32, 3);
  const int n = static_cast<int>(x.size());
  for (const KvType type : kAllKvTypes) {
    std::vector<float> scalar_values;
    for (const CpuIsa isa : Isas()) {
      std::vector<uint8_t> bytes(KvRowBytes(type, 1, n));
      std::vector<float> back(n);
      CpuEncodeKv(isa, type)(x.data(), n, bytes.data());
      CpuDecodeKv(isa, type)(bytes.data(), n, back.data());
      if (scalar_values.empty()) scalar_values = back;
      EXPECT_TRUE(SameBits(back, scalar_values)) << KvTypeName(type);
      for (int i = 0; i < n; ++i) {
        float largest = 0;
        for (int j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) largest = std::max(largest, std::abs(x[j]));
        // Half a step; q4_0 has no +8, so values opposite to the extreme may be a whole step off.
        const float bound = type == KvType::kF32    ? 0.0f
                            : type == KvType::kF16  ? std::abs(x[i]) * 0x1p-11f
                            : type == KvType::kQ8_0 ? largest / 127 * 0.501f
                                                    : largest / 8 * 1.002f;
        ASSERT_LE(std::abs(back[i] - x[i]), bound) << KvTypeName(type) << " " << i;
      }
    }
  }
}

TEST(KvCodec, DamagedBlocksReadAsNan) {
  std::vector<float> x(32, 1.0f);
  for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {
    x[9] = bad;
    for (const KvType type : {KvType::kQ8_0, KvType::kQ4_0}) {
      uint8_t bytes[34];
      float back[32];
      CpuEncodeKv(BestCpuIsa(), type)(x.data(), 32, bytes);
      CpuDecodeKv(BestCpuIsa(), type)(bytes, 32, back);
      for (const float value : back) EXPECT_FALSE(std::isfinite(value)) << KvTypeName(type);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- pages

struct PageCase {
  KvType type;
  int kv_heads;
  int head_dim;
};

class KvPageTest : public testing::TestWithParam<PageCase> {
 protected:
  KvPageTest()
      : device_(OpenCpu(BestVariant())),
        stream_(device_->NewCopyStream()),
        cache_(device_.get(), GetParam().type, 3, GetParam().kv_heads, GetParam().head_dim) {}

  std::vector<uint8_t> RandomRows(int rows, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(2 * rows * cache_.row_bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    return bytes;
  }

  // Rows [begin, end) of both halves (K, V) of a whole page's rows.
  std::vector<uint8_t> Cut(const std::vector<uint8_t>& page, int begin, int end) const {
    std::vector<uint8_t> rows;
    for (const size_t half : {size_t{0}, page.size() / 2}) {
      rows.insert(rows.end(), page.begin() + half + begin * cache_.row_bytes(),
                  page.begin() + half + end * cache_.row_bytes());
    }
    return rows;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  TestCache cache_;
};

TEST_P(KvPageTest, RowsComeBackAsWritten) {
  const std::vector<uint8_t> page = RandomRows(64, 1);
  cache_.Write(stream_.get(), 1, 0, 64, page);
  EXPECT_EQ(cache_.Read(stream_.get(), 1, 0, 64), page);
  for (const int begin : {0, 1, 7, 8, 16, 40, 63}) {
    for (const int end : {1, 8, 9, 17, 41, 63, 64}) {
      if (begin < end) {
        EXPECT_EQ(cache_.Read(stream_.get(), 1, begin, end), Cut(page, begin, end)) << begin << " " << end;
      }
    }
  }
}

TEST_P(KvPageTest, WritingRowsTouchesNoOthers) {
  const std::vector<uint8_t> before = RandomRows(64, 2);
  const std::vector<uint8_t> after = RandomRows(64, 3);
  for (const int begin : {0, 1, 15, 31, 63}) {
    for (const int end : {1, 2, 16, 33, 62, 64}) {
      if (begin >= end) continue;
      for (int page = 0; page < 3; ++page) cache_.Write(stream_.get(), page, 0, 64, before);
      cache_.Write(stream_.get(), 1, begin, end, Cut(after, begin, end));
      EXPECT_EQ(cache_.Read(stream_.get(), 0, 0, 64), before);
      EXPECT_EQ(cache_.Read(stream_.get(), 2, 0, 64), before);
      EXPECT_EQ(cache_.Read(stream_.get(), 1, begin, end), Cut(after, begin, end));
      if (begin > 0) {
        EXPECT_EQ(cache_.Read(stream_.get(), 1, 0, begin), Cut(before, 0, begin));
      }
      if (end < 64) {
        EXPECT_EQ(cache_.Read(stream_.get(), 1, end, 64), Cut(before, end, 64));
      }
    }
  }
}

TEST_P(KvPageTest, CopyTakesTheFirstRowsAndZeroesTheRest) {
  const std::vector<uint8_t> page = RandomRows(64, 4);
  cache_.Write(stream_.get(), 0, 0, 64, page);
  for (const int rows : {0, 1, 17, 63, 64}) {
    cache_.Write(stream_.get(), 2, 0, 64, RandomRows(64, 5));
    stream_->CopyKvPage(cache_.layer(), 0, 2, rows);
    if (rows > 0) {
      EXPECT_EQ(cache_.Read(stream_.get(), 2, 0, rows), Cut(page, 0, rows));
    }
    if (rows < 64) {
      const std::vector<uint8_t> rest = cache_.Read(stream_.get(), 2, rows, 64);
      EXPECT_EQ(rest, std::vector<uint8_t>(rest.size()));
    }
    EXPECT_EQ(cache_.Read(stream_.get(), 0, 0, 64), page);
  }
}

TEST_P(KvPageTest, ZeroClearsOnePage) {
  const std::vector<uint8_t> page = RandomRows(64, 6);
  for (int p = 0; p < 3; ++p) cache_.Write(stream_.get(), p, 0, 64, page);
  stream_->ZeroKvPage(cache_.layer(), 1);
  EXPECT_EQ(cache_.Read(stream_.get(), 0, 0, 64), page);
  EXPECT_EQ(cache_.Read(stream_.get(), 1, 0, 64), std::vector<uint8_t>(page.size()));
  EXPECT_EQ(cache_.Read(stream_.get(), 2, 0, 64), page);
}

TEST_P(KvPageTest, StoreKvWritesEncodedRowsWhereThePageTableSays) {
  const KvLayer& layer = cache_.layer();
  const int width = layer.kv_heads * layer.head_dim;
  const int stride = width + 4;
  const std::vector<float> k = NormalValues(100 * stride, 7);
  const std::vector<float> v = NormalValues(100 * stride, 8);
  StepSlices step;
  step.Add(50, 70, {2, 0});  // positions 50 ... 119: page 2 from slot 50, page 0 to slot 55
  step.Add(3, 30, {1});
  for (const Variant& variant : Variants()) {
    const std::unique_ptr<Device> device = OpenCpu(variant);
    const std::unique_ptr<Stream> stream = device->NewComputeStream();
    for (int page = 0; page < 3; ++page) stream->ZeroKvPage(layer, page);
    stream->StoreKv({layer, k.data(), v.data(), stride, step.Table()});
    const EncodeKvFunction encode = CpuEncodeKv(CpuIsa::kScalar, layer.type);
    for (int row = 0; row < 100; ++row) {
      const int page = row < 14 ? 2 : row < 70 ? 0 : 1;
      const int slot = row < 14 ? 50 + row : row < 70 ? row - 14 : 3 + row - 70;
      std::vector<uint8_t> want(2 * cache_.row_bytes());
      encode(&k[row * stride], width, want.data());
      encode(&v[row * stride], width, want.data() + cache_.row_bytes());
      ASSERT_EQ(cache_.Read(stream_.get(), page, slot, slot + 1), want) << "row " << row << ", " << variant.Name();
    }
    const std::vector<uint8_t> unwritten = cache_.Read(stream_.get(), 1, 33, 64);
    EXPECT_EQ(unwritten, std::vector<uint8_t>(unwritten.size()));
  }
}

// What a save, a restore and a decoding sequence do at once. TSan watches that they share no byte.
TEST_P(KvPageTest, ThreadsMayWorkOnDifferentRowsOfAPage) {
  const std::vector<uint8_t> page = RandomRows(64, 9);
  cache_.Write(stream_.get(), 1, 0, 64, page);
  const KvLayer& layer = cache_.layer();
  const int width = layer.kv_heads * layer.head_dim;
  const std::vector<float> rows = NormalValues(width, 10);
  std::atomic<int> waiting{3};
  const auto start_together = [&] {
    --waiting;
    while (waiting > 0) std::this_thread::yield();
  };
  std::thread saver([&] {
    const std::unique_ptr<Stream> copy = device_->NewCopyStream();
    start_together();
    for (int i = 0; i < 50; ++i) EXPECT_EQ(cache_.Read(copy.get(), 1, 0, 21), Cut(page, 0, 21));
  });
  std::thread restorer([&] {
    const std::unique_ptr<Stream> copy = device_->NewCopyStream();
    start_together();
    for (int i = 0; i < 50; ++i) cache_.Write(copy.get(), 1, 37, 64, Cut(page, 37, 64));
  });
  const std::unique_ptr<Stream> compute = device_->NewComputeStream();
  start_together();
  for (int i = 0; i < 50; ++i) {
    StepSlices step;
    step.Add(21 + i % 16, 1, {1});
    compute->StoreKv({layer, rows.data(), rows.data(), width, step.Table()});
  }
  saver.join();
  restorer.join();
  EXPECT_EQ(cache_.Read(stream_.get(), 1, 0, 21), Cut(page, 0, 21));
  EXPECT_EQ(cache_.Read(stream_.get(), 1, 37, 64), Cut(page, 37, 64));
}

INSTANTIATE_TEST_SUITE_P(Shapes, KvPageTest,
                         testing::Values(PageCase{KvType::kF32, 2, 64}, PageCase{KvType::kF32, 1, 8},
                                         PageCase{KvType::kF16, 3, 64}, PageCase{KvType::kF16, 1, 80},
                                         PageCase{KvType::kF16, 2, 8}, PageCase{KvType::kF16, 1, 256},
                                         PageCase{KvType::kQ8_0, 3, 64}, PageCase{KvType::kQ8_0, 1, 96},
                                         PageCase{KvType::kQ4_0, 3, 64}, PageCase{KvType::kQ4_0, 1, 32}),
                         [](const auto& test) {
                           return fmt::format("{}_{}x{}", KvTypeName(test.param.type), test.param.kv_heads,
                                              test.param.head_dim);
                         });

}  // namespace
}  // namespace layover::kernel_test
