// Operations of hybrid and mixture models on the CUDA back end: bits of the CPU back end, and the double reference.
#include <cmath>

#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/kernels/reference_recurrent.h"

namespace layover::gpu_test {
namespace {

using kernel_test::NormalValues;
using kernel_test::StepSlices;
using kernel_test::WithinBounds;

// Three sequences: one new, one that keeps its slot, one that moves to another.
struct Slots {
  std::vector<int32_t> from = {-1, 2, 0};
  std::vector<int32_t> to = {3, 2, 1};
};

StepSlices ThreeSlices() {
  StepSlices step;
  step.Add(0, 6, {0});
  step.Add(9, 1, {0});
  step.Add(3, 5, {0});
  return step;
}

SliceTable Upload(Memory* memory, const StepSlices& step) {
  SliceTable table = step.Table();
  table.slices = memory->Put(step.slices);
  table.page_tables = memory->Put(step.page_tables);
  return table;
}

TEST(GpuCausalConv, BitsOfTheCpuAndTheReference) {
  const StepSlices step = ThreeSlices();
  const Slots slots;
  for (const int taps : {1, 2, 4, 16}) {
    for (const int channels : {5, 130}) {
      const std::vector<float> u = NormalValues(static_cast<size_t>(step.rows()) * channels, 1);
      const std::vector<float> weight = NormalValues(static_cast<size_t>(channels) * taps, 2);
      const std::vector<float> state = NormalValues(static_cast<size_t>(4 * (taps - 1)) * channels + 1, 3);
      const size_t n = u.size();
      const std::vector<float> all = SameOnBoth<float>([&](Device* device) {
        Memory memory(device);
        float* held = memory.Put(state);
        float* out = memory.Zeroed<float>(n);
        CausalConvArgs args;
        args.u = memory.Put(u);
        args.weight = memory.Put(weight);
        args.state = held;
        args.out = out;
        args.channels = channels;
        args.taps = taps;
        args.slots = {memory.Put(slots.from), memory.Put(slots.to)};
        args.slices = Upload(&memory, step);
        memory.stream()->CausalConv(args);
        std::vector<float> result = memory.Get(out, n);
        const std::vector<float> after = memory.Get(held, state.size());
        result.insert(result.end(), after.begin(), after.end());
        return result;
      });
      // The new sequence's fourth row, channel 2, by the reference.
      std::vector<float> inputs;
      for (int t = 3 - taps + 1; t <= 3; ++t) inputs.push_back(t < 0 ? 0.0f : u[static_cast<size_t>(t) * channels + 2]);
      ASSERT_TRUE(WithinBounds(&all[static_cast<size_t>(3) * channels + 2],
                               {reference::CausalConv(inputs, &weight[static_cast<size_t>(2) * taps])}));
    }
  }
}

TEST(GpuGatedDeltaNet, BitsOfTheCpu) {
  const StepSlices step = ThreeSlices();
  const Slots slots;
  for (const int dim : {16, 24, 64, 128, 136}) {
    for (const bool modulo : {false, true}) {
      const int key_heads = 2, value_heads = 4, width = (2 * key_heads + value_heads) * dim;
      const size_t rows = static_cast<size_t>(step.rows()), heads = rows * value_heads;
      const std::vector<float> qkv = NormalValues(rows * width, 4), alpha = NormalValues(heads, 5);
      const std::vector<float> beta = NormalValues(heads, 6), dt_bias = NormalValues(value_heads, 7);
      const std::vector<float> a = {-0.1f, -1.0f, -5.0f, -0.01f};
      const std::vector<float> state = NormalValues(static_cast<size_t>(4 * value_heads) * dim * dim, 8);
      SameOnBoth<float>([&](Device* device) {
        Memory memory(device);
        float* held = memory.Put(state);
        float* out = memory.Zeroed<float>(heads * dim);
        GatedDeltaNetArgs args;
        args.qkv = memory.Put(qkv);
        args.alpha = memory.Put(alpha);
        args.beta = memory.Put(beta);
        args.a = memory.Put(a);
        args.dt_bias = memory.Put(dt_bias);
        args.state = held;
        args.out = out;
        args.key_heads = key_heads;
        args.value_heads = value_heads;
        args.dim = dim;
        args.key_head_is_modulo = modulo;
        args.eps = 1e-6f;
        args.slots = {memory.Put(slots.from), memory.Put(slots.to)};
        args.slices = Upload(&memory, step);
        memory.stream()->GatedDeltaNet(args);
        std::vector<float> result = memory.Get(out, heads * dim);
        const std::vector<float> after = memory.Get(held, state.size());
        result.insert(result.end(), after.begin(), after.end());
        return result;
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GpuMoeRoute, BitsOfTheCpuAndTheReference) {
  for (const auto& [experts, k] : {std::pair{4, 2}, {32, 4}, {128, 8}, {512, 10}, {37, 20}, {1, 1}}) {
    for (const bool after : {false, true}) {
      const int n_rows = 5;
      std::vector<float> logits = NormalValues(static_cast<size_t>(n_rows) * experts, 1, 2.0f);
      for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::round(logits[i]);  // ties
      if (experts > 30) logits[2 * experts + 7] = NAN;
      if (experts > 30) logits[3 * experts + 7] = -INFINITY;
      const std::vector<float> routed = SameOnBoth<float>([&](Device* device) {
        Memory memory(device);
        const size_t n = static_cast<size_t>(n_rows) * k;
        int32_t* chosen = memory.Zeroed<int32_t>(n);
        float* weights = memory.Zeroed<float>(n);
        memory.stream()->MoeRoute({memory.Put(logits), chosen, weights, n_rows, experts, k, after, 1.5f});
        std::vector<float> result = memory.Get(weights, n);
        for (const int32_t id : memory.Get(chosen, n)) result.push_back(static_cast<float>(id));
        return result;
      });
      const reference::Route exact = reference::MoeRoute(logits.data(), experts, k, after, 1.5);
      ASSERT_TRUE(WithinBounds(routed.data(), exact.weights));
      for (int j = 0; j < k; ++j) ASSERT_EQ(routed[static_cast<size_t>(n_rows) * k + j], exact.chosen[j]);
    }
  }
}

TEST(GpuMoeCombine, BitsOfTheCpu) {
  const int n_rows = 3, k = 5, dim = 300;
  const std::vector<float> parts = NormalValues(n_rows * k * dim, 1), weights = NormalValues(n_rows * k, 2);
  const std::vector<float> residual = NormalValues(n_rows * dim, 3);
  SameOnBoth<float>([&](Device* device) {
    Memory memory(device);
    float* out = memory.Put(residual);
    memory.stream()->MoeCombine({memory.Put(parts), memory.Put(weights), out, out, n_rows, k, dim});
    return memory.Get(out, residual.size());
  });
}

}  // namespace
}  // namespace layover::gpu_test
