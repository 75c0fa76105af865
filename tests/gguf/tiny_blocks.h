// Random weights in the block formats for which there is no encoder: quants of random bits under scales that give the
// values a wanted deviation.
#ifndef LAYOVER_TESTS_GGUF_TINY_BLOCKS_H_
#define LAYOVER_TESTS_GGUF_TINY_BLOCKS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/ops.h"

namespace layover::testing {

bool HasEncoder(WeightType type);  // EncodeWeights takes it
// `count` values, a multiple of the block, by seed and name.
std::string RandomBlocks(WeightType type, uint64_t seed, std::string_view name, size_t count, float deviation);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_GGUF_TINY_BLOCKS_H_
