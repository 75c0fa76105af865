// Asks the system for the memory of K/V pools a little before it is needed.
//
// A pool is a mapping that costs nothing until touched. All layers' pools reach their next huge page in the same step,
// and that step would wait while the system clears one for each of them: a pause of hundreds of milliseconds in every
// stream on a virtual machine. So the first page taken from a huge page has the one behind it fetched by a thread of
// its own. It changes no byte: where it comes late, the step takes the memory itself.
#ifndef LAYOVER_KERNELS_CPU_PREFAULT_H_
#define LAYOVER_KERNELS_CPU_PREFAULT_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "kernels/ops.h"

namespace layover {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

struct MemoryRange {
  uint8_t* begin = nullptr;
  size_t bytes = 0;

  bool operator==(const MemoryRange&) const = default;
};

// What to fetch now that the `page_bytes` at `page` are taken from `pool`: the next huge page, if this page is the
// first in its own and the pool goes on behind it; else nothing (0 bytes).
MemoryRange AheadOf(MemoryRange pool, const uint8_t* page, size_t page_bytes);

class Prefault {
 public:
  Prefault() = default;
  ~Prefault();

  // Any thread. The range may be unmapped at any time.
  void Fetch(MemoryRange range);
  // `page` of both pools is taken.
  void PageTaken(const KvLayer& cache, int page);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MemoryRange> ranges_;  // guarded by mutex_
  bool stop_ = false;               // guarded by mutex_
  std::thread thread_;              // started by the first Fetch, under mutex_
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_PREFAULT_H_
