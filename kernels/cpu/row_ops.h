// The operations that look at one row at a time: RmsNorm, RopeAngles, Rope, Gated, MoeRoute, MoeCombine. Contracts in
// ops.h; each function does rows [row_begin, row_end) of its arguments, so the caller may spread them over threads.
#ifndef LAYOVER_KERNELS_CPU_ROW_OPS_H_
#define LAYOVER_KERNELS_CPU_ROW_OPS_H_

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

namespace layover {

struct CpuRowOps {
  void (*rms_norm)(const RmsNormArgs& args, int row_begin, int row_end);
  void (*rope_angles)(const RopeAnglesArgs& args, int row_begin, int row_end);
  void (*rope)(const RopeArgs& args, int row_begin, int row_end);
  void (*gated)(const GatedArgs& args, int row_begin, int row_end);
  void (*moe_route)(const MoeRouteArgs& args, int row_begin, int row_end);
  void (*moe_combine)(const MoeCombineArgs& args, int row_begin, int row_end);
};

const CpuRowOps& CpuRowOpsFor(CpuIsa isa);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_ROW_OPS_H_
