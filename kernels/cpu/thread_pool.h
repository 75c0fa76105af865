// The threads of one compute stream. A step has hundreds of short operations, so handing out work must cost less than a
// microsecond: idle threads spin a little for the next operation (kSpinPauses, no more: with two threads on one core a
// long spin costs more than it saves), then sleep. With one thread there is no hand-over at all.
//
// Which thread runs which piece is left to chance; the bits of a result never depend on it, because pieces write
// disjoint outputs and no sum is split over pieces.
#ifndef LAYOVER_KERNELS_CPU_THREAD_POOL_H_
#define LAYOVER_KERNELS_CPU_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace layover {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of ForRanges; threads - 1 are started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) on ranges that together are [0, items), each at most `grain` long when there are
  // several threads; 0 <= thread < threads() and two calls at once never have the same. Returns when all are done.
  // One caller at a time; body must not throw or call ForRanges.
  template <typename Body>
  void ForRanges(int items, int grain, const Body& body) {
    if (items <= 0) return;
    grain = std::max(grain, 1);
    if (workers_.empty() || items <= grain) {
      body(0, items, 0);
      return;
    }
    const Job job{[](const void* context, int begin, int end, int thread) {
                    (*static_cast<const Body*>(context))(begin, end, thread);
                  },
                  &body, items, grain};
    Run(job);
  }

 private:
  struct Job {
    void (*call)(const void* context, int begin, int end, int thread) = nullptr;
    const void* context = nullptr;
    int items = 0;
    int grain = 1;
  };

  static constexpr int kSpinPauses = 2000;

  void Run(const Job& job);
  void WorkerLoop(int thread);
  bool RunOnePiece(int thread);

  // Job number in the high half, pieces not yet taken in the low half. Taking a piece is one compare-exchange on both,
  // so a thread that wakes up late can never take a piece of a job that is over: until the piece it took is done, the
  // job cannot end.
  alignas(64) std::atomic<uint64_t> tickets_{0};
  alignas(64) std::atomic<int> unfinished_{0};  // pieces not yet done
  alignas(64) std::atomic<int> wake_{0};        // goes up with every job; sleepers wait for it to change
  std::atomic<bool> stop_{false};
  Job job_;  // written before tickets_ is, read after a piece was taken
  std::vector<std::thread> workers_;
};

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_THREAD_POOL_H_
