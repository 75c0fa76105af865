#include "common/storage/fork_join.h"

namespace layover {

ForkJoin::ForkJoin(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
}

ForkJoin::~ForkJoin() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  started_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ForkJoin::Run(size_t count, const std::function<void(size_t)>& work) {
  if (helpers_.empty() || count < 2) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    busy_ = helpers_.size();
    ++round_;
  }
  started_.notify_all();
  TakeAll(work, count);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [this] { return busy_ == 0; });
}

void ForkJoin::Help() {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    started_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    const std::function<void(size_t)>& work = *work_;
    const size_t count = count_;
    lock.unlock();
    TakeAll(work, count);
    lock.lock();
    if (--busy_ == 0) finished_.notify_one();
  }
}

void ForkJoin::TakeAll(const std::function<void(size_t)>& work, size_t count) {
  for (size_t i = next_++; i < count; i = next_++) work(i);
}

}  // namespace layover
