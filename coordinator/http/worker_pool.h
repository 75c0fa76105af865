// A few threads and a bounded queue: where request handlers run, so that none of them holds up the I/O thread.
#ifndef LAYOVER_COORDINATOR_HTTP_WORKER_POOL_H_
#define LAYOVER_COORDINATOR_HTTP_WORKER_POOL_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace layover {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_queued);
  ~WorkerPool();  // Stop()

  // False when the queue is full or the pool has stopped; the task is then dropped.
  bool Submit(std::function<void()> task);
  // Lets running tasks end, drops queued ones, joins the threads.
  void Stop();

 private:
  void Run();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_WORKER_POOL_H_
