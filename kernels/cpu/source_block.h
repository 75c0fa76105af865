// GGUF's blocks of integers as packing wants them: 32 codes of a row and the scales that go with them, whatever the
// type.
#ifndef LAYOVER_KERNELS_CPU_SOURCE_BLOCK_H_
#define LAYOVER_KERNELS_CPU_SOURCE_BLOCK_H_

#include <cstdint>

#include "kernels/ops.h"

namespace layover {

struct SourceBlock {
  uint8_t code[32];  // the unsigned integer that its kind stores (packed_layout.h), or an index into the type's table
  uint16_t d;        // bits of d and of m or dmin: f16, MXFP4's d bfloat16
  uint16_t m;
  uint8_t sc[2];  // scale bytes as stored, of 16 columns each
  uint8_t sub_minimum;
};

// Block `block` of 32 columns of a row in GGUF's layout.
using ReadSource = void (*)(const uint8_t* row, int block, SourceBlock* out);

// Null for float types and types that have no product.
ReadSource ReadSourceOf(WeightType type);

// The values of the type's codes, 16 of them; null where the codes are the integers themselves.
const int8_t* CodeTableOf(WeightType type);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_SOURCE_BLOCK_H_
