// Cases of pages, attention and the state of hybrid models.
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "tests/cuda/kernel_draw.h"

namespace layover::gpu_test {
namespace {

using kernel_test::PagesFor;
using kernel_test::ShuffledPages;
using kernel_test::StepSlices;

// ------------------------------------------------------------------------------------------------- pages and attention

struct Cache {
  Cache(Memory* memory, KvType type, int n_pages, int kv_heads, int head_dim) {
    const size_t bytes = memory->device()->KvPoolBytes(type, n_pages, kv_heads, head_dim);
    const std::vector<uint8_t> garbage(bytes, 0xff);  // in rows that nobody wrote
    layer = {memory->Put(garbage), memory->Put(garbage), type, n_pages, kv_heads, head_dim};
  }
  std::vector<uint8_t> Rows(Memory* memory, int page, int begin, int end) const {
    std::vector<uint8_t> rows(2 * KvRowBytes(layer.type, layer.kv_heads, layer.head_dim) * (end - begin));
    memory->stream()->ReadKvRows(layer, page, begin, end, rows.data(), rows.data() + rows.size() / 2);
    memory->Finish();
    return rows;
  }
  KvLayer layer;
};

KvType KvTypeOf(Draw* draw) {
  return draw->OneOf({KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0});
}

std::vector<float> StoreKvRows(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const KvType type = KvTypeOf(&draw);
  const int kv_heads = draw.Between(1, 3), head_dim = 32 * draw.Between(1, 4);
  const int begin = draw.Between(0, 60), count = draw.Between(1, 20), stride = kv_heads * head_dim + 3;
  StepSlices step;
  step.Add(begin, count, {1, 0});
  step.Add(0, 1, {2});
  Memory memory(device);
  const Cache cache(&memory, type, 3, kv_heads, head_dim);
  const size_t n = static_cast<size_t>(step.rows()) * stride;
  memory.stream()->StoreKv(
      {cache.layer, memory.Put(draw.Values(n)), memory.Put(draw.Values(n, 9.0f)), stride, Upload(&memory, step)});
  memory.Finish();
  std::vector<float> all;
  for (const int page : {0, 1, 2}) {
    const std::vector<float> rows = AsFloats(cache.Rows(&memory, page, 0, kPageTokens));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

std::vector<float> PagesMoved(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const KvType type = KvTypeOf(&draw);
  const int begin = draw.Between(0, 62), end = draw.Between(begin + 1, 64), kept = draw.Between(0, 64);
  Memory memory(device);
  const Cache cache(&memory, type, 2, draw.Between(1, 3), 32 * draw.Between(1, 3));
  std::vector<uint8_t> rows = cache.Rows(&memory, 0, begin, end);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint8_t>(i * 31 + seed);
  memory.stream()->WriteKvRows(cache.layer, 0, begin, end, rows.data(), rows.data() + rows.size() / 2);
  memory.Finish();
  memory.stream()->CopyKvPage(cache.layer, 0, 1, kept);
  memory.Finish();
  std::vector<float> all = AsFloats(cache.Rows(&memory, 0, 0, 64));
  const std::vector<float> copy = AsFloats(cache.Rows(&memory, 1, 0, 64));
  all.insert(all.end(), copy.begin(), copy.end());
  return all;
}

// `waves`: blocks shared, with scratch for few of them at a time.
std::vector<float> Attend(Device* device, Draw* draw, bool decode, bool waves) {
  const KvType type = KvTypeOf(draw);
  const int kv_heads = draw->Between(1, 2), heads = kv_heads * draw->Between(1, 5), head_dim = 32 * draw->Between(1, 5);
  StepSlices store, attend;
  int n_pages = 0;
  const std::vector<int32_t> pages = ShuffledPages(24, draw->Seed());
  for (int s = draw->Between(1, 2); s >= 0; --s) {
    const int length = waves ? draw->Between(260, 400) : draw->Between(1, 190);
    const int asked = decode ? 1 : draw->Between(1, length < 40 ? length : 40);
    const std::vector<int32_t> own(pages.begin() + n_pages, pages.begin() + n_pages + PagesFor(length));
    n_pages += PagesFor(length);
    store.Add(0, length, own);
    attend.Add(length - asked, asked, own);
  }
  Memory memory(device);
  const Cache cache(&memory, type, 24, kv_heads, head_dim);
  const size_t kv_floats = static_cast<size_t>(store.rows()) * kv_heads * head_dim;
  memory.stream()->StoreKv({cache.layer, memory.Put(draw->Values(kv_floats)), memory.Put(draw->Values(kv_floats)),
                            kv_heads * head_dim, Upload(&memory, store)});
  memory.Finish();
  AttentionArgs args;
  args.cache = cache.layer;
  args.heads = heads;
  args.q_stride = args.out_stride = heads * head_dim;
  const size_t n = static_cast<size_t>(attend.rows()) * args.q_stride;
  args.q = memory.Put(draw->Values(n));
  args.out = memory.Zeroed<float>(n);
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  args.window = draw->OneOf({0, 0, 1, 70});
  args.sinks = draw->Coin() ? memory.Put(draw->Values(heads)) : nullptr;
  args.slices = Upload(&memory, attend);
  if (!waves || device->Name() == "cpu") {
    memory.stream()->Attention(args);
  } else {
    const size_t floats = static_cast<size_t>(draw->Between(2, 4)) * attend.rows() * heads * (head_dim + 2);
    const std::unique_ptr<gpu::Queue> queue = gpu::NewQueue(0);
    gpu::LaunchAttention(args, {memory.Zeroed<float>(floats), floats, 10000}, queue.get());
    const absl::Status status = queue->Synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return memory.Get(args.out, n);
}

std::vector<float> AttentionPrefill(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  return Attend(device, &draw, false, false);
}
std::vector<float> AttentionDecode(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  return Attend(device, &draw, true, false);
}
std::vector<float> AttentionInWaves(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  return Attend(device, &draw, true, true);
}

// -------------------------------------------------------------------------------------------------------- hybrid
// models

// One new sequence, one that keeps its slot, one that moves to another.
struct Recurrent {
  Recurrent(Memory* memory, Draw* draw) {
    step.Add(0, draw->Between(1, 6), {0});
    step.Add(9, 1, {0});
    step.Add(3, draw->Between(1, 5), {0});
    table = Upload(memory, step);
    slots = {memory->Put(std::vector<int32_t>{-1, 2, 0}), memory->Put(std::vector<int32_t>{3, 2, 1})};
  }
  StepSlices step;
  SliceTable table;
  StateSlots slots;
};

std::vector<float> OutAndState(Memory* memory, const float* out, size_t n, const float* state, size_t n_state) {
  std::vector<float> all = memory->Get(out, n);
  const std::vector<float> after = memory->Get(state, n_state);
  all.insert(all.end(), after.begin(), after.end());
  return all;
}

std::vector<float> Convolution(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  Memory memory(device);
  const Recurrent at(&memory, &draw);
  const int channels = draw.Between(1, 300), taps = draw.Between(2, 6);
  const size_t n = static_cast<size_t>(at.step.rows()) * channels,
               n_state = static_cast<size_t>(4 * (taps - 1)) * channels;
  CausalConvArgs args;
  args.u = memory.Put(draw.Values(n));
  args.weight = memory.Put(draw.Values(static_cast<size_t>(channels) * taps));
  args.state = memory.Put(draw.Values(n_state));
  args.out = memory.Zeroed<float>(n);
  args.channels = channels;
  args.taps = taps;
  args.slots = at.slots;
  args.slices = at.table;
  memory.stream()->CausalConv(args);
  return OutAndState(&memory, args.out, n, args.state, n_state);
}

std::vector<float> DeltaNet(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  Memory memory(device);
  const Recurrent at(&memory, &draw);
  GatedDeltaNetArgs args;
  args.key_heads = draw.Between(1, 2);
  args.value_heads = args.key_heads * draw.Between(1, 2);
  args.dim = 8 * draw.Between(1, 17);
  const size_t heads = static_cast<size_t>(at.step.rows()) * args.value_heads, n = heads * args.dim;
  const size_t n_state = static_cast<size_t>(4 * args.value_heads) * args.dim * args.dim;
  args.qkv =
      memory.Put(draw.Values(static_cast<size_t>(at.step.rows()) * (2 * args.key_heads + args.value_heads) * args.dim));
  args.alpha = memory.Put(draw.Values(heads));
  args.beta = memory.Put(draw.Values(heads));
  std::vector<float> a = draw.Values(args.value_heads);
  for (float& value : a) value = -std::abs(value);
  args.a = memory.Put(a);
  args.dt_bias = memory.Put(draw.Values(args.value_heads));
  args.state = memory.Put(draw.Values(n_state));
  args.out = memory.Zeroed<float>(n);
  args.key_head_is_modulo = draw.Coin();
  args.eps = 1e-6f;
  args.slots = at.slots;
  args.slices = at.table;
  memory.stream()->GatedDeltaNet(args);
  return OutAndState(&memory, args.out, n, args.state, n_state);
}

}  // namespace

std::vector<KernelCase> StateCases() {
  return {
      {"StoreKv", StoreKvRows},
      {"KvRows", PagesMoved},
      {"AttentionPrefill", AttentionPrefill},
      {"AttentionDecode", AttentionDecode},
      {"AttentionInWaves", AttentionInWaves},
      {"CausalConv", Convolution},
      {"GatedDeltaNet", DeltaNet},
  };
}

}  // namespace layover::gpu_test
