// MatMul with integer weights: the types that there are.
#include "kernels/cuda/matmul_integer.h"

namespace layover::gpu {

void LaunchMatMulInteger(const MatMulArgs& args, const void* weights, Queue* queue) {
  Product p;
  p.weights = static_cast<const uint8_t*>(weights);
  p.x = static_cast<const uint8_t*>(args.x);
  p.blocks = args.weight->cols / 32;
  p.x_row_bytes = static_cast<long long>(p.blocks) * kA16BlockBytes;
  p.out = args.out;
  p.bias = args.bias;
  p.residual = args.residual;
  p.out_stride = args.out_stride;
  p.n_rows = args.n_rows;
  p.n_out = args.weight->rows;
  switch (args.weight->type) {
    case WeightType::kQ4_0:
      return LaunchIntegerProduct<Q4_0Format>(p, queue);
    case WeightType::kQ4_1:
      return LaunchIntegerProduct<Q4_1Format>(p, queue);
    case WeightType::kQ8_0:
      return LaunchIntegerProduct<Q8_0Format>(p, queue);
    case WeightType::kQ6_K:
      return LaunchIntegerProduct<Q6_KFormat>(p, queue);
    default:
      return;  // PackWeight refuses the others
  }
}

}  // namespace layover::gpu
