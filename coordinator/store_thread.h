// One thread that does the slow things with files, in the order they were asked: journal appends and syncs, manifests,
// removals. What comes after runs on the engine's thread again, through its inbox.
#ifndef LAYOVER_COORDINATOR_STORE_THREAD_H_
#define LAYOVER_COORDINATOR_STORE_THREAD_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "common/mailbox.h"

namespace layover {

using Task = std::function<void()>;

class StoreThread {
 public:
  explicit StoreThread(Mailbox<Task>* engine_inbox);
  ~StoreThread();  // after all that was asked is done

  // `work` here, then `then(result)` on the engine's thread.
  template <typename Work, typename Then>
  void Do(Work work, Then then) {
    Post([this, work = std::move(work), then = std::move(then)]() mutable {
      auto result = std::make_shared<decltype(work())>(work());
      engine_inbox_->Put([result, then = std::move(then)]() mutable { then(std::move(*result)); });
    });
  }
  // `work` with nothing to follow.
  void Post(Task work);

 private:
  void Loop();

  Mailbox<Task>* const engine_inbox_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // guarded by mutex_
  bool stop_ = false;       // guarded by mutex_
  std::thread thread_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_STORE_THREAD_H_
