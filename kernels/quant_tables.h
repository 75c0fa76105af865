// Small tables and bit fields of GGUF's quantised types that dequantisation and packing share.
#ifndef LAYOVER_KERNELS_QUANT_TABLES_H_
#define LAYOVER_KERNELS_QUANT_TABLES_H_

#include <cstdint>

namespace layover {

// IQ4_NL and IQ4_XS.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// MXFP4: E2M1 values doubled; the scale is halved in turn, so that exponents 0 and 1 end as float32 subnormals.
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(exponent - 128) as bfloat16, subnormal below 2.
inline uint16_t Mxfp4ScaleBits(uint8_t exponent) {
  return static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

// The twelve bytes of 6-bit scales and minima that Q4_K and Q5_K share; g is the group of 32.
inline int KScale(const uint8_t* s, int g) {
  return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
}
inline int KMinimum(const uint8_t* s, int g) {
  return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
}

// The twelve bytes of Q3_K's scales; k is the group of 16.
inline int Q3Scale(const uint8_t* s, int k) {
  const int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
  const int high = s[8 + k % 4] >> (2 * (k / 4)) & 3;
  return (low | high << 4) - 32;
}

// IQ4_XS: sh, the two bytes of high bits; sl, the four of low ones; g is the group of 32.
inline int Iq4Scale(uint16_t sh, const uint8_t* sl, int g) {
  return ((sl[g / 2] >> (4 * (g & 1)) & 15) | (sh >> (2 * g) & 3) << 4) - 32;
}

}  // namespace layover

#endif  // LAYOVER_KERNELS_QUANT_TABLES_H_
