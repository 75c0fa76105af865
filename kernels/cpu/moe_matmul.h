// MoeMatMul on the CPU: the choices of all rows are sorted by expert, so that each expert's weights are read once per
// step whatever the number of rows, and every expert's rows go through the products of matmul.h. The bits are those of
// MatMul with that expert alone.
#ifndef LAYOVER_KERNELS_CPU_MOE_MATMUL_H_
#define LAYOVER_KERNELS_CPU_MOE_MATMUL_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layover {

class CpuMoeMatMul {
 public:
  CpuMoeMatMul(CpuIsa isa, int threads);
  void Run(const MoeMatMulArgs& args, ThreadPool* pool);

 private:
  // Choices [begin, begin + count) of by_expert_, all of one expert.
  struct Block {
    int expert = 0;
    int begin = 0;
    int count = 0;
  };

  void SortByExpert(const MoeMatMulArgs& args);
  void RunBlock(const MoeMatMulArgs& args, const Block& block, int column_begin, int column_end,
                std::vector<uint8_t>* gathered) const;

  const CpuIsa isa_;
  std::vector<int32_t> first_;      // per expert, where its choices begin
  std::vector<int32_t> by_expert_;  // choices row * k + j
  std::vector<Block> blocks_;
  std::vector<std::vector<uint8_t>> gathered_;  // per thread: the rows of a block, back to back
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MOE_MATMUL_H_
