// The lane functions of kernels/cpu/simd.h on arrays of a multiple of 16 values, compiled per instruction set
// (simd_probe_<isa>.cc), so that tests can look at them one by one.
#ifndef LAYOVER_TESTS_KERNELS_SIMD_PROBE_H_
#define LAYOVER_TESTS_KERNELS_SIMD_PROBE_H_

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace layover {

struct SimdProbe {
  void (*exp)(const float* x, int n, float* out);
  void (*to_half)(const float* x, int n, uint16_t* out);
  void (*from_half)(const uint16_t* x, int n, float* out);
  float (*reduce_add)(const float* x);  // 16 values
  float (*reduce_max)(const float* x);
  void (*select_range)(int begin, int end, const float* inside, const float* outside, float* out);
  void (*split_and_join_pairs)(const float* x, float* even, float* odd, float* joined);  // 32 values
};

namespace scalar {
extern const SimdProbe kSimdProbe;
}
namespace avx2 {
extern const SimdProbe kSimdProbe;
}
namespace avx512 {
extern const SimdProbe kSimdProbe;
}

}  // namespace layover

#endif  // LAYOVER_TESTS_KERNELS_SIMD_PROBE_H_
