// A queue between threads whose reader waits in a poll: the writer adds under a lock and rings an eventfd.
#ifndef LAYOVER_COMMON_MAILBOX_H_
#define LAYOVER_COMMON_MAILBOX_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "common/check.h"

namespace layover {

template <typename T>
class Mailbox {
 public:
  Mailbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { LAYOVER_CHECK(fd_ >= 0); }
  ~Mailbox() { close(fd_); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Any thread.
  void Put(T item) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      items_.push_back(std::move(item));
    }
    const uint64_t one = 1;
    LAYOVER_CHECK(write(fd_, &one, sizeof(one)) == sizeof(one));
  }

  // The reader: everything so far, in order; the descriptor is quiet afterwards until the next Put.
  std::deque<T> TakeAll() {
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = read(fd_, &count, sizeof(count));
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(items_, {});
  }

  int fd() const { return fd_; }  // readable while something waits

 private:
  const int fd_;
  std::mutex mutex_;
  std::deque<T> items_;  // guarded by mutex_
};

}  // namespace layover

#endif  // LAYOVER_COMMON_MAILBOX_H_
