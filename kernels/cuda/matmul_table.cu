// MatMul's kernels for the types whose codes are looked up in a table. The table is an argument, so that types which
// differ by it alone share a kernel.
#include "kernels/cuda/matmul_integer.h"

namespace layover::gpu {

void LaunchTableProduct(WeightType type, const Product& p, Queue* queue) {
  switch (type) {
    case WeightType::kIQ4_NL:
      return LaunchIntegerProduct<IQ4_NLFormat>(p, queue);
    case WeightType::kMXFP4:
      return LaunchIntegerProduct<MXFP4Format>(p, queue);
    case WeightType::kIQ4_XS:
    case WeightType::kIQ3_S:
    case WeightType::kIQ3_XXS:
      return LaunchIntegerProduct<Table4Format>(p, queue);
    default:
      return LaunchIntegerProduct<Table3Format>(p, queue);
  }
}

}  // namespace layover::gpu
