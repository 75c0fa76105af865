#include "kernels/cpu/prefault.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "kernels/cpu/kv_pages.h"

namespace layover {
namespace {

constexpr int kNiceness = 10;  // what it does early must not delay what is due now

}  // namespace

MemoryRange AheadOf(MemoryRange pool, const uint8_t* page, size_t page_bytes) {
  const auto huge_page_of = [](const uint8_t* byte) { return reinterpret_cast<uintptr_t>(byte) / kHugePageBytes; };
  const uintptr_t last = huge_page_of(page + page_bytes - 1);
  if (reinterpret_cast<uintptr_t>(page) > last * kHugePageBytes) return {};
  auto* const next = reinterpret_cast<uint8_t*>((last + 1) * kHugePageBytes);
  uint8_t* const pool_end = pool.begin + pool.bytes;
  if (next >= pool_end) return {};
  return {next, std::min(kHugePageBytes, static_cast<size_t>(pool_end - next))};
}

Prefault::~Prefault() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Prefault::Fetch(MemoryRange range) {
  if (range.bytes == 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_.push_back(range);
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  }
  changed_.notify_all();
}

void Prefault::PageTaken(const KvLayer& cache, int page) {
  const size_t page_bytes = CpuKvHeadBytes(cache.type, cache.head_dim) * static_cast<size_t>(cache.kv_heads);
  for (void* pool : {cache.k_pool, cache.v_pool}) {
    const MemoryRange all{static_cast<uint8_t*>(pool), page_bytes * static_cast<size_t>(cache.n_pages)};
    Fetch(AheadOf(all, CpuKvHead(pool, cache, page, 0), page_bytes));
  }
}

void Prefault::Loop() {
  (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNiceness);  // on Linux: of this thread
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !ranges_.empty(); });
    if (stop_) return;
    const MemoryRange range = ranges_.front();
    ranges_.pop_front();
    lock.unlock();
    // Unlike a write of zeros it leaves a page alone that somebody has filled meanwhile. An error (an old kernel, no
    // memory, a pool that is gone) means only that the step will have to wait.
    (void)madvise(range.begin, range.bytes, MADV_POPULATE_WRITE);
    lock.lock();
  }
}

}  // namespace layover
