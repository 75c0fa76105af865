#include "common/storage/io_queue.h"

#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

class UringQueue : public IoQueue {
 public:
  static absl::StatusOr<std::unique_ptr<IoQueue>> Create() {
    auto queue = std::make_unique<UringQueue>();
    const int error = io_uring_queue_init(limits::kIoBuffers, &queue->ring_, 0);
    if (error < 0) return ErrnoStatus(-error, "io_uring");
    queue->ready_ = true;
    return queue;
  }

  ~UringQueue() override {
    if (ready_) io_uring_queue_exit(&ring_);
  }

  void Submit(const IoRequest& request) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    LAYOVER_CHECK(entry != nullptr);
    const auto bytes = static_cast<unsigned>(request.bytes);
    if (request.write) {
      io_uring_prep_write(entry, request.fd, request.data, bytes, request.offset);
    } else {
      io_uring_prep_read(entry, request.fd, request.data, bytes, request.offset);
    }
    io_uring_sqe_set_data64(entry, request.tag);
    int result;
    do {
      result = io_uring_submit(&ring_);
    } while (result == -EINTR || result == -EAGAIN || result == -EBUSY);  // short of kernel memory for a moment
    LAYOVER_CHECK(result == 1);
  }

  IoCompletion Wait() override {
    io_uring_cqe* entry = nullptr;
    int result;
    do {
      result = io_uring_wait_cqe(&ring_, &entry);
    } while (result == -EINTR || result == -EAGAIN);
    LAYOVER_CHECK(result == 0);
    return Take(entry);
  }

  std::optional<IoCompletion> Poll() override {
    io_uring_cqe* entry = nullptr;
    if (io_uring_peek_cqe(&ring_, &entry) != 0) return std::nullopt;
    return Take(entry);
  }

 private:
  IoCompletion Take(io_uring_cqe* entry) {
    const IoCompletion completion{io_uring_cqe_get_data64(entry), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return completion;
  }

  io_uring ring_;
  bool ready_ = false;
};

class ThreadQueue : public IoQueue {
 public:
  ThreadQueue() {
    for (int i = 0; i < limits::kIoReadsInFlight; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~ThreadQueue() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    todo_changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(const IoRequest& request) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      todo_.push_back(request);
    }
    todo_changed_.notify_one();
  }

  IoCompletion Wait() override {
    std::unique_lock<std::mutex> lock(mutex_);
    done_changed_.wait(lock, [this] { return !done_.empty(); });
    return TakeFirst();
  }

  std::optional<IoCompletion> Poll() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_.empty()) return std::nullopt;
    return TakeFirst();
  }

 private:
  IoCompletion TakeFirst() {
    const IoCompletion completion = done_.front();
    done_.pop_front();
    return completion;
  }

  static int64_t Run(const IoRequest& request) {
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t moved = request.write ? pwrite(request.fd, request.data, request.bytes, offset)
                                        : pread(request.fd, request.data, request.bytes, offset);
    return moved < 0 ? -errno : moved;
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      todo_changed_.wait(lock, [this] { return stopping_ || !todo_.empty(); });
      if (todo_.empty()) return;
      const IoRequest request = todo_.front();
      todo_.pop_front();
      lock.unlock();
      const IoCompletion completion{request.tag, Run(request)};
      lock.lock();
      done_.push_back(completion);
      done_changed_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable todo_changed_;
  std::condition_variable done_changed_;
  std::deque<IoRequest> todo_;     // guarded by mutex_
  std::deque<IoCompletion> done_;  // guarded by mutex_
  bool stopping_ = false;          // guarded by mutex_
  std::vector<std::thread> threads_;
};

// Buffers of the usual size whose owner is done, for the next one: the system clears a new huge page, which costs a
// save as much as digesting what goes through it. At most as many as one reader or writer uses; they hold old bytes.
class SpareBuffers {
 public:
  static SpareBuffers& Get() {
    static auto* const spare = new SpareBuffers();
    return *spare;
  }
  bool Keep(std::byte* buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (buffers_.size() == limits::kIoBuffers) return false;
    buffers_.push_back(buffer);
    return true;
  }
  std::byte* Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (buffers_.empty()) return nullptr;
    std::byte* const buffer = buffers_.back();
    buffers_.pop_back();
    return buffer;
  }

 private:
  std::mutex mutex_;
  std::vector<std::byte*> buffers_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> IoQueue::Create(IoEngine engine) {
  if (engine == IoEngine::kAuto) {
    const char* wish = std::getenv("LAYOVER_IO");
    if (wish != nullptr && std::string_view(wish) == "threads") engine = IoEngine::kThreads;
    if (wish != nullptr && std::string_view(wish) == "uring") engine = IoEngine::kUring;
  }
  if (engine != IoEngine::kThreads) {
    absl::StatusOr<std::unique_ptr<IoQueue>> queue = UringQueue::Create();
    if (queue.ok() || engine == IoEngine::kUring) return queue;
  }
  return std::make_unique<ThreadQueue>();
}

IoBuffer::~IoBuffer() {
  Release();
}

void IoBuffer::Release() {
  if (data_ == nullptr) return;
  if (source_ != nullptr) {
    source_->Give({data_, capacity_});
  } else if (capacity_ != limits::kIoBufferBytes || !SpareBuffers::Get().Keep(data_)) {
    munmap(data_, capacity_);
  }
  data_ = nullptr;
  capacity_ = 0;
}

absl::Status IoBuffer::Grow(size_t bytes, size_t keep) {
  if (bytes <= capacity_) return absl::OkStatus();
  if (source_ != nullptr) {
    ASSIGN_OR_RETURN(const std::span<std::byte> taken, source_->Take(bytes));
    Replace(taken, keep);
    return absl::OkStatus();
  }
  // Small ones stay small: to open a segment takes a few blocks, and a huge page must be zeroed whole.
  const size_t rounded = bytes < limits::kIoBufferBytes
                             ? std::bit_ceil(bytes)
                             : (bytes + limits::kIoBufferBytes - 1) / limits::kIoBufferBytes * limits::kIoBufferBytes;
  void* memory = rounded == limits::kIoBufferBytes ? SpareBuffers::Get().Take() : nullptr;
  if (memory == nullptr) {
    memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ResourceExhausted("no memory for a disk buffer of {} bytes", rounded);
    madvise(memory, rounded, MADV_HUGEPAGE);  // fewer pages to pin per request; only a wish
  }
  Replace({static_cast<std::byte*>(memory), rounded}, keep);
  return absl::OkStatus();
}

void IoBuffer::Replace(std::span<std::byte> memory, size_t keep) {
  if (keep > 0) std::memcpy(memory.data(), data_, keep);
  Release();
  data_ = memory.data();
  capacity_ = memory.size();
}

}  // namespace layover
