// The constants of the CPU back end's own exp, sin and cos. They are part of the arithmetic contract: another digit is
// another numerics fingerprint. Minimax polynomials (Remez), coefficients rounded to the type.
#ifndef LAYOVER_KERNELS_CPU_MATH_TABLES_H_
#define LAYOVER_KERNELS_CPU_MATH_TABLES_H_

namespace layover {

inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e43p-1f;
inline constexpr float kLn2Low = -0x1.05c61p-29f;
// e^r = 1 + r + r^2 * sum of c[i] r^i, |r| <= ln 2 / 2, relative error 3.1e-9
inline constexpr float kExpPolynomial[5] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558fp-5f, 0x1.1239d4p-7f,
                                            0x1.6a248p-10f};

inline constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
inline constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;
inline constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;
// With z = r^2, |r| <= pi / 4: sin r = r + r z * sum of s[i] z^i, cos r = 1 - z / 2 + z^2 * sum of c[i] z^i
inline constexpr double kSinPolynomial[6] = {-0x1.5555555555549p-3, 0x1.111111110f881p-7,   -0x1.a01a019c126f5p-13,
                                             0x1.71de3578774eap-19, -0x1.ae5e66d6b503dp-26, 0x1.5d932fb3a37b2p-33};
inline constexpr double kCosPolynomial[6] = {0x1.555555555554cp-5,   -0x1.6c16c16c15184p-10, 0x1.a01a019cb270bp-16,
                                             -0x1.27e4f80a7738ep-22, 0x1.1ee9ec48189a6p-29,  -0x1.8faecf50e7ee8p-37};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATH_TABLES_H_
