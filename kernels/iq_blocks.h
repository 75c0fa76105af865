// The super-blocks of 256 of GGUF's IQ types that are made of codebook points (IQ1, IQ2, IQ3), as small integers: what
// dequantisation and packing share. value = q * (d * step * sc); every product is exact in float32.
#ifndef LAYOVER_KERNELS_IQ_BLOCKS_H_
#define LAYOVER_KERNELS_IQ_BLOCKS_H_

#include <cstdint>

#include "kernels/ops.h"

namespace layover {

// 32 weights of a super-block.
struct IqGroup {
  int8_t q[32];   // IQ1: 8 * point + the sign of the shift of 1/8
  uint8_t sc[2];  // odd, of 16 weights each
};

struct IqFormat {
  WeightType type;
  float step;
  // The f16 bits of d.
  uint16_t (*scale)(const uint8_t* block);
  // Group 0 ... 7 of a super-block.
  void (*group)(const uint8_t* block, int group, IqGroup* out);
};

// Null for other types.
const IqFormat* FindIqFormat(WeightType type);

}  // namespace layover

#endif  // LAYOVER_KERNELS_IQ_BLOCKS_H_
