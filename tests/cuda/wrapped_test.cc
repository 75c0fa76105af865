// The wrapped instructions of kernels/cuda/gpu.h, each against a plain loop: under the emulation its own side (and the
// test), on a card the lines of ptx.h that nothing else has run.
#include <cstdint>
#include <random>

#include "kernels/float16.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/gpu/probe_kernels.h"

namespace layover::gpu_test {
namespace {

using gpu::MmaProbe;
using gpu::Queue;

std::vector<uint32_t> RandomWords(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> words(n);
  for (uint32_t& word : words) word = random();
  return words;
}

std::vector<int8_t> RandomBytes(size_t n, uint32_t seed) {
  std::vector<int8_t> bytes(n);
  std::mt19937 random(seed);
  for (int8_t& byte : bytes) byte = static_cast<int8_t>(random());
  bytes[0] = bytes[n - 1] = -128;
  return bytes;
}

// `body` puts one kernel in a queue, under every schedule; what it computes is compared by `check`.
void Probe(const std::function<void(Memory*, Queue*)>& body) {
  ForEverySchedule(4, [&](Device* device) {
    Memory memory(device);
    const std::unique_ptr<Queue> queue = gpu::NewQueue(0);
    body(&memory, queue.get());
  });
}

void Finish(Queue* queue) {
  const absl::Status status = queue->Synchronize();
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(Wrapped, BytesAreMultipliedAndPermuted) {
  std::vector<uint32_t> in = RandomWords(96, 1);
  in[0] = in[1] = 0x80808080u;  // four times -128 * -128
  std::vector<uint32_t> want(64);
  for (size_t i = 0; i < 32; ++i) {
    in[3 * i + 2] &= 0x77777777u;  // bit 3 of a selector asks for the sign, which no kernel does
    const uint32_t a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    want[i] = c;
    for (int k = 0; k < 4; ++k) {
      want[i] += static_cast<uint32_t>(static_cast<int8_t>(a >> 8 * k) * static_cast<int8_t>(b >> 8 * k));
      const uint32_t at = c >> 4 * k & 7;
      want[32 + i] |= ((at < 4 ? a : b) >> 8 * (at % 4) & 255) << 8 * k;
    }
  }
  Probe([&](Memory* memory, Queue* queue) {
    auto* out = memory->Zeroed<uint32_t>(64);
    gpu::LaunchBytes(memory->Put(in), out, queue);
    Finish(queue);
    EXPECT_EQ(memory->Get(out, 64), want);
  });
}

TEST(Wrapped, HalvesAreConvertedAsOnTheHost) {
  std::vector<float> all(65536), near(4096);
  for (size_t i = 0; i < all.size(); ++i) all[i] = HalfToFloat(static_cast<uint16_t>(i));
  const std::vector<uint32_t> words = RandomWords(near.size(), 2);
  for (size_t i = 0; i < near.size(); ++i) {
    // Between two halves, in the middle of them, and of any size: overflow, subnormals and zero among them.
    const float low = HalfToFloat(static_cast<uint16_t>(words[i] & 0x7bfe)),
                high = HalfToFloat((words[i] & 0x7bfe) + 1);
    near[i] =
        i % 3 == 0 ? low + (high - low) / 2 : std::ldexp(static_cast<float>(words[i]), static_cast<int>(i % 90) - 76);
  }
  std::vector<uint16_t> halves(near.size());
  for (size_t i = 0; i < near.size(); ++i) halves[i] = FloatToHalf(near[i]);
  Probe([&](Memory* memory, Queue* queue) {
    auto* floats = memory->Zeroed<float>(all.size());
    auto* rounded = memory->Zeroed<uint16_t>(near.size());
    gpu::LaunchAllHalves(floats, queue);
    gpu::LaunchToHalves(memory->Put(near), rounded, static_cast<int>(near.size()), queue);
    Finish(queue);
    EXPECT_TRUE(SameValues(memory->Get(floats, all.size()), all));
    EXPECT_EQ(memory->Get(rounded, near.size()), halves);
  });
}

// d[16, 8] + a[16, k] b[8, k]^T.
std::vector<int32_t> PlainProduct(const std::vector<int8_t>& a, const std::vector<int8_t>& b, std::vector<int32_t> d) {
  const size_t k = a.size() / 16;
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      for (size_t i = 0; i < k; ++i) d[row * 8 + column] += a[row * k + i] * b[column * k + i];
    }
  }
  return d;
}

TEST(Wrapped, MatricesAreLoadedAndMultiplied) {
  for (const size_t k : {32, 16}) {
    SCOPED_TRACE(k);
    const std::vector<int8_t> a = RandomBytes(16 * k, 3), b = RandomBytes(8 * k, 4);
    std::vector<int32_t> d(128);
    for (size_t i = 0; i < d.size(); ++i) d[i] = static_cast<int32_t>(i * 7919) - 500000;
    const std::vector<int32_t> want = PlainProduct(a, b, d);
    Probe([&](Memory* memory, Queue* queue) {
      const MmaProbe probe{memory->Put(a), memory->Put(b), memory->Put(d), memory->Zeroed<uint32_t>(128)};
      k == 32 ? gpu::LaunchMma32(probe, queue) : gpu::LaunchMma16(probe, queue);
      Finish(queue);
      EXPECT_EQ(memory->Get(probe.d, d.size()), want);
      if (k == 16) return;
      // Lane 4 g + t has bytes [4 t, 4 t + 4) of row g of each matrix; matrix 2 h + s is rows 8 s .., bytes 16 h ...
      std::vector<uint32_t> words(128);
      for (size_t i = 0; i < 128; ++i) {
        const size_t lane = i / 4, row = lane / 4 + i % 2 * 8, byte = i % 4 / 2 * 16 + lane % 4 * 4;
        std::memcpy(&words[i], &a[row * 32 + byte], 4);
      }
      EXPECT_EQ(memory->Get(probe.words, 128), words);
    });
  }
}

TEST(Wrapped, LanesExchangeValues) {
  const std::vector<uint32_t> in = RandomWords(32, 5);
  std::vector<uint32_t> want(129);
  for (size_t i = 0; i < 32; ++i) {
    want[i] = in[in[i] % 32];
    want[32 + i] = in[i ^ 5];
    want[64 + i] = in[i < 3 ? i : i - 3];
    for (size_t j = 0; j < 32; ++j) want[96 + i] |= static_cast<uint32_t>(in[j] % 3 == 0) << j;
  }
  want[128] = 64 * 32;
  Probe([&](Memory* memory, Queue* queue) {
    auto* out = memory->Zeroed<uint32_t>(want.size());
    gpu::LaunchCollectives(memory->Put(in), out, queue);
    Finish(queue);
    EXPECT_EQ(memory->Get(out, want.size()), want);
  });
}

TEST(Wrapped, CopiesIntoSharedMemoryLandBeforeTheyAreUsed) {
  const std::vector<uint32_t> in = RandomWords(256, 6);
  Probe([&](Memory* memory, Queue* queue) {
    auto* out = memory->Zeroed<uint32_t>(256);
    gpu::LaunchSharedReverse(memory->Put(in), out, queue);
    Finish(queue);
    EXPECT_EQ(memory->Get(out, 256), std::vector<uint32_t>(in.rbegin(), in.rend()));
  });
}

// What the bandwidth floor is measured with: a word that it left out would make the floor too high.
TEST(Wrapped, ReadingMemoryReadsEachWordOnce) {
  for (const size_t n : {4u, 1024u, 4u * 513u, 4u * 3000u}) {
    SCOPED_TRACE(n);
    const std::vector<uint32_t> in = RandomWords(n, 7);
    uint32_t want = 0, got = 0;
    for (const uint32_t word : in) want ^= word;
    Probe([&](Memory* memory, Queue* queue) {
      auto* sums = memory->Zeroed<uint32_t>(512);
      gpu::LaunchReadMemory({memory->Put(in), static_cast<long long>(4 * n), sums, 512}, queue);
      Finish(queue);
      got = 0;
      for (const uint32_t sum : memory->Get(sums, 512)) got ^= sum;
      EXPECT_EQ(got, want);
    });
  }
}

}  // namespace
}  // namespace layover::gpu_test
