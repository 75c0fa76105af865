// The recurrent layers of hybrid models: CausalConv and GatedDeltaNet. Contracts in ops.h, the order of every sum in
// kernels/README.md. Work is cut by slices and channels or value columns, never along tokens or sums, so the bits
// depend neither on the cut nor on how a sequence is divided into steps.
#ifndef LAYOVER_KERNELS_CPU_RECURRENT_OPS_H_
#define LAYOVER_KERNELS_CPU_RECURRENT_OPS_H_

#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/recurrent_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layover {

class CpuRecurrentOps {
 public:
  CpuRecurrentOps(CpuIsa isa, int threads);
  void CausalConv(const CausalConvArgs& args, ThreadPool* pool);
  void GatedDeltaNet(const GatedDeltaNetArgs& args, ThreadPool* pool);

 private:
  const CpuRecurrentKernels& kernels_;
  std::vector<std::vector<float>> scratch_;  // per thread
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_RECURRENT_OPS_H_
