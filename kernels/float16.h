// IEEE half and bfloat16 to and from float32, exact and the same everywhere. Subnormals are kept.
//
// Not for the *_avx2.cc and *_avx512.cc files: an inline function compiled there could be the copy that the linker
// keeps for the whole program, and then run on a machine without those instructions.
#ifndef LAYOVER_KERNELS_FLOAT16_H_
#define LAYOVER_KERNELS_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace layover {

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fffu;
  if (rest < 0x0400) {  // zero or subnormal: rest * 2^-24, exact
    const float value = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (rest >= 0x7c00)
    return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00 ? 0x400000u : 0u));
  return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
}

// To nearest even; too large becomes infinity, a NaN stays one and becomes quiet. As VCVTPS2PH does.
inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 2^16 or above
  if (magnitude < 0x38800000u) {
    // Subnormal half: adding 0.5 leaves value * 2^24, rounded to even, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

inline float Bfloat16ToFloat(uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat16) << 16);
}

}  // namespace layover

#endif  // LAYOVER_KERNELS_FLOAT16_H_
