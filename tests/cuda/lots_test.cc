// Rows on their way between pages and the host: whatever lots they go in, the bytes are those of row after row.
#include <algorithm>
#include <optional>

#include "common/limits.h"
#include "kernels/cuda/lot_queue.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/cuda/kernel_draw.h"
#ifndef LAYOVER_TEST_ON_CARD
#include "kernels/emulation/host_copies.h"
#endif

namespace layover::gpu_test {
namespace {

using gpu::KvRows;
using gpu::LotQueue;
using gpu::QueueRank;

// Layers of one type, as a stage has them, and what should be in them row by row.
class Layers {
 public:
  Layers(Device* device, KvType type, std::vector<std::pair<int, int>> shapes, int n_pages) : memory_(device) {
    for (const auto& [kv_heads, head_dim] : shapes) {
      const size_t bytes = device->KvPoolBytes(type, n_pages, kv_heads, head_dim);
      layers_.push_back(
          {memory_.Zeroed<uint8_t>(bytes), memory_.Zeroed<uint8_t>(bytes), type, n_pages, kv_heads, head_dim});
      for (auto& model : model_) model.emplace_back(bytes, uint8_t{0});
    }
  }
  const KvLayer& layer(size_t i) const { return layers_[i]; }
  size_t size() const { return layers_.size(); }
  size_t RowBytes(size_t i) const { return KvRowBytes(layers_[i].type, layers_[i].kv_heads, layers_[i].head_dim); }
  // In the model: canonical rows of all pages, back to back.
  uint8_t* Row(size_t i, bool is_k, int page, int row) {
    return model_[is_k][i].data() + (static_cast<size_t>(page) * kPageTokens + static_cast<size_t>(row)) * RowBytes(i);
  }
  // By the contract's own operation, one page at a time.
  std::vector<uint8_t> ReadAll(size_t i, bool is_k) {
    const KvLayer& layer = layers_[i];
    std::vector<uint8_t> all(model_[is_k][i].size());
    for (int page = 0; page < layer.n_pages; ++page) {
      uint8_t* const rows = all.data() + static_cast<size_t>(page) * kPageTokens * RowBytes(i);
      memory_.stream()->ReadKvRows(layer, page, 0, kPageTokens, is_k ? rows : nullptr, is_k ? nullptr : rows);
      memory_.Finish();
    }
    return all;
  }
  void ExpectTheModel() {
    for (size_t i = 0; i < size(); ++i) {
      for (const bool is_k : {true, false})
        EXPECT_TRUE(ReadAll(i, is_k) == model_[is_k][i]) << i << (is_k ? " K" : " V");
    }
  }
  const std::vector<uint8_t>& Model(size_t i, bool is_k) const { return model_[is_k][i]; }

 private:
  Memory memory_;
  std::vector<KvLayer> layers_;
  std::vector<std::vector<uint8_t>> model_[2];  // V, K
};

std::vector<uint8_t> Bytes(Draw* draw, size_t n) {
  std::vector<uint8_t> bytes(n);
  uint32_t x = draw->Seed();
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((x = x * 1664525u + 1013904223u) >> 24);
  return bytes;
}

struct Asked {
  size_t layer;
  bool is_k;
  int page, begin, end;
};
Asked Draw1(Draw* draw, const Layers& layers, int n_pages) {
  const int begin = draw->Coin() ? 0 : draw->Between(0, 63);
  return {static_cast<size_t>(draw->Between(0, static_cast<int>(layers.size()) - 1)), draw->Coin(),
          draw->Between(0, n_pages - 1), begin, draw->Coin() ? 64 : draw->Between(begin + 1, 64)};
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 1;  // they are slow
#else
constexpr uint64_t kSeeds = 3;
#endif

// Reads and writes in random order and sizes, often of the same rows and of the same host memory, with lots that hold
// little: what comes out is what row after row would have given.
TEST(LotQueue, IsRowAfterRowInStreamOrder) {
  constexpr int kPages = 3;
  for (const KvType type : kernel_test::kAllKvTypes) {
    for (const size_t most : {size_t{1100}, size_t{9000}, size_t{200000}}) {
      SCOPED_TRACE(fmt::format("{}, lots of {} bytes", KvTypeName(type), most));
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        ForEverySchedule(
            4,
            [&](Device* device) {
              Draw draw(static_cast<uint32_t>(seed + most));
              Layers layers(device, type, {{1, 64}, {2, 128}, {1, 96}}, kPages);
              std::vector<uint8_t> host = Bytes(&draw, 160000), want = host;
              LotQueue queue(0, QueueRank::kBehind, most);
              size_t at = 0;
              std::optional<Asked> next;
              for (int i = 0; i < 60; ++i) {
                const Asked a = next.value_or(Draw1(&draw, layers, kPages));
                next.reset();
                const size_t row_bytes = layers.RowBytes(a.layer),
                             bytes = row_bytes * static_cast<size_t>(a.end - a.begin);
                // Where the one before ended, or elsewhere.
                if (draw.Between(0, 3) == 0 || at + bytes > host.size())
                  at = static_cast<size_t>(draw.Between(0, 70000));
                const KvRows rows{layers.layer(a.layer), a.is_k, a.page, a.begin, a.end};
                uint8_t* const in_model = layers.Row(a.layer, a.is_k, a.page, a.begin);
                if (i / 8 % 2 == 0) {
                  queue.Write(rows, host.data() + at);
                  std::copy_n(want.data() + at, bytes, in_model);
                } else {
                  queue.Read(rows, host.data() + at);
                  std::copy_n(in_model, bytes, want.data() + at);
                }
                at += bytes;
                if (draw.Between(0, 9) == 0) {  // something else, and then what that has changed
                  const Asked z = Draw1(&draw, layers, kPages);
                  const size_t page_bytes = layers.RowBytes(z.layer) * kPageTokens;
                  const KvLayer& layer = layers.layer(z.layer);
                  queue->Fill(static_cast<uint8_t*>(layer.k_pool) + static_cast<size_t>(z.page) * page_bytes, 0,
                              page_bytes);
                  std::fill_n(layers.Row(z.layer, true, z.page, 0), page_bytes, uint8_t{0});
                  next = Asked{z.layer, true, z.page, 0, kPageTokens};
                }
              }
              ASSERT_TRUE(queue.Synchronize().ok());
              EXPECT_TRUE(host == want);
              layers.ExpectTheModel();
            },
            Schedules::kOuter, seed);
        if (HasFailure()) return;
      }
    }
  }
}

// The way of a save and of a restore: K of a layer's pages, then V, into one stretch of host memory.
TEST(GpuStream, ManyPagesGoInFewCopies) {
  constexpr int kPages = 24;
  ForEverySchedule(
      4,
      [&](Device* device) {
        Draw draw(5);
        Layers layers(device, KvType::kF16, {{8, 128}, {8, 128}}, kPages);  // 128 KiB for a page of K or V
        const size_t page_bytes = layers.RowBytes(0) * kPageTokens, total = 4 * kPages * page_bytes;
        const std::vector<uint8_t> given = Bytes(&draw, total);
        std::vector<uint8_t> got(total);
        const std::unique_ptr<Stream> stream = device->NewCopyStream();
        const auto each = [&](const std::function<void(const KvLayer&, bool, int, size_t)>& move) {
          size_t at = 0;
          for (size_t i = 0; i < layers.size(); ++i) {
            for (const bool is_k : {true, false}) {
              for (int page = 0; page < kPages; ++page, at += page_bytes) move(layers.layer(i), is_k, page, at);
            }
          }
        };
#ifndef LAYOVER_TEST_ON_CARD
        emulation::WatchHostCopies();
#endif
        each([&](const KvLayer& layer, bool is_k, int page, size_t at) {
          const uint8_t* const rows = given.data() + at;
          stream->WriteKvRows(layer, page, 0, kPageTokens, is_k ? rows : nullptr, is_k ? nullptr : rows);
        });
        each([&](const KvLayer& layer, bool is_k, int page, size_t at) {
          uint8_t* const rows = got.data() + at;
          stream->ReadKvRows(layer, page, 0, kPageTokens, is_k ? rows : nullptr, is_k ? nullptr : rows);
        });
        const std::unique_ptr<Event> event = stream->Record();
        while (!event->Done()) {
        }
        EXPECT_TRUE(got == given);
        EXPECT_TRUE(stream->Synchronize().ok());
#ifndef LAYOVER_TEST_ON_CARD
        const std::vector<emulation::HostCopy> copies = emulation::TakeHostCopies();
        ASSERT_EQ(copies.size(), 2 * (total / limits::kKvLotBytes));
        for (const emulation::HostCopy& copy : copies) EXPECT_EQ(copy.bytes, limits::kKvLotBytes);
#endif
      },
      Schedules::kOuter);
}

// Rows that are neither contiguous in their pages nor on the host: one kernel takes them all.
TEST(GpuStream, InterleavedHalvesKeepTheirPlaces) {
  for (const KvType type : kernel_test::kAllKvTypes) {
    ForEverySchedule(4, [&](Device* device) {
      Draw draw(9);
      Layers layers(device, type, {{2, 64}}, 3);
      const size_t row = layers.RowBytes(0);
      const std::unique_ptr<Stream> stream = device->NewCopyStream();
      const std::vector<uint8_t> k = Bytes(&draw, 3 * 64 * row), v = Bytes(&draw, 3 * 64 * row);
      std::vector<uint8_t> k_back(k.size()), v_back(v.size());
      for (int page = 0; page < 3; ++page) {
        const size_t at = static_cast<size_t>(page) * 64 * row;
        stream->WriteKvRows(layers.layer(0), page, 0, 64, k.data() + at, v.data() + at);
      }
      for (int page = 2; page >= 0; --page) {
        const size_t at = static_cast<size_t>(page) * 64 * row;
        for (const auto& [begin, end] : {std::pair{0, 1}, {1, 37}, {37, 64}}) {
          const size_t from = at + static_cast<size_t>(begin) * row;
          stream->ReadKvRows(layers.layer(0), page, begin, end, k_back.data() + from, v_back.data() + from);
        }
      }
      ASSERT_TRUE(stream->Synchronize().ok());
      EXPECT_TRUE(k_back == k);
      EXPECT_TRUE(v_back == v);
    });
  }
}

// What is asked for and not waited for is done all the same: the stream waits when it goes.
TEST(GpuStream, AnOpenLotIsSentWhenTheStreamGoes) {
  ForEverySchedule(4, [&](Device* device) {
    Draw draw(3);
    Layers layers(device, KvType::kF32, {{1, 32}}, 1);
    const std::vector<uint8_t> given = Bytes(&draw, 5 * layers.RowBytes(0));
    device->NewCopyStream()->WriteKvRows(layers.layer(0), 0, 7, 12, nullptr, given.data());
    std::copy(given.begin(), given.end(), layers.Row(0, false, 0, 7));
    layers.ExpectTheModel();
  });
}

#ifndef LAYOVER_TEST_ON_CARD
TEST(GpuStream, ACardWithoutRoomForLotsSaysSo) {
  const auto device = gpu::GpuDevice::Open(0);
  ASSERT_TRUE(device.ok());
  Layers layers(device->get(), KvType::kF32, {{1, 32}}, 1);
  LotQueue queue(0, QueueRank::kBehind, size_t{4} << 29 | 1);  // more than an emulated card has
  std::vector<uint8_t> rows(layers.RowBytes(0), 7);
  queue.Read({layers.layer(0), true, 0, 0, 1}, rows.data());
  EXPECT_EQ(queue.Synchronize().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rows, std::vector<uint8_t>(rows.size(), 7));
}
#endif

}  // namespace
}  // namespace layover::gpu_test
