// Attention of the CUDA back end: prefill, decode, both mixed, whole tiles and shared blocks; the bits of the CPU back
// end and the double reference.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/kernels/reference.h"

namespace layover::gpu_test {
namespace {

using kernel_test::NormalValues;
using kernel_test::PagesFor;
using kernel_test::ShuffledPages;
using kernel_test::StepSlices;
using kernel_test::WithinBounds;

struct Shape {
  KvType type = KvType::kF16;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  int window = 0;
  bool sinks = false;
  std::string Name() const {
    return fmt::format("{}_{}x{}x{}{}{}", KvTypeName(type), heads, kv_heads, head_dim,
                       window > 0 ? fmt::format("_window{}", window) : "", sinks ? "_sinks" : "");
  }
};

// Sequences that have all their K/V and ask for attention of the last `asked` tokens of each.
struct Ask {
  int length;
  int asked;
};

struct Inputs {
  Shape shape;
  std::vector<Ask> asks;
  StepSlices store, attend;
  std::vector<float> q, k, v, sinks;
  int n_pages = 0;
};

Inputs MakeInputs(const Shape& shape, const std::vector<Ask>& asks, uint32_t seed) {
  Inputs in{shape, asks, {}, {}, {}, {}, {}, NormalValues(shape.heads, seed), 0};
  for (const Ask& ask : asks) in.n_pages += PagesFor(ask.length);
  const std::vector<int32_t> pages = ShuffledPages(in.n_pages, seed + 1);
  int used = 0;
  for (const Ask& ask : asks) {
    const std::vector<int32_t> own(pages.begin() + used, pages.begin() + used + PagesFor(ask.length));
    used += PagesFor(ask.length);
    in.store.Add(0, ask.length, own);
    in.attend.Add(ask.length - ask.asked, ask.asked, own);
  }
  in.q = NormalValues(static_cast<size_t>(in.attend.rows()) * (shape.heads * shape.head_dim + 4), seed + 2);
  in.k = NormalValues(static_cast<size_t>(in.store.rows()) * shape.kv_heads * shape.head_dim, seed + 3);
  in.v = NormalValues(static_cast<size_t>(in.store.rows()) * shape.kv_heads * shape.head_dim, seed + 4);
  return in;
}

struct OnDevice {
  OnDevice(Memory* memory, const Inputs& in) {
    const Shape& shape = in.shape;
    const size_t bytes = memory->device()->KvPoolBytes(shape.type, in.n_pages, shape.kv_heads, shape.head_dim);
    // Garbage in rows that nobody wrote.
    cache = {memory->Put(std::vector<uint8_t>(bytes, 0xff)),
             memory->Put(std::vector<uint8_t>(bytes, 0xff)),
             shape.type,
             in.n_pages,
             shape.kv_heads,
             shape.head_dim};
    memory->stream()->StoreKv(
        {cache, memory->Put(in.k), memory->Put(in.v), shape.kv_heads * shape.head_dim, Table(memory, in.store)});
    memory->Finish();
    const int width = shape.heads * shape.head_dim;
    args.cache = cache;
    args.q = memory->Put(in.q);
    args.q_stride = width + 4;
    args.out_stride = width + 2;
    out_floats = static_cast<size_t>(in.attend.rows()) * (width + 2);
    out = memory->Zeroed<float>(out_floats);
    args.out = out;
    args.heads = shape.heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args.window = shape.window;
    args.sinks = shape.sinks ? memory->Put(in.sinks) : nullptr;
    args.slices = Table(memory, in.attend);
  }
  static SliceTable Table(Memory* memory, const StepSlices& step) {
    SliceTable table = step.Table();
    table.slices = memory->Put(step.slices);
    table.page_tables = memory->Put(step.page_tables);
    return table;
  }

  KvLayer cache;
  AttentionArgs args;
  float* out = nullptr;
  size_t out_floats = 0;
};

std::vector<float> Attend(Device* device, const Inputs& in) {
  Memory memory(device);
  OnDevice on(&memory, in);
  memory.stream()->Attention(on.args);
  return memory.Get(on.out, on.out_floats);
}

class GpuAttention : public testing::TestWithParam<Shape> {
 protected:
  // Two of the four schedules, so that a shape does not take long; the tests below run all.
  static Schedules Some() {
    return (GetParam().heads + GetParam().head_dim / 8) % 2 == 0 ? Schedules::kOuter : Schedules::kInner;
  }
};

constexpr int kManyMultiprocessors = 10000;  // so that blocks are always shared
constexpr int kOneMultiprocessor = 0;        // so that they never are

TEST_P(GpuAttention, PrefillIsTheCpus) {
  const Inputs in = MakeInputs(GetParam(), {{66, 66}, {1, 1}, {131, 6}}, 1);
  SameOnBoth<float>([&](Device* device) { return Attend(device, in); }, kOneMultiprocessor, Some());
}

TEST_P(GpuAttention, DecodeIsTheCpus) {
  const Inputs in = MakeInputs(GetParam(), {{1, 1}, {64, 1}, {65, 1}, {200, 1}}, 2);
  SameOnBoth<float>([&](Device* device) { return Attend(device, in); }, kOneMultiprocessor, Some());
  SameOnBoth<float>([&](Device* device) { return Attend(device, in); }, kManyMultiprocessors, Some());
}

TEST_P(GpuAttention, MixedStepsWithSharedBlocksAreTheCpus) {
  const Inputs in = MakeInputs(GetParam(), {{195, 7}, {129, 1}, {140, 2}}, 3);
  SameOnBoth<float>([&](Device* device) { return Attend(device, in); }, kManyMultiprocessors, Some());
}

// Graphs are made for rounded lengths: the grid covers pages that no sequence has, and tables do not name.
TEST_P(GpuAttention, PositionsBeyondTheLongestChangeNothing) {
  const Inputs in = MakeInputs(GetParam(), {{130, 1}, {1, 1}, {64, 1}}, 8);
  for (const int max_positions : {256, 768}) {
    const auto attend = [&](Device* device) {
      Memory memory(device);
      OnDevice on(&memory, in);
      on.args.slices.max_positions = max_positions;
      memory.stream()->Attention(on.args);
      return memory.Get(on.out, on.out_floats);
    };
    EXPECT_EQ(SameOnBoth<float>(attend, kManyMultiprocessors, Schedules::kInner).size(),
              3u * static_cast<size_t>(GetParam().heads * GetParam().head_dim + 2));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuAttention,
    testing::Values(Shape{KvType::kF16, 9, 3, 64}, Shape{KvType::kF32, 4, 2, 64}, Shape{KvType::kQ8_0, 6, 2, 64},
                    Shape{KvType::kQ4_0, 2, 1, 64}, Shape{KvType::kF16, 2, 2, 80}, Shape{KvType::kF16, 4, 1, 96},
                    Shape{KvType::kF16, 8, 1, 128}, Shape{KvType::kQ8_0, 3, 1, 256}, Shape{KvType::kF32, 1, 1, 8},
                    Shape{KvType::kF16, 2, 1, 24}, Shape{KvType::kF16, 2, 1, 512}, Shape{KvType::kF16, 4, 2, 64, 100},
                    Shape{KvType::kF16, 1, 1, 32, 1}, Shape{KvType::kF32, 6, 1, 16, 64},
                    Shape{KvType::kF16, 8, 1, 64, 128, true}, Shape{KvType::kQ8_0, 7, 1, 32, 70, true},
                    Shape{KvType::kF16, 40, 1, 8, 0, true}),
    [](const auto& test) { return test.param.Name(); });

// f32 pages hold K and V exactly, so the reference needs no decoding.
TEST(GpuAttentionReference, PrefillAndDecode) {
  for (const Shape shape : {Shape{KvType::kF32, 4, 2, 40}, Shape{KvType::kF32, 3, 1, 64, 100, true}}) {
    for (const int multiprocessors : {kOneMultiprocessor, kManyMultiprocessors}) {
      const Inputs in = MakeInputs(shape, {{200, 1}, {70, 70}}, 4);
      ForEverySchedule(multiprocessors, [&](Device* device) {
        const std::vector<float> out = Attend(device, in);
        const int width = shape.heads * shape.head_dim;
        int first_row = 0;
        for (size_t s = 0; s < in.asks.size(); first_row += in.asks[s].length, ++s) {
          for (int head = 0; head < shape.heads; ++head) {
            reference::Rows keys, values;
            for (int p = 0; p < in.asks[s].length; ++p) {
              const size_t at =
                  (static_cast<size_t>(first_row + p) * shape.kv_heads + head / (shape.heads / shape.kv_heads)) *
                  shape.head_dim;
              keys.emplace_back(&in.k[at], &in.k[at] + shape.head_dim);
              values.emplace_back(&in.v[at], &in.v[at] + shape.head_dim);
            }
            const SequenceSlice& slice = in.attend.slices[s];
            for (int r = 0; r < slice.row_count; ++r) {
              const size_t row = static_cast<size_t>(slice.row_begin + r);
              reference::AttentionRow query;
              query.q = &in.q[row * (width + 4) + head * shape.head_dim];
              query.keys = &keys;
              query.values = &values;
              query.position = slice.position_begin + r;
              query.window = shape.window;
              query.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
              query.sink = shape.sinks ? &in.sinks[head] : nullptr;
              ASSERT_TRUE(WithinBounds(&out[row * (width + 2) + head * shape.head_dim], reference::Attention(query)));
            }
          }
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

// Scratch for few blocks at a time: the merge goes on where the wave before ended.
TEST(GpuAttentionWaves, SmallScratchChangesNothing) {
  const Shape shape{KvType::kF16, 4, 2, 64, 0, true};
  const Inputs in = MakeInputs(shape, {{400, 1}, {263, 2}}, 5);
  const std::unique_ptr<Device> cpu = kernel_test::OpenCpu(kernel_test::BestVariant());
  const std::vector<float> want = Attend(cpu.get(), in);
  ForEverySchedule(4, [&](Device* device) {
    const size_t of_state = static_cast<size_t>(in.attend.rows()) * shape.heads * (shape.head_dim + 2);
    for (const size_t states : {2, 3, 4, 7, 100}) {
      Memory memory(device);
      OnDevice on(&memory, in);
      const std::unique_ptr<gpu::Queue> queue = gpu::NewQueue(0);
      float* scratch = memory.Zeroed<float>(states * of_state);
      for (const int max_positions : {in.attend.Table().max_positions, 1024}) {
        on.args.slices.max_positions = max_positions;
        gpu::LaunchAttention(on.args, {scratch, states * of_state, kManyMultiprocessors}, queue.get());
        ASSERT_TRUE(queue->Synchronize().ok());
        ASSERT_TRUE(SameValues(memory.Get(on.out, on.out_floats), want)) << states << " " << max_positions;
      }
    }
  });
}

// A NaN in a row that is seen shows, in one that is not it does not.
TEST(GpuAttention, NanIsNotHidden) {
  const Shape shape{KvType::kF16, 2, 1, 64};
  Inputs in = MakeInputs(shape, {{80, 20}}, 6);
  in.v[70 * 64 + 3] = NAN;
  const std::vector<float> out = SameOnBoth<float>([&](Device* device) { return Attend(device, in); });
  EXPECT_TRUE(std::isfinite(out[9 * 130 + 3]));
  EXPECT_TRUE(std::isnan(out[10 * 130 + 3]));
}

}  // namespace
}  // namespace layover::gpu_test
