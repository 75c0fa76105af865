// The storage types of tensors in GGUF files: names, block sizes, and which of them this product takes. The one table
// of sizes; how a block is decoded is the back ends' business.
#ifndef LAYOVER_COMMON_GGUF_WEIGHT_TYPES_H_
#define LAYOVER_COMMON_GGUF_WEIGHT_TYPES_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/ops.h"  // WeightType only

namespace layover {

struct WeightTypeTraits {
  uint32_t id = 0;         // GGML's id in the file
  std::string_view name;   // "Q4_1"
  int block_elements = 0;  // values along a row that share a block
  int block_bytes = 0;
  bool supported = false;  // a WeightType; which of them a device takes, Device::SupportsWeight says
};

// Null for an id that has no size: unknown, removed or never assigned.
const WeightTypeTraits* WeightTypeInfo(uint32_t id);
const WeightTypeTraits& WeightTypeInfo(WeightType type);

// "Q4_1".
std::string_view WeightTypeName(WeightType type);

std::span<const WeightTypeTraits> AllWeightTypes();  // ascending ids

// Bytes of `rows` rows of `cols` values. `cols` is a multiple of the type's block_elements.
uint64_t WeightBytes(WeightType type, uint64_t rows, uint64_t cols);

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_WEIGHT_TYPES_H_
