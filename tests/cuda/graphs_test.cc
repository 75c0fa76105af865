// Stream::Replay of the CUDA back end: what recurs is captured the second time and launched from then on, with the bits
// of the CPU back end, whatever changes between the calls and may change.
#include <functional>
#include <utility>

#include "common/limits.h"
#include "common/status.h"
#include "kernels/cuda/graph_cache.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/kv_fixture.h"

namespace layover::gpu_test {
namespace {

using kernel_test::NormalValues;
using kernel_test::PagesFor;
using kernel_test::ShuffledPages;
using kernel_test::StepSlices;

constexpr int kManyMultiprocessors = 10000;  // so that attention shares blocks, which takes scratch memory

#ifdef LAYOVER_TEST_ON_CARD
void CompareGraphs(bool) {}
#else
void CompareGraphs(bool compare) {
  emulation::Settings settings = emulation::CurrentSettings();
  settings.compare_graphs = compare;
  emulation::SetSettings(settings);
}
#endif

// act(x) of `rows` rows; the values lie in device memory and change from call to call.
class Work {
 public:
  explicit Work(Device* device)
      : memory_(device), x_(memory_.Zeroed<float>(kFloats)), y_(memory_.Zeroed<float>(kFloats)) {}

  // What comes out, after x has become normal values by the seed.
  std::vector<float> Run(int rows, uint32_t seed, int slot = 0) {
    const std::vector<float> x = NormalValues(kFloats, seed);
    memory_.stream()->CopyToDevice(x_, x.data(), kFloats * sizeof(float));
    memory_.stream()->Zero(y_, kFloats * sizeof(float));
    memory_.stream()->Replay({.n_rows = rows, .slot = slot}, [&] { Enqueue(rows); });
    return memory_.Get(y_, kFloats);
  }
  void Enqueue(int rows) {
    ++enqueued_;
    memory_.stream()->Gated({x_, x_, y_, rows, kDim, kDim, kDim, kDim, GateKind::kSilu});
    memory_.stream()->Gated({y_, x_, y_, rows, kDim, kDim, kDim, kDim, GateKind::kSigmoid});
  }

  Stream* stream() { return memory_.stream(); }
  ReplayCounts counts() { return memory_.stream()->Replays(); }
  int enqueued() const { return enqueued_; }
  float* x() { return x_; }

  static constexpr int kDim = 8, kFloats = kDim * 5;

 private:
  Memory memory_;
  float *x_, *y_;
  int enqueued_ = 0;
};

TEST(Graphs, TheSecondCallIsCapturedAndLaunchedLikeTheThird) {
  Work cpu(kernel_test::OpenCpu(kernel_test::BestVariant()).get());
  for (const bool compare : {true, false}) {
    ForEverySchedule(4, [&](Device* device) {
      CompareGraphs(compare);
      Work gpu(device);
      for (uint32_t call = 1; call <= 5; ++call) {
        ASSERT_TRUE(SameValues(gpu.Run(3, call), cpu.Run(3, call)));
        EXPECT_EQ(gpu.counts().captured, call < 2 ? 0 : 1);
        EXPECT_EQ(gpu.counts().launched, call - 1);
      }
#ifndef LAYOVER_TEST_ON_CARD
      EXPECT_EQ(gpu.enqueued(), compare ? 5 : 2);
      emulation::TakeLaunches();
      gpu.Run(3, 6);
      const emulation::Launches launches = emulation::TakeLaunches();
      EXPECT_EQ(launches.graphs, 1);
      EXPECT_EQ(launches.kernels, 0);
#endif
    });
  }
  EXPECT_EQ(cpu.counts().launched, 0);
}

TEST(Graphs, MoreKeysThanGraphsAreKept) {
  constexpr int kMost = static_cast<int>(limits::kMostGraphs);
  Work cpu(kernel_test::OpenCpu(kernel_test::BestVariant()).get());
  ForEverySchedule(
      4,
      [&](Device* device) {
        CompareGraphs(false);
        Work gpu(device);
        uint32_t seed = 0;
        const auto call = [&](int key) {
          const int rows = key % 5 + 1;
          ++seed;
          ASSERT_TRUE(SameValues(gpu.Run(rows, seed, key), cpu.Run(rows, seed, key)));
        };
        const auto round = [&](int n_keys) {
          for (int key = 1; key <= n_keys; ++key) call(key);
        };
        // Each is forgotten before it comes again.
        for (int i = 0; i < 3; ++i) round(kMost + 1);
        EXPECT_EQ(gpu.counts().captured, 0);
        // The first round misses as well: each pushes out the one that comes next.
        for (int i = 0; i < 3; ++i) round(kMost);
        EXPECT_EQ(gpu.counts().captured, kMost);
        EXPECT_EQ(gpu.counts().launched, 2 * kMost);
        // One more key pushes out the one that was used least recently, and no other.
        call(kMost + 1);
        call(2);
        EXPECT_EQ(gpu.counts().launched, 2 * kMost + 1);
        call(1);
        EXPECT_EQ(gpu.counts().launched, 2 * kMost + 1);
      },
      Schedules::kInner);
}

// Decode of sequences that grow. The graph of a shorter one holds the address of scratch memory that a longer one has
// replaced.
TEST(Graphs, ScratchMemoryThatGrowsDropsThem) {
  constexpr int kHeads = 4, kDim = 32, kWidth = kHeads * kDim, kLongest = 700;
  const std::vector<float> k = NormalValues(kLongest * kDim, 1), v = NormalValues(kLongest * kDim, 2);
  const std::vector<int32_t> pages = ShuffledPages(PagesFor(kLongest), 3);
  struct Call {
    int length;
    int64_t captured;  // until then, on a card
  };
  const std::vector<Call> calls = {{300, 0}, {301, 1}, {302, 1}, {600, 1}, {303, 2}, {601, 3}, {304, 3}, {602, 3}};
  const auto run = [&](Device* device, bool on_card) {
    Memory memory(device);
    const size_t bytes = device->KvPoolBytes(KvType::kF16, PagesFor(kLongest), 1, kDim);
    const KvLayer cache = {
        memory.Zeroed<uint8_t>(bytes), memory.Zeroed<uint8_t>(bytes), KvType::kF16, PagesFor(kLongest), 1, kDim};
    StepSlices all;
    all.Add(0, kLongest, pages);
    SliceTable table = all.Table();
    table.slices = memory.Put(all.slices);
    table.page_tables = memory.Put(all.page_tables);
    memory.stream()->StoreKv({cache, memory.Put(k), memory.Put(v), kDim, table});
    float *q = memory.Zeroed<float>(kWidth), *out = memory.Zeroed<float>(kWidth);
    SequenceSlice* slice = memory.Zeroed<SequenceSlice>(1);
    std::vector<float> outs;
    for (const Call& call : calls) {
      const std::vector<float> now = NormalValues(kWidth, static_cast<uint32_t>(call.length));
      const SequenceSlice place = {0, 1, call.length - 1, 0};
      memory.stream()->CopyToDevice(q, now.data(), kWidth * sizeof(float));
      memory.stream()->CopyToDevice(slice, &place, sizeof(place));
      const int rounded = call.length < 512 ? 512 : 1024;
      memory.stream()->Replay({.n_rows = 1, .n_slices = 1, .max_positions = rounded}, [&] {
        memory.stream()->Attention(
            {cache, q, out, kWidth, kWidth, kHeads, 0.2f, 0, nullptr, {slice, 1, table.page_tables, 1, rounded}});
      });
      for (const float value : memory.Get(out, kWidth)) outs.push_back(value);
      EXPECT_EQ(memory.stream()->Replays().captured, on_card ? call.captured : 0) << call.length;
    }
    return outs;
  };
  const std::vector<float> want = run(kernel_test::OpenCpu(kernel_test::BestVariant()).get(), false);
  for (const bool compare : {true, false}) {
    ForEverySchedule(kManyMultiprocessors, [&](Device* device) {
      CompareGraphs(compare);
      ASSERT_TRUE(SameValues(run(device, true), want));
    });
  }
}

#ifndef LAYOVER_TEST_ON_CARD
std::string ErrorOf(Stream* stream) {
  return std::string(stream->Synchronize().message());
}

TEST(Graphs, AnArgumentThatTheKeyDoesNotNameIsCaught) {
  const auto device = gpu::GpuDevice::Open(0);
  Work work(device->get());
  for (uint32_t call = 1; call <= 3; ++call) work.Run(3, call);
  // The rows of the key, and others in fact.
  work.stream()->Replay({.n_rows = 3}, [&] { work.Enqueue(2); });
  EXPECT_EQ(ErrorOf(work.stream()),
            "the graph of 3 rows in 0 slices, up to 0 positions, 0 logits, slot 0 is not what is asked for now: "
            "entry 0, Gated, has other arguments");
}

TEST(Graphs, HostMemoryInOneIsCaught) {
  const auto device = gpu::GpuDevice::Open(0);
  Work work(device->get());
  const float one = 1.0f;
  for (int call = 1; call <= 2; ++call) {
    work.stream()->Replay({.slot = 1}, [&] { work.stream()->CopyToDevice(work.x(), &one, sizeof(one)); });
    EXPECT_EQ(ErrorOf(work.stream()), call == 1 ? "" : "a copy to the card in a graph");
  }
}
#endif

// A queue that refuses to capture, at the begin or at the end.
class Refusing : public gpu::Queue {
 public:
  explicit Refusing(bool at_once) : at_once_(at_once) {}
  void CopyToDevice(void*, const void*, size_t) override {}
  void CopyToHost(void*, const void*, size_t) override {}
  void CopyOnDevice(void*, const void*, size_t) override {}
  void Fill(void*, uint8_t, size_t) override {
    if (!capturing_) ++filled_;
  }
  std::unique_ptr<gpu::QueueEvent> Record() override { return nullptr; }
  void WaitFor(const gpu::QueueEvent&) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::Status BeginCapture() override {
    ++begun_;
    if (at_once_) return Internal("no graphs here");
    capturing_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<gpu::QueueGraph>> EndCapture() override {
    capturing_ = false;
    return Internal("no memory for a graph");
  }
  int filled() const { return filled_; }
  int begun() const { return begun_; }

 private:
  const bool at_once_;
  bool capturing_ = false;
  int filled_ = 0;
  int begun_ = 0;
};

TEST(Graphs, ACardThatRefusesThemRunsEveryStepOnce) {
  for (const bool at_once : {true, false}) {
    Refusing queue(at_once);
    gpu::GraphCache graphs(queue);
    for (int call = 1; call <= 4; ++call) {
      for (const int rows : {1, 2}) {
        EXPECT_TRUE(graphs.Replay({.n_rows = rows}, [&] { queue.Fill(nullptr, 0, 1); }).ok());
      }
      EXPECT_EQ(queue.filled(), 2 * call);
    }
    EXPECT_EQ(queue.begun(), 1) << "asked once";
    EXPECT_EQ(graphs.counts().launched, 0);
  }
}

}  // namespace
}  // namespace layover::gpu_test
