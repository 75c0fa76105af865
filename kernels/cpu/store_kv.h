// StoreKv on the CPU: rows are encoded (kv_codec.h) and laid into their pages (kv_pages.h), 16 rows at a time.
#ifndef LAYOVER_KERNELS_CPU_STORE_KV_H_
#define LAYOVER_KERNELS_CPU_STORE_KV_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layover {

class CpuStoreKv {
 public:
  CpuStoreKv(CpuIsa isa, int threads) : isa_(isa), scratch_(threads) {}
  void Run(const StoreKvArgs& args, ThreadPool* pool);

 private:
  struct Piece {
    int row = 0;    // first row of the step
    int count = 0;  // up to 16 rows, all of one page
    int page = 0;
    int slot = 0;  // of the first row in the page
  };

  const CpuIsa isa_;
  std::vector<Piece> pieces_;                  // of the running call
  std::vector<std::vector<uint8_t>> scratch_;  // per thread: canonical rows
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_STORE_KV_H_
