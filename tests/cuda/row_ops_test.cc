// Norms, RoPE, gates and copies of rows on the CUDA back end: bits of the CPU back end, and the double reference.
#include <cmath>

#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/reference_top_k.h"

namespace layover::gpu_test {
namespace {

using kernel_test::NormalValues;
using kernel_test::WithinBounds;
using reference::Bounded;

void Append(std::vector<Bounded>* all, const std::vector<Bounded>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

TEST(GpuRmsNorm, RaggedShapes) {
  for (const int dim : {1, 15, 16, 33, 128, 257, 576, 4096, 9001}) {
    const int rows = dim > 4000 ? 2 : 5, x_stride = dim + 3, y_stride = dim + 1;
    const std::vector<float> x = NormalValues(static_cast<size_t>(rows) * x_stride, 1, 3.0f);
    const std::vector<float> weight = NormalValues(dim, 2);
    const std::vector<float> y = SameOnBoth<float>([&](Device* device) {
      Memory memory(device);
      float* out = memory.Zeroed<float>(static_cast<size_t>(rows) * y_stride);
      memory.stream()->RmsNorm({memory.Put(x), memory.Put(weight), out, rows, dim, x_stride, y_stride, 1e-5f});
      return memory.Get(out, static_cast<size_t>(rows) * y_stride);
    });
    for (int r = 0; r < rows; ++r) {
      ASSERT_TRUE(WithinBounds(&y[static_cast<size_t>(r) * y_stride],
                               reference::RmsNorm(&x[static_cast<size_t>(r) * x_stride], weight.data(), dim, 1e-5f)))
          << dim;
    }
  }
}

TEST(GpuRmsNorm, InPlaceAndExtremes) {
  std::vector<float> x = NormalValues(64 * 4, 3);
  for (int i = 0; i < 64; ++i) x[i] = 0;             // a row of zeros
  for (int i = 64; i < 128; ++i) x[i] *= 0x1p-130f;  // subnormal squares
  x[150] = INFINITY;
  x[200] = NAN;
  const std::vector<float> weight = NormalValues(64, 4);
  SameOnBoth<float>([&](Device* device) {
    Memory memory(device);
    float* rows = memory.Put(x);
    memory.stream()->RmsNorm({rows, memory.Put(weight), rows, 4, 64, 64, 64, 1e-6f});
    return memory.Get(rows, x.size());
  });
}

TEST(GpuRope, AnglesAndBothPairings) {
  const std::vector<int32_t> positions = {0, 1, 63, 4095, 131071};
  const int rows = static_cast<int>(positions.size());
  for (const int n_pairs : {3, 16, 20, 64}) {
    std::vector<double> frequencies;
    for (int p = 0; p < n_pairs; ++p) frequencies.push_back(std::pow(10000.0, -static_cast<double>(p) / n_pairs));
    const std::vector<float> angles = SameOnBoth<float>([&](Device* device) {
      Memory memory(device);
      float* out = memory.Zeroed<float>(static_cast<size_t>(rows) * n_pairs * 2);
      memory.stream()->RopeAngles({memory.Put(positions), memory.Put(frequencies), out, rows, n_pairs, 1.1f});
      return memory.Get(out, static_cast<size_t>(rows) * n_pairs * 2);
    });
    std::vector<Bounded> want;
    for (const int32_t position : positions) {
      Append(&want, reference::RopeAngles(position, frequencies.data(), n_pairs, 1.1f));
    }
    ASSERT_TRUE(WithinBounds(angles.data(), want)) << n_pairs;

    for (const RopePairing pairing : {RopePairing::kNorm, RopePairing::kNeox}) {
      const int heads = 3, head_dim = 2 * n_pairs + 8, stride = heads * head_dim + 5;
      const std::vector<float> x = NormalValues(static_cast<size_t>(rows) * stride, 5);
      const std::vector<float> y = SameOnBoth<float>([&](Device* device) {
        Memory memory(device);
        float* rotated = memory.Put(x);
        memory.stream()->Rope({rotated, memory.Put(angles), rows, heads, head_dim, stride, n_pairs, pairing});
        return memory.Get(rotated, x.size());
      });
      for (int r = 0; r < rows; ++r) {
        std::vector<Bounded> row =
            reference::Rope(&x[static_cast<size_t>(r) * stride], &angles[static_cast<size_t>(r) * n_pairs * 2], heads,
                            head_dim, n_pairs, pairing);
        for (Bounded& value : row) value.bound += 1e-30;  // what passes unchanged is exact
        ASSERT_TRUE(WithinBounds(&y[static_cast<size_t>(r) * stride], row));
      }
    }
  }
}

TEST(GpuGated, EveryKindAndExtremes) {
  const int rows = 3, dim = 301, stride = dim + 7;
  std::vector<float> gate = NormalValues(static_cast<size_t>(rows) * stride, 6, 5.0f);
  std::vector<float> up = NormalValues(static_cast<size_t>(rows) * stride, 7, 5.0f);
  const float extremes[] = {0.0f, -0.0f, 88.0f, -88.0f, 200.0f, -200.0f, 1e-40f, 1e30f, -1e30f, 0x1p-149f};
  std::copy(std::begin(extremes), std::end(extremes), gate.begin());
  for (const GateKind kind : {GateKind::kSilu, GateKind::kGeluTanh, GateKind::kSigmoid, GateKind::kClampedSwiglu}) {
    const std::vector<float> out = SameOnBoth<float>([&](Device* device) {
      Memory memory(device);
      float* result = memory.Put(gate);
      memory.stream()->Gated({result, memory.Put(up), result, rows, dim, stride, stride, stride, kind});
      return memory.Get(result, gate.size());
    });
    for (int r = 0; r < rows; ++r) {
      std::vector<Bounded> want;
      for (int i = 0; i < dim; ++i) want.push_back(reference::Gated(kind, gate[r * stride + i], up[r * stride + i]));
      for (Bounded& value : want) value.bound += 0x1p-140;
      ASSERT_TRUE(WithinBounds(&out[static_cast<size_t>(r) * stride], want)) << static_cast<int>(kind);
    }
  }
  SameOnBoth<float>([&](Device* device) {  // the activation alone
    Memory memory(device);
    float* result = memory.Put(gate);
    memory.stream()->Gated({result, nullptr, result, rows, dim, stride, 0, stride, GateKind::kSigmoid});
    return memory.Get(result, gate.size());
  });
  gate.assign(gate.size(), NAN);
  gate[1] = INFINITY;
  gate[2] = -INFINITY;
  SameOnBoth<float>([&](Device* device) {
    Memory memory(device);
    float* result = memory.Put(gate);
    memory.stream()->Gated({result, memory.Put(up), result, rows, dim, stride, stride, stride, GateKind::kSilu});
    return memory.Get(result, gate.size());
  });
}

TEST(GpuGatherRows, CopiesRows) {
  const std::vector<float> x = NormalValues(7 * 300, 8);
  const std::vector<int32_t> rows = {6, 0, 3, 3};
  const std::vector<float> out = SameOnBoth<float>([&](Device* device) {
    Memory memory(device);
    float* result = memory.Zeroed<float>(4 * 300);
    memory.stream()->GatherRows({memory.Put(x), memory.Put(rows), result, 4, 300});
    return memory.Get(result, 4 * 300);
  });
  EXPECT_EQ(out[2 * 300 + 5], x[3 * 300 + 5]);
}

TEST(GpuTopK, IsTheHeadOfASort) {
  // A part of one segment of 4096, several segments, and so many that their winners are several again.
  struct Shape {
    int rows, dim, k;
  };
  for (const auto& [rows, dim, k] : {Shape{3, 1, 1},
                                     {3, 1, 40},
                                     {5, 300, 1},
                                     {4, 300, limits::kMaxTopK},
                                     {2, 4096, 40},
                                     {3, 9001, 1},
                                     {2, 9001, 40},
                                     {1, 140'000, limits::kMaxTopK}}) {
    const int stride = dim + 3;
    const std::vector<float> x = reference::HardRows(rows > 1 ? rows : 2, stride, static_cast<uint32_t>(dim + k));
    const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(k);
    const std::vector<float> both = SameOnBoth<float>([&, rows = rows, dim = dim, k = k](Device* device) {
      Memory memory(device);
      int32_t* ids = memory.Zeroed<int32_t>(n);
      float* values = memory.Zeroed<float>(n);
      memory.stream()->TopK({memory.Put(x), ids, values, rows, dim, stride, k});
      std::vector<float> all = memory.Get(values, n);
      for (const int32_t id : memory.Get(ids, n)) all.push_back(static_cast<float>(id));
      return all;
    });
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const auto want = reference::TopKOf({&x[row * static_cast<size_t>(stride)], static_cast<size_t>(dim)}, k);
      for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
        ASSERT_EQ(both[n + row * static_cast<size_t>(k) + i], static_cast<float>(want.ids[i])) << dim << ", " << k;
        ASSERT_EQ(both[row * static_cast<size_t>(k) + i], want.values[i]) << dim << ", " << k;
      }
    }
  }
}

}  // namespace
}  // namespace layover::gpu_test
