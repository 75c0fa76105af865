// Whole steps of a stage on the CUDA back end: decode as graphs gives the bits of the CPU back end for every
// kind of layer, while positions grow, batches change and page tables are others; and nothing on a step's way waits.
#include <gtest/gtest.h>

#include <map>

#include "common/gguf/reader.h"
#ifndef LAYOVER_TEST_ON_CARD
#include "kernels/emulation/host_copies.h"
#endif
#include "tests/cuda/gpu_fixture.h"
#include "tests/gguf/gguf_builder.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/stage/stage_fixture.h"

namespace layover::gpu_test {
namespace {

using layover::testing::BuildTinyModel;
using layover::testing::TestStage;

constexpr int kManyMultiprocessors = 10000;  // so that attention shares blocks

// One stage with all layers, and sessions of it whose pages and slots are numbered here, out of order.
class Conversations {
 public:
  Conversations(const GgufFile& file, const ModelShape& shape, KvType kv_type, std::unique_ptr<Device> device)
      : shape_(shape), stage_(file, shape, 0, {0, shape.n_layers}, kv_type, std::move(device)) {
    free_pages_ = kernel_test::ShuffledPages(layover::testing::kPages, 5);
  }

  TestStage& stage() { return stage_; }
  bool hybrid() const { return shape_.recurrent.conv_taps > 0; }

  void Open(uint64_t id) {
    LAYOVER_CHECK(stage_.sessions().Open(id).ok());
    Held& held = held_[id];
    held.slots[0] = free_slots_.back();
    free_slots_.pop_back();
    held.slots[1] = free_slots_.back();
    free_slots_.pop_back();
  }
  void Close(uint64_t id) {
    LAYOVER_CHECK(stage_.sessions().Close(id).ok());
    const Held& held = held_.at(id);
    free_pages_.insert(free_pages_.begin(), held.pages.begin(), held.pages.end());
    free_slots_.insert(free_slots_.end(), held.slots, held.slots + 2);
    held_.erase(id);
  }

  // The next `count` tokens of the conversation; only the last row's logits are wanted. `moved`: its newest page is
  // copied to another one first.
  wire::StepSlice Next(uint64_t id, int count, bool moved = false) {
    Held& held = held_.at(id);
    wire::StepSlice slice{.session = id, .begin = held.length, .wish = wire::RowWish::kDigest};
    for (int i = 0; i < count; ++i) {
      const int64_t p = held.length + i;
      slice.tokens.push_back(static_cast<int32_t>((37 * p * p + 11 * p + 101 * static_cast<int64_t>(id)) % 259));
    }
    if (moved) {
      const int32_t from = held.pages.back(), to = TakePage();
      slice.copies.push_back({from, to, static_cast<int32_t>(held.length - 64 * (held.length / 64))});
      held.pages.back() = to;
      free_pages_.insert(free_pages_.begin(), from);
    }
    held.length += count;
    while (64 * static_cast<int64_t>(held.pages.size()) < held.length) {
      slice.new_pages.push_back(TakePage());
      held.pages.push_back(slice.new_pages.back());
    }
    if (shape_.window > 0) {
      slice.new_window_pages = slice.new_pages;
      slice.window_copies = slice.copies;
    }
    if (hybrid()) {
      slice.state_from = slice.begin == 0 ? -1 : held.slots[held.slot];
      held.slot = held.length % 3 == 0 ? held.slot : 1 - held.slot;  // sometimes in place
      slice.state_to = held.slots[held.slot];
    }
    return slice;
  }

  std::vector<Digest> Step(const wire::Step& step) {
    std::vector<float> x;
    std::vector<Digest> digests;
    for (const wire::SliceResult& result : stage_.Step(step, &x, shape_.n_embd)) {
      for (const wire::RowReport& row : result.rows) digests.push_back(row.digest);
    }
    return digests;
  }

 private:
  struct Held {
    int64_t length = 0;
    std::vector<int32_t> pages;
    int32_t slots[2] = {};
    int slot = 0;
  };
  int32_t TakePage() {
    const int32_t page = free_pages_.back();
    free_pages_.pop_back();
    return page;
  }

  const ModelShape shape_;
  TestStage stage_;
  std::map<uint64_t, Held> held_;
  std::vector<int32_t> free_pages_;
  std::vector<int32_t> free_slots_ = {3, 0, 5, 1, 4, 2};
};

// Three conversations side by side. The first grows beyond the rounded length that its graphs were made for, or out of
// its first page; the second is given up for a fourth in its place, and is not always asked for logits.
std::vector<Digest> Talk(Conversations& talk) {
  std::vector<Digest> all;
  const auto step = [&](std::vector<wire::StepSlice> slices) {
    for (const Digest& digest : talk.Step({std::move(slices)})) all.push_back(digest);
  };
  // Recurrent layers take their time under emulation, and know no positions.
  const int first = talk.hybrid() ? 30 : 210, rounds = talk.hybrid() ? 7 : 11;
  for (const uint64_t id : {1, 2, 3}) talk.Open(id);
  step({talk.Next(1, first), talk.Next(2, 10)});
  step({talk.Next(2, 5), talk.Next(1, 28), talk.Next(3, 3)});
  uint64_t second = 2;
  for (int round = 0; round < rounds; ++round) {
    step({talk.Next(1, 1, round == 6)});
    std::vector<wire::StepSlice> both = {talk.Next(1, 1), talk.Next(second, 1)};
    if (round % 4 < 2) both[1].wish = wire::RowWish::kNone;
    step(both);
    step({talk.Next(3, 1), talk.Next(second, 1, round == 3), talk.Next(1, 1)});
    if (round == 4) {
      talk.Close(2);
      talk.Open(second = 4);
      step({talk.Next(4, 12)});
      step({talk.Next(3, 1)});
    }
  }
  return all;
}

class Decode : public ::testing::TestWithParam<std::string> {
 protected:
  Decode() {
    file_ = *GgufFile::FromBytes(BuildTinyModel({.architecture = GetParam()}), GetParam());
    shape_ = *ReadModelShape(*file_);
  }
#ifndef LAYOVER_TEST_ON_CARD
  ~Decode() override {
    emulation::SetSettings({});
  }
#endif
  std::vector<Digest> OnCpu(KvType kv_type, std::vector<Digest> (*talk)(Conversations&)) {
    Conversations conversations(*file_, shape_, kv_type, *OpenDevice("cpu", {.threads = 1}));
    return talk(conversations);
  }
  std::unique_ptr<Conversations> OnCard(KvType kv_type) {
    return std::make_unique<Conversations>(*file_, shape_, kv_type, *gpu::GpuDevice::Open(0));
  }

  std::unique_ptr<GgufFile> file_;
  ModelShape shape_;
};

TEST_P(Decode, GraphsGiveTheBitsOfTheCpu) {
  const KvType kv_type = GetParam() == "qwen3" ? KvType::kQ8_0 : KvType::kF16;
  const std::vector<Digest> want = OnCpu(kv_type, Talk);
#ifndef LAYOVER_TEST_ON_CARD
  emulation::Settings settings;
  settings.schedule = emulation::Schedule::kRandom;
  settings.multiprocessors = kManyMultiprocessors;
  settings.compare_graphs = false;  // as a card has it
  emulation::SetSettings(settings);
#endif
  const std::unique_ptr<Conversations> card = OnCard(kv_type);
  EXPECT_EQ(Talk(*card), want);
  // Three batches with two slots each.
  const ReplayCounts counts = card->stage().stream().Replays();
  EXPECT_GE(counts.captured, 6);
  EXPECT_GE(counts.launched, 12);
}

// Plain attention; windows, sinks and experts; recurrent layers and experts.
INSTANTIATE_TEST_SUITE_P(Models, Decode, ::testing::Values("qwen3", "gpt-oss", "qwen3next"), [](const auto& test) {
  std::string name = test.param;
  std::erase(name, '-');
  return name;
});

class Steps : public Decode {};
INSTANTIATE_TEST_SUITE_P(OfOneModel, Steps, ::testing::Values("qwen3"));

#ifndef LAYOVER_TEST_ON_CARD
TEST_P(Steps, ADecodeStepIsOneLaunchAndWaitsForNothing) {
  const std::unique_ptr<Conversations> card = OnCard(KvType::kF16);
  card->Open(1);
  card->Step({{card->Next(1, 70)}});
  for (int i = 0; i < 4; ++i) card->Step({{card->Next(1, 1)}});
  Stream& stream = card->stage().stream();
  const std::unique_ptr<DeviceBuffer> buffer = *gpu::GpuDevice::Open(0).value()->Allocate(16);
  const wire::Step step{{card->Next(1, 1)}};
  ASSERT_TRUE(card->stage().sessions().Extend(step.slices[0]).ok());
  emulation::TakeLaunches();
  emulation::WatchHostCopies();
  stream.Zero(buffer->data(), 16);
  const std::unique_ptr<Event> before = stream.Record();
  ASSERT_TRUE(card->stage().runner().Prepare(step, card->stage().sessions()).ok());
  card->stage().runner().Run();
  EXPECT_FALSE(before->Done());  // this question runs one entry, which is not yet the event's
  const std::vector<emulation::HostCopy> copies = emulation::TakeHostCopies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_TRUE(copies[0].pinned);
  EXPECT_LT(copies[0].bytes, 64u) << "what is used, not what there is room for";
  const emulation::Launches launches = emulation::TakeLaunches();
  EXPECT_EQ(launches.graphs, 1);
  EXPECT_EQ(launches.kernels, 0);
  EXPECT_EQ(card->stage().runner().Results(step, card->stage().sessions())->size(), 1u);
  EXPECT_NE(card->stage().runner().Summary().find("3 of 6 steps ran as graphs (2 made)"), std::string::npos)
      << card->stage().runner().Summary();
}

// Five steps that nobody waits for: a slot's host memory is written again only when it has been read.
std::vector<Digest> Hurry(Conversations& talk) {
  talk.Open(1);
  std::vector<Digest> digests = talk.Step({{talk.Next(1, 70)}});
  TestStage& stage = talk.stage();
  for (int i = 0; i < 5; ++i) {
    const wire::Step step{{talk.Next(1, 1)}};
    LAYOVER_CHECK(stage.sessions().Extend(step.slices[0]).ok());
    LAYOVER_CHECK(stage.runner().Prepare(step, stage.sessions()).ok());
    stage.runner().Run();
    if (i == 4) digests.push_back(stage.runner().Results(step, stage.sessions())->at(0).rows.at(0).digest);
  }
  return digests;
}

TEST_P(Steps, ThatAreNotWaitedForKeepTheirInputs) {
  const std::unique_ptr<Conversations> card = OnCard(KvType::kF16);
  EXPECT_EQ(Hurry(*card), OnCpu(KvType::kF16, Hurry));
}

// A row that is drawn from its best logits stays on the card, beside one that something else depends on.
TEST_P(Steps, OnlyWhatATokenDependsOnLeavesTheCard) {
  const std::unique_ptr<Conversations> card = OnCard(KvType::kF16);
  const auto sampled = [&](uint64_t id, int count, float repeat_penalty) {
    wire::StepSlice slice = card->Next(id, count);
    slice.wish = wire::RowWish::kSample;
    slice.top_logprobs = -1;
    slice.sampler = {.temperature = 1, .top_k = 20, .repeat_penalty = repeat_penalty, .seed = 7};
    return slice;
  };
  const auto to_host = [&](const wire::Step& step) {
    std::vector<float> x;
    emulation::WatchHostCopies();
    EXPECT_EQ(card->stage().Step(step, &x, shape_.n_embd).size(), step.slices.size());
    size_t bytes = 0;
    for (const emulation::HostCopy& copy : emulation::TakeHostCopies()) {
      if (copy.to_host) bytes += copy.bytes;
      EXPECT_TRUE(copy.pinned);
    }
    return bytes;
  };
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(shape_.n_vocab), best_bytes = 20 * 8;
  for (const uint64_t id : {1, 2}) card->Open(id);
  EXPECT_EQ(to_host({{sampled(1, 5, 1), sampled(2, 3, 1)}}), 2 * best_bytes);
  EXPECT_EQ(to_host({{sampled(1, 1, 1.1f), sampled(2, 1, 1)}}), row_bytes + 2 * best_bytes);
  EXPECT_EQ(to_host({{sampled(2, 1, 1.1f)}}), row_bytes);
}
#endif

}  // namespace
}  // namespace layover::gpu_test
