// Host memory that a device's copies go through again and again: whole pages, page-locked where the device gains by it.
#ifndef LAYOVER_STAGE_WORKER_PINNED_MEMORY_H_
#define LAYOVER_STAGE_WORKER_PINNED_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "kernels/ops.h"

namespace layover {

class PinnedMemory {
 public:
  PinnedMemory(Device& device, size_t bytes) : device_(device) {
    bytes_ = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;  // no page is shared with what is not locked
    data_ = std::aligned_alloc(kPageBytes, bytes_);
    LAYOVER_CHECK(data_ != nullptr || bytes_ == 0);
    std::memset(data_, 0, bytes_);
    pinned_ = bytes_ > 0 && device_.PinHost(data_, bytes_);
  }
  ~PinnedMemory() {
    if (pinned_) device_.UnpinHost(data_);
    std::free(data_);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const { return static_cast<T*>(data_); }

 private:
  static constexpr size_t kPageBytes = 4096;
  Device& device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_PINNED_MEMORY_H_
