// GGUF's tensor types: their names, their blocks, and the exact float32 value of every element. This is where a
// quantised format is defined for the whole product; packers, embedding and tests all decode through it.
//
// Products are rounded where the formulas of the formats say so (q * d, then + m), never fused, so the values are the
// same on every machine and equal ggml's own scalar code.
#ifndef LAYOVER_KERNELS_DEQUANTIZE_H_
#define LAYOVER_KERNELS_DEQUANTIZE_H_

#include <cstddef>
#include <string_view>

#include "kernels/ops.h"

namespace layover {

// What is known about a type. `dequantize` decodes one block; null where this build cannot read the type's values.
struct WeightTypeInfo {
  WeightType type;
  std::string_view name;  // "Q4_1"
  int block_elements;
  int block_bytes;
  void (*dequantize)(const void* block, float* out);  // out: [block_elements]; the block needs no alignment
};

// Null for an id that is no type of GGUF, so that ids from a file can be asked about.
const WeightTypeInfo* FindWeightType(WeightType type);

// The following want a type that FindWeightType knows.
std::string_view WeightTypeName(WeightType type);
int BlockElements(WeightType type);
size_t BlockBytes(WeightType type);
size_t RowBytes(WeightType type, int cols);  // cols is a multiple of BlockElements
bool CanDequantize(WeightType type);

// row: RowBytes(type, cols), any alignment; out: [cols]. The type is one that CanDequantize.
void DequantizeRow(WeightType type, const void* row, int cols, float* out);

}  // namespace layover

#endif  // LAYOVER_KERNELS_DEQUANTIZE_H_
