// Every kernel of the CUDA back end by a case that reaches it: shapes and values are drawn by the seed, ragged ones
// among them, and nothing that comes out is NaN. The tests of schedules and of barriers run them all.
#ifndef LAYOVER_TESTS_CUDA_KERNEL_CASES_H_
#define LAYOVER_TESTS_CUDA_KERNEL_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace layover::gpu_test {

struct KernelCase {
  std::string name;
  // The same draw on every device.
  std::vector<float> (*run)(Device* device, uint32_t seed, WeightType type);
  WeightType type = WeightType::kF32;  // for cases of a weight type
};

const std::vector<KernelCase>& KernelCases();
// One of each kernel's: products of two weight types instead of all.
std::vector<KernelCase> OneCaseOfEach();

}  // namespace layover::gpu_test

#endif  // LAYOVER_TESTS_CUDA_KERNEL_CASES_H_
