// What recurrent_ops.cc hands to the kernels of one instruction set. Included by per-ISA files: plain structs only.
#ifndef LAYOVER_KERNELS_CPU_RECURRENT_KERNELS_H_
#define LAYOVER_KERNELS_CPU_RECURRENT_KERNELS_H_

#include "kernels/ops.h"

namespace layover {

// Channels [begin, end) of one slice of a CausalConv.
struct CausalConvPiece {
  int slice = 0;
  int begin = 0;
  int end = 0;
};

// Value columns [begin, end) of one slice and value head of a GatedDeltaNet.
struct DeltaNetPiece {
  int slice = 0;
  int head = 0;
  int begin = 0;
  int end = 0;
  float* scratch = nullptr;  // DeltaNetScratchFloats(dim)
};

// Tokens whose normalised keys and queries a piece keeps at hand: few enough for the L2 cache.
inline constexpr int kDeltaNetTokens = 32;
// Keys and queries [tokens, dim rounded up to 16] each, then decays and betas [tokens] each.
inline constexpr int DeltaNetScratchFloats(int dim) {
  return kDeltaNetTokens * (2 * ((dim + 15) / 16 * 16) + 2);
}

struct CpuRecurrentKernels {
  void (*causal_conv)(const CausalConvArgs& args, const CausalConvPiece& piece);
  void (*delta_net)(const GatedDeltaNetArgs& args, const DeltaNetPiece& piece);
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_RECURRENT_KERNELS_H_
