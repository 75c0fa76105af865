// Picks the row operations of an instruction set.
#include "kernels/cpu/row_ops.h"

namespace layover {

namespace scalar {
extern const CpuRowOps kRowOps;
}
#if defined(__x86_64__)
namespace avx2 {
extern const CpuRowOps kRowOps;
}
namespace avx512 {
extern const CpuRowOps kRowOps;
}
#endif

const CpuRowOps& CpuRowOpsFor(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return avx512::kRowOps;
  if (isa == CpuIsa::kAvx2) return avx2::kRowOps;
#endif
  return scalar::kRowOps;
}

}  // namespace layover
