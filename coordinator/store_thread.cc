#include "coordinator/store_thread.h"

namespace layover {

StoreThread::StoreThread(Mailbox<Task>* engine_inbox) : engine_inbox_(engine_inbox), thread_([this] { Loop(); }) {}

StoreThread::~StoreThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StoreThread::Post(Task work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void StoreThread::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace layover
