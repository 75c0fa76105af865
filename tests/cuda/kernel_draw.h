// What the cases of kernel_cases.h share: draws by a seed, and a step's slices on a device.
#ifndef LAYOVER_TESTS_CUDA_KERNEL_DRAW_H_
#define LAYOVER_TESTS_CUDA_KERNEL_DRAW_H_

#include <random>

#include "tests/cuda/gpu_fixture.h"
#include "tests/cuda/kernel_cases.h"
#include "tests/kernels/kv_fixture.h"

namespace layover::gpu_test {

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
  std::vector<float> Values(size_t n, float deviation = 1.0f) {
    return kernel_test::NormalValues(n, ++seed_ * 977, deviation);
  }
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

inline SliceTable Upload(Memory* memory, const kernel_test::StepSlices& step) {
  SliceTable table = step.Table();
  table.slices = memory->Put(step.slices);
  table.page_tables = memory->Put(step.page_tables);
  return table;
}

// Of kernel_cases_state.cc.
std::vector<KernelCase> StateCases();

}  // namespace layover::gpu_test

#endif  // LAYOVER_TESTS_CUDA_KERNEL_DRAW_H_
