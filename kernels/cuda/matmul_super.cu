// MatMul's kernels for the types of super-blocks with scales of their own.
#include "kernels/cuda/matmul_integer.h"

namespace layover::gpu {

void LaunchSuperProduct(WeightType type, const Product& p, Queue* queue) {
  switch (type) {
    case WeightType::kQ2_K:
      return LaunchIntegerProduct<Q2_KFormat>(p, queue);
    case WeightType::kQ4_K:
      return LaunchIntegerProduct<Q4_KFormat>(p, queue);
    case WeightType::kQ5_K:
      return LaunchIntegerProduct<Q5_KFormat>(p, queue);
    default:
      return LaunchIntegerProduct<Q6_KFormat>(p, queue);
  }
}

}  // namespace layover::gpu
