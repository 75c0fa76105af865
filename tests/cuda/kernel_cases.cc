#include "tests/cuda/kernel_cases.h"

#include <cmath>

#include "tests/cuda/kernel_draw.h"
#include "tests/kernels/reference_matmul.h"

namespace layover::gpu_test {
namespace {

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

std::vector<float> TopK(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  const int rows = draw.Between(1, 3), dim = seed % 2 == 0 ? draw.Between(1, 900) : draw.Between(4097, 9000);
  const int stride = dim + draw.Between(0, 3), k = draw.Between(1, 9);
  const size_t n = static_cast<size_t>(rows) * k;
  Memory memory(device);
  int32_t* ids = memory.Zeroed<int32_t>(n);
  float* values = memory.Zeroed<float>(n);
  memory.stream()->TopK(
      {memory.Put(draw.Values(static_cast<size_t>(rows) * stride)), ids, values, rows, dim, stride, k});
  std::vector<float> all = memory.Get(values, n);
  for (const int32_t id : memory.Get(ids, n)) all.push_back(static_cast<float>(id));
  return all;
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

// ------------------------------------------------------------------------------------------------------------ experts

std::vector<float> Route(Device* device, uint32_t seed, WeightType) {
  Draw draw(seed);
  // One expert a lane, or several.
  const int rows = draw.Between(1, 6), experts = seed % 2 == 0 ? draw.Between(3, 32) : draw.Between(33, 200);
  const int k = draw.Between(2, experts < 12 ? experts : 12);
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

std::vector<float> MultiplyByExperts(Device* device, Draw* drawn, WeightType type, int rows, int n_out) {
  Draw& draw = *drawn;
  const int experts = draw.Between(1, 5), k = draw.Between(1, 3), cols = ColsOf(type, draw.Between(1, 300));
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

std::vector<float> ExpertProducts(Device* device, uint32_t seed, WeightType type) {
  Draw draw(seed);
  const int rows = draw.Between(1, 8), n_out = draw.Between(1, 40);
  return MultiplyByExperts(device, &draw, type, rows, n_out);
}

std::vector<float> GroupedProducts(Device* device, uint32_t seed, WeightType type) {
  Draw draw(seed);
  const int rows = draw.Between(9, 50), n_out = draw.Between(1, 140);
  return MultiplyByExperts(device, &draw, type, rows, n_out);
}

std::vector<KernelCase> AllCases() {
  std::vector<KernelCase> cases = {
      {"RmsNorm", RmsNorm},       {"Rope", RopeOfAngles}, {"Gated", Gated},
      {"GatherRows", GatherRows}, {"MoeRoute", Route},    {"MoeCombine", Combine},
      {"TopK", TopK},
  };
  for (const KernelCase& c : StateCases()) cases.push_back(c);
  for (const WeightType type : kMatMulTypes) {
    const std::string suffix = "_" + std::string(WeightTypeName(type));
    cases.push_back({"EmbedRows" + suffix, EmbedRows, type});
    cases.push_back({"FewRows" + suffix, FewRows, type});
    cases.push_back({"ManyRows" + suffix, ManyRows, type});
    cases.push_back({"ExpertProducts" + suffix, ExpertProducts, type});
    cases.push_back({"GroupedProducts" + suffix, GroupedProducts, type});
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
