// Host memory that copies between a device and the host go through: a few large buffers, page-locked once for all if
// the device can make use of that, and then lent out again and again. Segments are read and written in them; what a
// session is parked in is ordinary memory, which is copied from and to them.
//
// Locking a page stops the device for a moment and an unlocked one makes each copy a detour of the driver's, so neither
// happens while steps run.
#ifndef LAYOVER_STAGE_WORKER_COPY_BUFFERS_H_
#define LAYOVER_STAGE_WORKER_COPY_BUFFERS_H_

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/storage/block_io.h"
#include "kernels/ops.h"

namespace layover {

class CopyBuffers : public IoMemory {
 public:
  // `count` buffers of `bytes`, which is a multiple of limits::kIoBufferBytes. If the device does not lock them, or the
  // system does not let it, they are ordinary memory. Null if there is no memory for them. The device outlives them.
  static std::unique_ptr<CopyBuffers> Create(Device& device, size_t count, size_t bytes);
  ~CopyBuffers() override;

  size_t buffer_bytes() const { return bytes_; }
  // One of the buffers; ordinary memory if that is too small, or if all are lent.
  absl::StatusOr<std::span<std::byte>> Take(size_t bytes) override;
  void Give(std::span<std::byte> memory) override;

 private:
  CopyBuffers(Device& device, std::span<std::byte> all, size_t bytes);
  bool IsOurs(const std::byte* memory) const { return memory >= all_.data() && memory < all_.data() + all_.size(); }

  Device& device_;
  const std::span<std::byte> all_;
  const size_t bytes_;
  const bool pinned_;
  std::mutex mutex_;
  std::vector<std::byte*> free_;  // guarded by mutex_
};

// Pieces in stream order between a device and ordinary host memory, by way of two buffers: while one is copied from or
// to the device, the other is emptied or filled. Without buffers (null, or none left) pieces are copied where they are.
class PieceCopier {
 public:
  PieceCopier(Stream& stream, CopyBuffers* buffers);
  ~PieceCopier();  // waits until nothing is copied any more
  PieceCopier(const PieceCopier&) = delete;
  PieceCopier& operator=(const PieceCopier&) = delete;

  // `read` puts into the stream what fills `to`; `write` what takes `from` to the device. `to` is filled, and
  // may go, when Finish has returned; `from` may go at once if there are buffers, else then.
  void Read(std::span<std::byte> to, const std::function<void(Stream& stream, std::byte* room)>& read);
  void Write(std::span<const std::byte> from, const std::function<void(Stream& stream, const std::byte* bytes)>& write);
  absl::Status Finish();

 private:
  struct Side {
    std::span<std::byte> buffer;
    size_t used = 0;
    std::vector<std::pair<const std::byte*, std::span<std::byte>>> reads;  // from the buffer to where they belong
    std::unique_ptr<Event> copied;                                         // all that the stream does with it
  };
  // Room in the current buffer, or in the other once that is free; null if neither is large enough.
  std::byte* Room(size_t bytes);
  void Empty(Side* side);

  Stream& stream_;
  CopyBuffers* const buffers_;
  std::array<Side, 2> sides_;
  size_t current_ = 0;
};

// Until the event has come true, and whatever the stream's error is.
void WaitFor(const Event& event);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_COPY_BUFFERS_H_
