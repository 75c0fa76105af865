// Products of experts on the CUDA back end, for every weight type and every way of choosing: bits of the CPU back end.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/reference_matmul.h"

namespace layover::gpu_test {
namespace {

using kernel_test::NormalValues;

struct Mixture {
  RawWeight slab;
  std::vector<int32_t> chosen;  // [n_rows, k]
  std::vector<float> x, bias;
  int n_rows;
  int k;
  bool x_per_choice;
};

// k distinct ones of experts [0, below) for every row, ascending.
std::vector<int32_t> Choose(int n_rows, int k, int below, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> chosen;
  for (int row = 0; row < n_rows; ++row) {
    std::vector<int32_t> ids(below);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    std::sort(ids.begin(), ids.begin() + k);
    chosen.insert(chosen.end(), ids.begin(), ids.begin() + k);
  }
  return chosen;
}

Mixture MakeMixture(WeightType type, int experts, std::vector<int32_t> chosen, int k, bool x_per_choice, bool bias) {
  const int block = BlockElements(type), cols = block == 256 ? 256 : 96, n_out = 20;
  const int n_rows = static_cast<int>(chosen.size()) / k, x_rows = x_per_choice ? n_rows * k : n_rows;
  Mixture m{RandomWeight(type, n_out, cols, 9, experts), std::move(chosen), {}, {}, n_rows, k, x_per_choice};
  m.x = NormalValues(static_cast<size_t>(x_rows) * cols, 5);
  if (bias) m.bias = NormalValues(static_cast<size_t>(experts) * n_out, 4);
  return m;
}

std::vector<float> Multiply(Device* device, const Mixture& m) {
  Memory memory(device);
  auto weight = device->PackWeight(m.slab.Source());
  EXPECT_TRUE(weight.ok()) << weight.status().message();
  const int cols = m.slab.cols, x_rows = static_cast<int>(m.x.size()) / cols;
  const ActivationFormat format = (*weight)->activation;
  void* prepared = memory.Zeroed<uint8_t>(device->ActivationBytes(format, x_rows, cols));
  memory.stream()->PrepareActivation({memory.Put(m.x), x_rows, cols, cols, format, prepared});
  const size_t n = m.chosen.size() * (*weight)->rows;
  float* out = memory.Put(std::vector<float>(n, NAN));
  memory.stream()->MoeMatMul({weight->get(), prepared, memory.Put(m.chosen), out, m.n_rows, m.k, m.x_per_choice,
                              m.bias.empty() ? nullptr : memory.Put(m.bias)});
  return memory.Get(out, n);
}

void ExpectBitsOfTheCpu(const Mixture& m, Schedules schedules = Schedules::kAll) {
  SCOPED_TRACE(fmt::format("{}, {} rows, {} of {} experts{}{}", WeightTypeName(m.slab.type), m.n_rows, m.k,
                           m.slab.experts, m.x_per_choice ? ", x per choice" : "", m.bias.empty() ? "" : ", bias"));
  const std::vector<float> got = SameOnBoth<float>([&](Device* device) { return Multiply(device, m); }, 4, schedules);
  for (const float value : got) ASSERT_FALSE(std::isnan(value));  // every choice has its output
}

class GpuMoeMatMul : public testing::TestWithParam<WeightType> {};

TEST_P(GpuMoeMatMul, BitsOfTheCpuForFewRowsAndForMany) {
  for (const int n_rows : {8, 35}) {
    for (const bool per_choice : {false, true}) {
      const int experts = 5, k = 2;
      const std::vector<int32_t> chosen = Choose(n_rows, k, experts, n_rows);
      ExpectBitsOfTheCpu(MakeMixture(GetParam(), experts, chosen, k, per_choice, per_choice == (n_rows == 8)),
                         per_choice ? Schedules::kOuter : Schedules::kInner);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuMoeMatMul, testing::ValuesIn(kMatMulTypes),
                         [](const auto& test) { return std::string(WeightTypeName(test.param)); });

// Of integers without and with a minimum, and of floats.
constexpr WeightType kSomeTypes[] = {WeightType::kQ4_0, WeightType::kQ2_K, WeightType::kF32, WeightType::kF16};

TEST(GpuMoeMatMulChoices, OneRow) {
  for (const WeightType type : kSomeTypes) {
    ExpectBitsOfTheCpu(MakeMixture(type, 1, {0}, 1, false, true));
    ExpectBitsOfTheCpu(MakeMixture(type, 9, {2, 5, 8}, 3, true, true));
    ExpectBitsOfTheCpu(MakeMixture(type, 9, {0, 3, 4}, 3, false, false));
  }
}

TEST(GpuMoeMatMulChoices, AllRowsOfOneExpert) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {2, 8, 9, 64, 65, 150}) {
      ExpectBitsOfTheCpu(MakeMixture(type, 4, std::vector<int32_t>(n_rows, n_rows % 4), 1, false, true));
    }
  }
}

TEST(GpuMoeMatMulChoices, ExpertsThatNobodyChose) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {6, 70}) {
      ExpectBitsOfTheCpu(MakeMixture(type, 40, Choose(n_rows, 2, 3, 1), 2, true, true));  // only the first ones
      std::vector<int32_t> ends = Choose(n_rows, 1, 2, 2);
      for (int32_t& id : ends) id *= 39;  // the first and the last
      ExpectBitsOfTheCpu(MakeMixture(type, 40, ends, 1, false, true));
    }
  }
}

TEST(GpuMoeMatMulChoices, EveryExpertOfEveryRow) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {1, 5, 30}) {
      ExpectBitsOfTheCpu(MakeMixture(type, 6, Choose(n_rows, 6, 6, 3), 6, n_rows == 5, true));
    }
  }
}

// The contract lists them ascending, but the products need no order and no row's choices to differ.
TEST(GpuMoeMatMulChoices, InAnyOrderAndTheSameOneTwice) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {3, 25}) {
      std::mt19937 random(n_rows);
      std::vector<int32_t> chosen(static_cast<size_t>(n_rows) * 7);
      for (int32_t& id : chosen) id = static_cast<int32_t>(random() % 3);
      ExpectBitsOfTheCpu(MakeMixture(type, 4, chosen, 7, true, false));
    }
  }
}

// More choices than a warp looks at in one go, of more experts than a warp has lanes.
TEST(GpuMoeMatMulChoices, OfManyExperts) {
  for (const WeightType type : {WeightType::kQ8_0, WeightType::kBF16}) {
    ExpectBitsOfTheCpu(MakeMixture(type, 200, Choose(8, 9, 200, 4), 9, true, true));
    ExpectBitsOfTheCpu(MakeMixture(type, 200, Choose(50, 9, 200, 5), 9, false, true));
  }
}

// A row of numbers that are none spoils its own outputs and no other row's, whatever tile they share.
TEST(GpuMoeMatMulChoices, NumbersThatAreNoneStayInTheirRow) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {8, 30}) {
      Mixture m = MakeMixture(type, 3, Choose(n_rows, 2, 3, 6), 2, false, true);
      std::fill_n(m.x.begin() + 5 * m.slab.cols, m.slab.cols, NAN);
      const std::vector<float> got = SameOnBoth<float>([&](Device* device) { return Multiply(device, m); });
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::isnan(got[i]), i / m.slab.rows / 2 == 5) << WeightTypeName(type) << ", value " << i;
      }
    }
  }
}

// A step that is captured knows the number of rows and nothing of what they choose.
TEST(GpuMoeMatMulChoices, ThatChangeUnderAGraph) {
  const int experts = 6, k = 2, n_calls = 4;
  for (const int n_rows : {5, 20}) {
    const Mixture m = MakeMixture(WeightType::kQ4_0, experts, Choose(n_rows, k, experts, 1), k, false, false);
    const auto run = [&](Device* device, int64_t launches) {
      Memory memory(device);
      const auto weight = device->PackWeight(m.slab.Source()).value();
      void* prepared = memory.Zeroed<uint8_t>(device->ActivationBytes(weight->activation, n_rows, m.slab.cols));
      int32_t* chosen = memory.Zeroed<int32_t>(m.chosen.size());
      const size_t n = m.chosen.size() * weight->rows;
      float *x = memory.Put(m.x), *out = memory.Zeroed<float>(n);
      std::vector<float> outs;
      for (int call = 0; call < n_calls; ++call) {
        const std::vector<int32_t> now = Choose(n_rows, k, 2 + call, call);
        memory.stream()->CopyToDevice(chosen, now.data(), now.size() * sizeof(int32_t));
        memory.stream()->Replay({.n_rows = n_rows}, [&] {
          memory.stream()->PrepareActivation({x, n_rows, m.slab.cols, m.slab.cols, weight->activation, prepared});
          memory.stream()->MoeMatMul({weight.get(), prepared, chosen, out, n_rows, k, false, nullptr});
        });
        for (const float value : memory.Get(out, n)) outs.push_back(value);
      }
      EXPECT_EQ(memory.stream()->Replays().launched, launches);
      return outs;
    };
    const std::vector<float> want = run(kernel_test::OpenCpu(kernel_test::BestVariant()).get(), 0);
    ForEverySchedule(4, [&](Device* device) { ASSERT_TRUE(SameValues(run(device, n_calls - 1), want)); });
  }
}

}  // namespace
}  // namespace layover::gpu_test
