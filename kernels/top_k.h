// The order of TopK (ops.h), for the host: the CPU back end and the sampler choose with it. kernels/cuda/top_k.cu has
// the same one.
#ifndef LAYOVER_KERNELS_TOP_K_H_
#define LAYOVER_KERNELS_TOP_K_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace layover {

// A logit and its id as one integer: the higher logit is the larger one, of equal logits the lower id. Not for NaN.
// -0 is +0, +infinity the largest float.
uint64_t TopKKey(float logit, size_t id);
int32_t IdOfTopKKey(uint64_t key);
float LogitOfTopKKey(uint64_t key);

// Keys of the k best of a row, best first; fewer if the row has fewer above -infinity.
std::vector<uint64_t> SelectTopK(std::span<const float> row, size_t k);

}  // namespace layover

#endif  // LAYOVER_KERNELS_TOP_K_H_
