#include "tests/cuda/kernel_cases.h"

#include <cmath>
#include <random>

#include "kernels/cuda/kernels.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/kernels/reference_matmul.h"

namespace layover::gpu_test {
namespace {

using kernel_test::NormalValues;
using kernel_test::PagesFor;
using kernel_test::ShuffledPages;
using kernel_test::StepSlices;

// What a case draws.
class Draw {
 public:
  explicit Draw(uint32_t seed) : seed_(seed), random_(seed) {}
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Coin() { return Between(0, 1) == 1; }
  template <typename T>
  T OneOf(std::initializer_list<T> choices) {
    return choices.begin()[Between(0, static_cast<int>(choices.size()) - 1)];
  }
  std::vector<float> Values(size_t n, float deviation = 1.0f) { return NormalValues(n, ++seed_ * 977, deviation); }
  std::vector<int32_t> Ids(int n, int below) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = Between(0, below - 1);
    return ids;
  }
  uint32_t Seed() { return ++seed_ * 613; }

 private:
  uint32_t seed_;
  std::mt19937 random_;
};

template <typename T>
std::vector<float> AsFloats(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

SliceTable Upload(Memory* memory, const StepSlices& step) {
  SliceTable table = step.Table();
  table.slices = memory->Put(step.slices);
  table.page_tables = memory->Put(step.page_tables);
  return table;
}

// -------------------------------------------------------------------------------------------------- rows and products

std::vector<float> RmsNorm(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  // One piece of a row in shared memory, or several.
  const int rows = draw.Between(1, 3), dim = seed % 2 == 0 ? draw.Between(1, 700) : draw.Between(4097, 9500);
  const int stride = dim + draw.Between(0, 5);
  Memory memory(device);
  const size_t n = static_cast<size_t>(rows) * stride;
  float* y = memory.Zeroed<float>(n);
  memory.stream()->RmsNorm(
      {memory.Put(draw.Values(n, 3.0f)), memory.Put(draw.Values(dim)), y, rows, dim, stride, stride, 1e-5f});
  return memory.Get(y, n);
}

std::vector<float> RopeOfAngles(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const int rows = draw.Between(1, 5), n_pairs = draw.Between(1, 70), heads = draw.Between(1, 4);
  const int head_dim = 2 * n_pairs + draw.Between(0, 9), stride = heads * head_dim + draw.Between(0, 3);
  std::vector<double> frequencies;
  for (int p = 0; p < n_pairs; ++p) frequencies.push_back(std::pow(10000.0, -static_cast<double>(p) / n_pairs));
  Memory memory(device);
  float* angles = memory.Zeroed<float>(static_cast<size_t>(rows) * n_pairs * 2);
  memory.stream()->RopeAngles(
      {memory.Put(draw.Ids(rows, 100000)), memory.Put(frequencies), angles, rows, n_pairs, 1.1f});
  const size_t n = static_cast<size_t>(rows) * stride;
  float* x = memory.Put(draw.Values(n));
  memory.stream()->Rope(
      {x, angles, rows, heads, head_dim, stride, n_pairs, draw.Coin() ? RopePairing::kNorm : RopePairing::kNeox});
  return memory.Get(x, n);
}

std::vector<float> Gated(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const int rows = draw.Between(1, 4), dim = draw.Between(1, 600), stride = dim + draw.Between(0, 3);
  const GateKind kind =
      draw.OneOf({GateKind::kSilu, GateKind::kGeluTanh, GateKind::kSigmoid, GateKind::kClampedSwiglu});
  const size_t n = static_cast<size_t>(rows) * stride;
  Memory memory(device);
  float* gate = memory.Put(draw.Values(n, 3.0f));
  memory.stream()->Gated({gate, memory.Put(draw.Values(n)), gate, rows, dim, stride, stride, stride, kind});
  return memory.Get(gate, n);
}

std::vector<float> GatherRows(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const int from = draw.Between(1, 9), rows = draw.Between(1, 6), dim = draw.Between(1, 500);
  Memory memory(device);
  float* out = memory.Zeroed<float>(static_cast<size_t>(rows) * dim);
  memory.stream()->GatherRows(
      {memory.Put(draw.Values(static_cast<size_t>(from) * dim)), memory.Put(draw.Ids(rows, from)), out, rows, dim});
  return memory.Get(out, static_cast<size_t>(rows) * dim);
}

int ColsOf(WeightType type, int wanted) {
  const int block = BlockElements(type);
  return (wanted + block - 1) / block * block;
}

std::vector<float> EmbedRows(Device* device, uint32_t seed, WeightType type) {
  Draw draw(seed);
  const int vocabulary = draw.Between(1, 30), rows = draw.Between(1, 5), cols = ColsOf(type, draw.Between(1, 300));
  const RawWeight table = RandomWeight(type, vocabulary, cols, draw.Seed());
  Memory memory(device);
  auto packed = device->PackWeight(table.Source());
  EXPECT_TRUE(packed.ok());
  float* out = memory.Zeroed<float>(static_cast<size_t>(rows) * cols);
  memory.stream()->EmbedRows({packed->get(), memory.Put(draw.Ids(rows, vocabulary)), out, rows, 1.5f});
  return memory.Get(out, static_cast<size_t>(rows) * cols);
}

void* Prepare(Memory* memory, ActivationFormat format, const std::vector<float>& x, int rows, int cols) {
  void* out = memory->Zeroed<uint8_t>(memory->device()->ActivationBytes(format, rows, cols));
  memory->stream()->PrepareActivation({memory->Put(x), rows, cols, cols, format, out});
  return out;
}

std::vector<float> Multiply(Device* device, Draw* draw, WeightType type, int rows, int n_out, int cols) {
  const RawWeight raw = RandomWeight(type, n_out, cols, draw->Seed());
  Memory memory(device);
  auto weight = device->PackWeight(raw.Source());
  EXPECT_TRUE(weight.ok());
  const std::vector<float> x = draw->Values(static_cast<size_t>(rows) * cols);
  const int stride = n_out + draw->Between(0, 3);
  float* out = memory.Put(draw->Values(static_cast<size_t>(rows) * stride));
  memory.stream()->MatMul({weight->get(), Prepare(&memory, (*weight)->activation, x, rows, cols), rows, out, stride,
                           memory.Put(draw->Values(n_out)), out});
  return memory.Get(out, static_cast<size_t>(rows) * stride);
}

std::vector<float> FewRows(Device* device, uint32_t seed, WeightType type) {
  Draw draw(seed);
  const int rows = draw.Between(1, 8), n_out = draw.Between(1, 40);
  return Multiply(device, &draw, type, rows, n_out, ColsOf(type, draw.Between(1, 1200)));
}

std::vector<float> ManyRows(Device* device, uint32_t seed, WeightType type) {
  Draw draw(seed);
  const int rows = draw.Between(9, 70), n_out = draw.Between(1, 140);
  return Multiply(device, &draw, type, rows, n_out, ColsOf(type, draw.Between(130, 420)));
}

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

// --------------------------------------------------------------------------------------------------- hybrid and
// experts

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

std::vector<float> Route(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const int rows = draw.Between(1, 6), experts = draw.Between(2, 200), k = draw.Between(1, experts < 12 ? experts : 12);
  Memory memory(device);
  const size_t n = static_cast<size_t>(rows) * k;
  int32_t* chosen = memory.Zeroed<int32_t>(n);
  float* weights = memory.Zeroed<float>(n);
  memory.stream()->MoeRoute({memory.Put(draw.Values(static_cast<size_t>(rows) * experts, 2.0f)), chosen, weights, rows,
                             experts, k, draw.Coin(), 1.5f});
  std::vector<float> all = memory.Get(weights, n);
  for (const int32_t id : memory.Get(chosen, n)) all.push_back(static_cast<float>(id));
  return all;
}

std::vector<float> Combine(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const int rows = draw.Between(1, 5), k = draw.Between(1, 8), dim = draw.Between(1, 600);
  const size_t n = static_cast<size_t>(rows) * dim;
  Memory memory(device);
  float* out = memory.Put(draw.Values(n));
  memory.stream()->MoeCombine(
      {memory.Put(draw.Values(n * k)), memory.Put(draw.Values(static_cast<size_t>(rows) * k)), out, out, rows, k, dim});
  return memory.Get(out, n);
}

std::vector<float> ExpertProducts(Device* device, uint32_t seed, WeightType type) {
  Draw draw(seed);
  const int experts = draw.Between(1, 5), n_out = draw.Between(1, 40), cols = ColsOf(type, draw.Between(1, 300));
  const int rows = draw.Between(1, 7), k = draw.Between(1, 3);
  const bool per_choice = draw.Coin();
  const int x_rows = per_choice ? rows * k : rows;
  const RawWeight slab = RandomWeight(type, n_out, cols, draw.Seed(), experts);
  Memory memory(device);
  auto weight = device->PackWeight(slab.Source());
  EXPECT_TRUE(weight.ok());
  const size_t n = static_cast<size_t>(rows) * k * n_out;
  float* out = memory.Zeroed<float>(n);
  const std::vector<float> x = draw.Values(static_cast<size_t>(x_rows) * cols);
  memory.stream()->MoeMatMul({weight->get(), Prepare(&memory, (*weight)->activation, x, x_rows, cols),
                              memory.Put(draw.Ids(rows * k, experts)), out, rows, k, per_choice,
                              memory.Put(draw.Values(static_cast<size_t>(experts) * n_out))});
  return memory.Get(out, n);
}

std::vector<KernelCase> AllCases() {
  std::vector<KernelCase> cases = {
      {"RmsNorm", RmsNorm},
      {"Rope", RopeOfAngles},
      {"Gated", Gated},
      {"GatherRows", GatherRows},
      {"StoreKv", StoreKvRows},
      {"KvRows", PagesMoved},
      {"AttentionPrefill", AttentionPrefill},
      {"AttentionDecode", AttentionDecode},
      {"AttentionInWaves", AttentionInWaves},
      {"CausalConv", Convolution},
      {"GatedDeltaNet", DeltaNet},
      {"MoeRoute", Route},
      {"MoeCombine", Combine},
  };
  for (const WeightType type : kMatMulTypes) {
    const std::string suffix = "_" + std::string(WeightTypeName(type));
    cases.push_back({"EmbedRows" + suffix, EmbedRows, type});
    cases.push_back({"FewRows" + suffix, FewRows, type});
    cases.push_back({"ManyRows" + suffix, ManyRows, type});
    cases.push_back({"ExpertProducts" + suffix, ExpertProducts, type});
  }
  return cases;
}

}  // namespace

std::vector<KernelCase> OneCaseOfEach() {
  std::vector<KernelCase> cases;
  for (const KernelCase& c : KernelCases()) {
    if (c.type == WeightType::kF32 || c.type == WeightType::kQ4_1) cases.push_back(c);
  }
  return cases;
}

const std::vector<KernelCase>& KernelCases() {
  static const std::vector<KernelCase> cases = AllCases();
  return cases;
}

}  // namespace layover::gpu_test
