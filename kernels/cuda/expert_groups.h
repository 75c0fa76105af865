// How MoeMatMul's kernels are told of their choices: what product_rows.h reads, and who writes it.
#ifndef LAYOVER_KERNELS_CUDA_EXPERT_GROUPS_H_
#define LAYOVER_KERNELS_CUDA_EXPERT_GROUPS_H_

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/product_rows.h"

namespace layover::gpu {

// The choices for a product of these arguments; expert_bytes is left to it. Those of many rows are grouped first, in
// `groups` of ExpertGroupsBytes(args).
ExpertChoices LaunchGroupChoices(const MoeMatMulArgs& args, void* groups, Queue* queue);

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_EXPERT_GROUPS_H_
