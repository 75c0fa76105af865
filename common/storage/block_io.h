// Sequential direct I/O with several requests in flight: what segments are written and read with.
//
// io_uring and O_DIRECT where they are to be had; threads with pread/pwrite where io_uring is not allowed (containers
// often forbid it), buffered I/O where O_DIRECT is refused (tmpfs). Buffers are not registered, so RLIMIT_MEMLOCK does
// not matter. Offsets and lengths that reach the disk are multiples of limits::kBlockBytes.
#ifndef LAYOVER_COMMON_STORAGE_BLOCK_IO_H_
#define LAYOVER_COMMON_STORAGE_BLOCK_IO_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/limits.h"

namespace layover {

enum class IoEngine { kAuto, kUring, kThreads };

// Memory for the buffers of readers and writers whose owner cares what kind it is. Any thread.
class IoMemory {
 public:
  virtual ~IoMemory() = default;
  // At least `bytes`, page-aligned, with any bytes in it. ResourceExhausted if there is no memory.
  virtual absl::StatusOr<std::span<std::byte>> Take(size_t bytes) = 0;
  virtual void Give(std::span<std::byte> memory) = 0;  // what Take gave
};

struct BlockIoOptions {
  IoEngine engine = IoEngine::kAuto;              // kAuto: LAYOVER_IO=uring|threads, else io_uring if it works
  bool direct = true;                             // false: through the page cache
  size_t request_bytes = limits::kIoBufferBytes;  // of one request to the disk, where there is so much in one piece
  IoMemory* memory = nullptr;                     // outlives what it is given to; null: the buffers' own
};

// Writes one new file front to back. Not thread-safe. Destroyed unfinished: the file is removed.
class BlockWriter {
 public:
  // AlreadyExists if the file is there.
  static absl::StatusOr<std::unique_ptr<BlockWriter>> Create(const std::string& path, const BlockIoOptions& options);
  virtual ~BlockWriter() = default;

  // The next `bytes` of the file, for the caller to fill before the next call. Zeroed only where Pad says so.
  virtual absl::StatusOr<std::span<std::byte>> Reserve(size_t bytes) = 0;
  // Zero bytes up to the next multiple of `alignment` (at most limits::kBlockBytes).
  virtual absl::Status Pad(size_t alignment) = 0;
  // How much Reserve and Pad may still take, all together, without what they gave before becoming invalid.
  virtual size_t room() const = 0;
  // What there is goes to the disk as far as it is whole blocks; Reserve goes on in an empty buffer.
  virtual absl::Status NextBuffer() = 0;
  virtual uint64_t offset() const = 0;         // where the next Reserve begins
  virtual uint64_t bytes_written() const = 0;  // that reached the file
  // Everything written and synced, the folder's entry included. The length must be a multiple of the block.
  virtual absl::Status Finish() = 0;
  // Waits for what is in flight, closes and removes the file.
  virtual void Abandon() = 0;
};

struct Extent {
  uint64_t offset = 0;  // multiple of limits::kBlockBytes
  uint64_t bytes = 0;   // multiple of limits::kBlockBytes
};

// Of bytes that something still reads when their `use` has returned. `used` is called after each `use`; before those
// bytes go, at the latest before Read returns (whatever it returns), `wait` is called, once for each `used` in that
// order. `done` tells whether the next `wait` would return at once: if not, reading far ahead is put off.
struct ReadHold {
  std::function<void()> used;
  std::function<bool()> done;
  std::function<void()> wait;
};

// Reads extents of one file in the order given, the next ones already in flight. Not thread-safe.
class BlockReader {
 public:
  static absl::StatusOr<std::unique_ptr<BlockReader>> Open(const std::string& path, const BlockIoOptions& options);
  virtual ~BlockReader() = default;

  virtual uint64_t file_bytes() const = 0;
  virtual uint64_t bytes_read() const = 0;  // from the file, so far
  // Calls `use` with each extent's bytes, in order; the bytes are valid during the call (aligned to a block). Stops at
  // the first error, its own or `use`'s. Reading beyond the end of the file is DataLoss. `hold` may be null.
  using Use = std::function<absl::Status(size_t, std::span<const std::byte>)>;
  virtual absl::Status Read(std::span<const Extent> extents, const Use& use, const ReadHold* hold) = 0;
  absl::Status Read(std::span<const Extent> extents, const Use& use) { return Read(extents, use, nullptr); }
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_BLOCK_IO_H_
