// Spreads short pieces of work over a few threads and waits for all of them: digests and copies of a save or restore,
// while the disk works on the next blocks.
#ifndef LAYOVER_COMMON_STORAGE_FORK_JOIN_H_
#define LAYOVER_COMMON_STORAGE_FORK_JOIN_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace layover {

class ForkJoin {
 public:
  explicit ForkJoin(int threads);  // the caller's own is one of them
  ~ForkJoin();

  // Calls work(i) once for every i in [0, count), in any order and on any of the threads; returns when all are done.
  void Run(size_t count, const std::function<void(size_t)>& work);

 private:
  void Help();
  void TakeAll(const std::function<void(size_t)>& work, size_t count);

  std::mutex mutex_;
  std::condition_variable started_;
  std::condition_variable finished_;
  const std::function<void(size_t)>* work_ = nullptr;  // guarded by mutex_
  size_t count_ = 0;                                   // guarded by mutex_
  uint64_t round_ = 0;                                 // guarded by mutex_
  size_t busy_ = 0;                                    // helpers still in this round, guarded by mutex_
  bool stopping_ = false;                              // guarded by mutex_
  std::atomic<size_t> next_{0};
  std::vector<std::thread> helpers_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_FORK_JOIN_H_
