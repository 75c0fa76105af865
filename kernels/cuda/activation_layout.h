// Prepared activations on the card. kF32: the rows, without stride. kA16, per row of `dim` values in blocks of 32:
//   values [dim / 32][64]   int8 high[32], low[32]: a = 256 * high + low, |a| <= 32639
//   blocks [dim / 32]       A16Info
// The numbers are those of kernels/cpu/activation.h.
#ifndef LAYOVER_KERNELS_CUDA_ACTIVATION_LAYOUT_H_
#define LAYOVER_KERNELS_CUDA_ACTIVATION_LAYOUT_H_

#include <cstdint>

namespace layover::gpu {

inline constexpr int kA16ValueBytes = 64;  // of a block

struct alignas(16) A16Info {
  float scale;
  float scaled_sum;   // float(sum of a) * scale
  int32_t first_sum;  // of a, columns 0 to 15
  int32_t second_sum;
};

inline constexpr int kA16BlockBytes = kA16ValueBytes + static_cast<int>(sizeof(A16Info));

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_ACTIVATION_LAYOUT_H_
