// Attention on the CPU: cuts a step into tasks, spreads them over the pool, and merges where a task was one part of a
// query's keys. The arithmetic is in attention_kernel.inc; kernels/README.md states its order.
#ifndef LAYOVER_KERNELS_CPU_ATTENTION_H_
#define LAYOVER_KERNELS_CPU_ATTENTION_H_

#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layover {

class CpuAttention {
 public:
  CpuAttention(CpuIsa isa, int threads);
  ~CpuAttention();
  void Run(const AttentionArgs& args, ThreadPool* pool);

 private:
  struct State;
  std::unique_ptr<State> state_;  // task list and scratch, kept from call to call
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_ATTENTION_H_
