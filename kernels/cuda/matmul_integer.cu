// MatMul and MoeMatMul with integer weights: the types that there are. Their kernels are compiled in three files side
// by side: the plain types here, those of super-blocks and those of tables in files of their own.
#include "kernels/cuda/expert_groups.h"
#include "kernels/cuda/matmul_integer.h"

namespace layover::gpu {
namespace {

void LaunchOfType(WeightType type, const Product& p, Queue* queue) {
  switch (type) {
    case WeightType::kQ4_0:
      return LaunchIntegerProduct<Q4_0Format>(p, queue);
    case WeightType::kQ4_1:
      return LaunchIntegerProduct<Q4_1Format>(p, queue);
    case WeightType::kQ8_0:
      return LaunchIntegerProduct<Q8_0Format>(p, queue);
    case WeightType::kQ5_0:
      return LaunchIntegerProduct<Q5_0Format>(p, queue);
    case WeightType::kQ5_1:
      return LaunchIntegerProduct<Q5_1Format>(p, queue);
    case WeightType::kQ2_K:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
      return LaunchSuperProduct(type, p, queue);
    default:  // PackWeight refuses what is none of these
      return LaunchTableProduct(type, p, queue);
  }
}

Product ProductOf(const PackedWeight& weight, const CardWeight& on_card, const void* x) {
  Product p;
  p.weights = static_cast<const uint8_t*>(on_card.data);
  p.table = on_card.table;
  p.x = static_cast<const uint8_t*>(x);
  p.blocks = weight.cols / 32;
  p.x_row_bytes = static_cast<long long>(p.blocks) * kA16BlockBytes;
  p.n_out = weight.rows;
  return p;
}

}  // namespace

void LaunchMatMulInteger(const MatMulArgs& args, const CardWeight& weights, Queue* queue) {
  Product p = ProductOf(*args.weight, weights, args.x);
  p.out = args.out;
  p.bias = args.bias;
  p.residual = args.residual;
  p.out_stride = args.out_stride;
  p.n_rows = args.n_rows;
  LaunchOfType(args.weight->type, p, queue);
}

void LaunchMoeMatMulInteger(const MoeMatMulArgs& args, const CardWeight& weights, void* groups, Queue* queue) {
  Product p = ProductOf(*args.weight, weights, args.x);
  p.out = args.out;
  p.bias = args.bias;
  p.out_stride = args.weight->rows;
  p.n_rows = args.n_rows;
  p.experts = LaunchGroupChoices(args, groups, queue);
  LaunchOfType(args.weight->type, p, queue);
}

}  // namespace layover::gpu
