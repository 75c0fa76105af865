// The per-ISA parts of PrepareActivation. Included by per-ISA files: declarations and constants only.
#ifndef LAYOVER_KERNELS_CPU_ACTIVATION_KERNELS_H_
#define LAYOVER_KERNELS_CPU_ACTIVATION_KERNELS_H_

#include <cstdint>

namespace layover {

inline constexpr float kA16Max = 32639.0f;                      // 127 * 256 + 127, so that the high half fits int8
inline constexpr uint32_t kA16SmallestMaximumBits = 27u << 23;  // 2^-100: below, a block is zero
inline constexpr uint32_t kFloatInfinityBits = 0x7f800000u;
inline constexpr uint32_t kFloatNanBits = 0x7fc00000u;

// One row of dim values (a multiple of 32) into the layout of activation.h.
void PrepareA16RowScalar(const float* x, int dim, uint8_t* out);
void PrepareA16RowAvx2(const float* x, int dim, uint8_t* out);
void PrepareA16RowAvx512(const float* x, int dim, uint8_t* out);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_ACTIVATION_KERNELS_H_
