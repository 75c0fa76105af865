// Block requests in flight, in whatever order they finish: io_uring, or a few threads where that is not allowed.
#ifndef LAYOVER_COMMON_STORAGE_IO_QUEUE_H_
#define LAYOVER_COMMON_STORAGE_IO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/block_io.h"

namespace layover {

struct IoRequest {
  bool write = false;
  int fd = -1;
  std::byte* data = nullptr;  // stays valid until the completion
  size_t bytes = 0;
  uint64_t offset = 0;
  uint64_t tag = 0;  // comes back with the completion
};

struct IoCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes moved (may be fewer than asked), or -errno
};

// For one thread. At most limits::kIoBuffers requests are in flight.
class IoQueue {
 public:
  static absl::StatusOr<std::unique_ptr<IoQueue>> Create(IoEngine engine);
  virtual ~IoQueue() = default;

  virtual void Submit(const IoRequest& request) = 0;
  // Blocks until one is done; there must be one in flight.
  virtual IoCompletion Wait() = 0;
  // One that is done already, if there is one.
  virtual std::optional<IoCompletion> Poll() = 0;
};

// Page-aligned memory for direct I/O, in huge pages where the system gives them; or a source's.
class IoBuffer {
 public:
  IoBuffer() = default;
  IoBuffer(const IoBuffer&) = delete;
  IoBuffer& operator=(const IoBuffer&) = delete;
  ~IoBuffer();

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  // At least `bytes`, with the first `keep` bytes as they were. ResourceExhausted if there is no memory.
  absl::Status Grow(size_t bytes, size_t keep);
  void Release();
  // Before it has any memory. It outlives the buffer; null: the system.
  void SetSource(IoMemory* source) { source_ = source; }

 private:
  void Replace(std::span<std::byte> memory, size_t keep);

  IoMemory* source_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_IO_QUEUE_H_
