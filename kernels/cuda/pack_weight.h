// GGUF's rows into the card's layout (weight_layout.h), on the host.
#ifndef LAYOVER_KERNELS_CUDA_PACK_WEIGHT_H_
#define LAYOVER_KERNELS_CUDA_PACK_WEIGHT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/ops.h"

namespace layover::gpu {

bool SupportsWeight(WeightType type);
ActivationFormat ActivationOf(WeightType type);

// Of a supported type; empty for those without a table.
CodeTable TableOf(WeightType type);

// Of a supported type; cols is a multiple of the type's block.
size_t PackedBytes(WeightType type, int experts, int rows, int cols);

// InvalidArgument when the type is not supported, cols is no multiple of its block, or bytes do not match.
absl::Status CheckWeightSource(const WeightSource& source);
// A checked source into PackedBytes bytes.
void PackWeight(const WeightSource& source, uint8_t* out);

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_PACK_WEIGHT_H_
