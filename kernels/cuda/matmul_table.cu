// MatMul's kernels for the types whose codes are looked up in a table. The table is an argument, so that types which
// differ by it alone share a kernel.
#include "kernels/cuda/matmul_integer.h"

namespace layover::gpu {

void LaunchTableProduct(WeightType type, const Product& p, int choices, Queue* queue) {
  switch (type) {
    case WeightType::kIQ4_NL:
      return LaunchIntegerProduct<IQ4_NLFormat>(p, choices, queue);
    case WeightType::kMXFP4:
      return LaunchIntegerProduct<MXFP4Format>(p, choices, queue);
    case WeightType::kIQ4_XS:
    case WeightType::kIQ3_S:
    case WeightType::kIQ3_XXS:
      return LaunchIntegerProduct<Table4Format>(p, choices, queue);
    default:
      return LaunchIntegerProduct<Table3Format>(p, choices, queue);
  }
}

}  // namespace layover::gpu
