// Hand-over of pieces by one atomic word, sleeping by futex (std::atomic::wait).
#include "kernels/cpu/thread_pool.h"

#include "common/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace layover {
namespace {

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint64_t kPiecesMask = 0xffffffff;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  LAYOVER_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads) - 1);
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(const Job& job) {
  const uint32_t pieces = static_cast<uint32_t>((job.items + job.grain - 1) / job.grain);
  job_ = job;
  unfinished_.store(static_cast<int>(pieces), std::memory_order_relaxed);
  const uint64_t number = (tickets_.load(std::memory_order_relaxed) >> 32) + 1;
  tickets_.store(number << 32 | pieces, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  while (RunOnePiece(0)) {
  }
  int left = unfinished_.load(std::memory_order_acquire);
  for (int spin = 0; left != 0 && spin < kSpinPauses; ++spin) {
    Pause();
    left = unfinished_.load(std::memory_order_acquire);
  }
  while (left != 0) {
    unfinished_.wait(left, std::memory_order_acquire);
    left = unfinished_.load(std::memory_order_acquire);
  }
}

bool ThreadPool::RunOnePiece(int thread) {
  uint64_t tickets = tickets_.load(std::memory_order_acquire);
  do {
    if ((tickets & kPiecesMask) == 0) return false;
  } while (!tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acquire));
  // Until this piece is counted as done, Run cannot return, so job_ stays what it is.
  const int pieces = (job_.items + job_.grain - 1) / job_.grain;
  const int begin = (pieces - static_cast<int>(tickets & kPiecesMask)) * job_.grain;
  job_.call(job_.context, begin, std::min(job_.items, begin + job_.grain), thread);
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  return true;
}

void ThreadPool::WorkerLoop(int thread) {
  while (!stop_.load(std::memory_order_acquire)) {
    const int seen = wake_.load(std::memory_order_acquire);
    bool worked = RunOnePiece(thread);
    for (int spin = 0; !worked && spin < kSpinPauses; ++spin) {
      Pause();
      worked = RunOnePiece(thread);
    }
    // A job that came after `seen` was read has changed wake_, and the wait ends at once.
    if (!worked) wake_.wait(seen, std::memory_order_acquire);
  }
}

}  // namespace layover
