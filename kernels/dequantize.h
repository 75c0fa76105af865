// The exact float32 value of every element of GGUF's tensor types. This is where a quantised format's values are defined
// for the whole product (its sizes stand in common/gguf/weight_types.h); packers, embedding and tests decode through it.
//
// Products are rounded where the formulas of the formats say so (q * d, then + m), never fused, so the values are the
// same on every machine and equal ggml's own scalar code.
#ifndef LAYOVER_KERNELS_DEQUANTIZE_H_
#define LAYOVER_KERNELS_DEQUANTIZE_H_

#include <cstddef>

#include "common/gguf/weight_types.h"
#include "kernels/ops.h"

namespace layover {

// Sizes of blocks; the type is one of WeightType (common/gguf/weight_types.h has the table).
int BlockElements(WeightType type);
size_t BlockBytes(WeightType type);
size_t RowBytes(WeightType type, int cols);  // cols is a multiple of BlockElements
// False for a type whose values this build cannot read, and for an id that is no type.
bool CanDequantize(WeightType type);

// row: RowBytes(type, cols), any alignment; out: [cols]. The type is one that CanDequantize.
void DequantizeRow(WeightType type, const void* row, int cols, float* out);

}  // namespace layover

#endif  // LAYOVER_KERNELS_DEQUANTIZE_H_
