#include "common/storage/block_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/fault_point.h"
#include "common/storage/file_names.h"
#include "common/storage/io_queue.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr size_t kBlock = limits::kBlockBytes;

size_t RoundDown(size_t value, size_t to) {
  return value / to * to;
}
size_t RoundUp(size_t value, size_t to) {
  return RoundDown(value + to - 1, to);
}

// Opens with O_DIRECT if wanted and possible. File systems that cannot do it say EINVAL, at once or at the first
// request (Channel::Retry).
absl::StatusOr<UniqueFd> OpenForBlocks(const std::string& path, OpenMode mode, bool direct) {
  if (direct) {
    absl::StatusOr<UniqueFd> fd = OpenFile(path, mode, O_DIRECT);
    if (fd.ok() || absl::IsAlreadyExists(fd.status()) || absl::IsNotFound(fd.status())) return fd;
    // A refused O_DIRECT may have made the file all the same.
    if (mode == OpenMode::kCreate) RemoveFile(std::string(DirName(path)), BaseName(path)).IgnoreError();
  }
  return OpenFile(path, mode);
}

// One file's requests, each in a slot with a buffer of its own; remembers the first failure.
class Channel {
 public:
  Channel(std::string path, UniqueFd fd, std::unique_ptr<IoQueue> queue, const BlockIoOptions& options)
      : path_(std::move(path)), fd_(std::move(fd)), queue_(std::move(queue)), options_(options) {
    for (Slot& slot : slots_) slot.buffer.SetSource(options.memory);
  }
  ~Channel() { Drain().IgnoreError(); }

  struct Slot {
    IoBuffer buffer;
    bool busy = false;
    bool buffered = false;  // tried once more, without direct I/O
    IoRequest request;      // what is still to do of it
    std::optional<FaultPoint> fault;
  };

  static constexpr size_t kSlots = limits::kIoBuffers;
  Slot& slot(size_t i) { return slots_[i % kSlots]; }
  const std::string& path() const { return path_; }
  const BlockIoOptions& options() const { return options_; }
  int fd() const { return fd_.get(); }
  uint64_t bytes_moved() const { return bytes_moved_; }
  const absl::Status& status() const { return error_; }
  void Fail(absl::Status status) {
    if (error_.ok()) error_ = std::move(status);
  }
  void Close() { fd_.reset(); }

  absl::Status Start(size_t i, bool write, size_t bytes, uint64_t offset) {
    RETURN_IF_ERROR(error_);
    Slot& s = slot(i);
    LAYOVER_CHECK(!s.busy && bytes <= s.buffer.capacity());
    s.request = IoRequest{write, fd_.get(), s.buffer.data(), bytes, offset, i % kSlots};
    s.buffered = false;
    s.fault.reset();
    if (write) {
      s.fault.emplace(FaultKind::kWrite, path_);
      if (s.fault->error() != 0 || s.fault->first_half()) return WriteHalf(s);
    }
    s.busy = true;
    ++in_flight_;
    queue_->Submit(s.request);
    return absl::OkStatus();
  }

  // Until the slot's request is done, one way or the other.
  absl::Status Finish(size_t i) {
    while (slot(i).busy) Handle(queue_->Wait());
    return error_;
  }

  // Requests that are not done; takes note of those that are.
  size_t InFlight() {
    while (const std::optional<IoCompletion> completion = queue_->Poll()) Handle(*completion);
    return in_flight_;
  }

  absl::Status Drain() {
    for (size_t i = 0; i < kSlots; ++i) Finish(i).IgnoreError();
    return error_;
  }

 private:
  // A planted fault: the disk took the first half, then failed or the process died.
  absl::Status WriteHalf(Slot& s) {
    const size_t half = RoundDown(s.request.bytes / 2, kBlock);
    const ssize_t put = half == 0 ? 0 : pwrite(fd_.get(), s.request.data, half, static_cast<off_t>(s.request.offset));
    LAYOVER_CHECK(put == static_cast<ssize_t>(half));
    if (s.fault->error() == 0) s.fault->Done();
    Fail(ErrnoStatus(s.fault->error(), fmt::format("write {}", path_)));
    return error_;
  }

  void Handle(const IoCompletion& completion) {
    Slot& s = slots_[completion.tag];
    int64_t result = completion.result;
    if (result == -EINTR || result == -EAGAIN) return queue_->Submit(s.request);
    if (result == -EINVAL && !std::exchange(s.buffered, true)) return SubmitBuffered(s);
    if (result == 0 && s.request.write) result = -EIO;
    if (result <= 0) {
      s.busy = false;
      --in_flight_;
      const std::string_view verb = s.request.write ? "write" : "read";
      Fail(result < 0 ? ErrnoStatus(static_cast<int>(-result), fmt::format("{} {}", verb, path_))
                      : DataLoss("{} ends at byte {}, before its own length", path_, s.request.offset));
      return;
    }
    const auto moved = static_cast<size_t>(result);
    bytes_moved_ += moved;
    if (moved < s.request.bytes) {
      s.request.data += moved;
      s.request.bytes -= moved;
      s.request.offset += moved;
      return queue_->Submit(s.request);
    }
    s.busy = false;
    --in_flight_;
    if (s.fault.has_value()) s.fault->Done();
  }

  // Direct I/O is off for this file from now on: its file system, or the end of a file that is no whole block, refused
  // it.
  void SubmitBuffered(Slot& s) {
    const int flags = fcntl(fd_.get(), F_GETFL);
    LAYOVER_CHECK(flags >= 0 && fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) == 0);
    queue_->Submit(s.request);
  }

  const std::string path_;
  UniqueFd fd_;
  std::unique_ptr<IoQueue> queue_;
  const BlockIoOptions options_;
  std::array<Slot, kSlots> slots_;
  size_t in_flight_ = 0;
  uint64_t bytes_moved_ = 0;
  absl::Status error_;
};

class BlockWriterImpl : public BlockWriter {
 public:
  explicit BlockWriterImpl(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}
  ~BlockWriterImpl() override { Abandon(); }

  absl::StatusOr<std::span<std::byte>> Reserve(size_t bytes) override {
    RETURN_IF_ERROR(channel_->status());
    if (fill_ + bytes > channel_->slot(current_).buffer.capacity()) RETURN_IF_ERROR(MakeRoom(bytes));
    std::byte* begin = channel_->slot(current_).buffer.data() + fill_;
    fill_ += bytes;
    return std::span<std::byte>(begin, bytes);
  }

  absl::Status Pad(size_t alignment) override {
    const size_t bytes = RoundUp(offset(), alignment) - offset();
    ASSIGN_OR_RETURN(const std::span<std::byte> room, Reserve(bytes));
    std::fill(room.begin(), room.end(), std::byte{0});
    return absl::OkStatus();
  }

  absl::Status NextBuffer() override {
    RETURN_IF_ERROR(channel_->status());
    return fill_ < kBlock ? absl::OkStatus() : MakeRoom(0);
  }
  size_t room() const override { return channel_->slot(current_).buffer.capacity() - fill_; }
  uint64_t offset() const override { return buffer_offset_ + fill_; }
  uint64_t bytes_written() const override { return channel_->bytes_moved(); }

  absl::Status Finish() override {
    RETURN_IF_ERROR(channel_->status());
    LAYOVER_CHECK(fill_ % kBlock == 0);
    if (fill_ > 0) RETURN_IF_ERROR(channel_->Start(current_, true, fill_, buffer_offset_));
    RETURN_IF_ERROR(channel_->Drain());
    RETURN_IF_ERROR(SyncFile(channel_->fd(), channel_->path()));
    // Without this the name may be missing after a power cut, though the bytes are there.
    RETURN_IF_ERROR(SyncFolder(std::string(DirName(channel_->path()))));
    channel_->Close();
    finished_ = true;
    return absl::OkStatus();
  }

  void Abandon() override {
    if (finished_) return;
    finished_ = true;
    channel_->Drain().IgnoreError();
    channel_->Close();
    // If this fails, the next start finds a segment that no manifest names.
    RemoveFile(std::string(DirName(channel_->path())), BaseName(channel_->path())).IgnoreError();
    channel_->Fail(Cancelled("{} was given up", channel_->path()));
  }

 private:
  // Sends the whole blocks of the current buffer off and goes on in the next one, with the rest of a block carried
  // over.
  absl::Status MakeRoom(size_t bytes) {
    Channel::Slot& full = channel_->slot(current_);
    const size_t whole = RoundDown(fill_, kBlock);
    const size_t rest = fill_ - whole;
    if (whole == 0) return full.buffer.Grow(fill_ + bytes, fill_);
    RETURN_IF_ERROR(channel_->Finish(current_ + 1));
    Channel::Slot& next = channel_->slot(current_ + 1);
    RETURN_IF_ERROR(next.buffer.Grow(std::max(rest + bytes, channel_->options().request_bytes), 0));
    std::memcpy(next.buffer.data(), full.buffer.data() + whole, rest);
    RETURN_IF_ERROR(channel_->Start(current_, true, whole, buffer_offset_));
    ++current_;
    buffer_offset_ += whole;
    fill_ = rest;
    return absl::OkStatus();
  }

  std::unique_ptr<Channel> channel_;
  size_t current_ = 0;          // slot being filled
  uint64_t buffer_offset_ = 0;  // in the file, of that slot's buffer
  size_t fill_ = 0;             // bytes of it in use
  bool finished_ = false;
};

class BlockReaderImpl : public BlockReader {
 public:
  BlockReaderImpl(std::unique_ptr<Channel> channel, uint64_t file_bytes)
      : channel_(std::move(channel)), file_bytes_(file_bytes) {}

  uint64_t file_bytes() const override { return file_bytes_; }
  uint64_t bytes_read() const override { return channel_->bytes_moved(); }

  using BlockReader::Read;
  absl::Status Read(std::span<const Extent> extents, const Use& use, const ReadHold* hold) override {
    waited_ = used_ = 0;
    absl::Status status = ReadAll(extents, use, hold);
    // Buffers may be used again, or freed, only when nothing reads them or writes into them any more.
    WaitUntil(used_, hold);
    channel_->Drain().IgnoreError();
    // Others may want them: of many readers one is at work.
    if (channel_->options().memory != nullptr) {
      for (size_t i = 0; i < Channel::kSlots; ++i) channel_->slot(i).buffer.Release();
    }
    return status;
  }

 private:
  absl::Status ReadAll(std::span<const Extent> extents, const Use& use, const ReadHold* hold) {
    size_t next = 0;
    for (size_t i = 0; i < extents.size(); ++i) {
      RETURN_IF_ERROR(StartMore(extents, i, &next, hold));
      RETURN_IF_ERROR(channel_->Finish(i));
      // Before the bytes are used, not after: some disks report several requests at once, and would have nothing to do
      // until the first of them is verified and copied.
      RETURN_IF_ERROR(StartMore(extents, i, &next, hold));
      const absl::Status status = use(i, {channel_->slot(i).buffer.data(), extents[i].bytes});
      if (hold != nullptr) hold->used();
      used_ = i + 1;
      RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  // Keeps the disk busy, while extent `i` and those after it that were read already keep their buffers.
  absl::Status StartMore(std::span<const Extent> extents, size_t i, size_t* next, const ReadHold* hold) {
    while (*next < extents.size() && *next < i + Channel::kSlots && channel_->InFlight() < limits::kIoReadsInFlight) {
      const size_t before = *next < Channel::kSlots ? 0 : *next - Channel::kSlots + 1;  // that must be done with
      const bool far_ahead = *next >= i + limits::kIoReadsInFlight;
      if (far_ahead && hold != nullptr && waited_ < before && !hold->done()) break;
      WaitUntil(before, hold);
      RETURN_IF_ERROR(Start(*next, extents[*next]));
      ++*next;
    }
    return absl::OkStatus();
  }

  // For what still reads the first `extents` of them.
  void WaitUntil(size_t extents, const ReadHold* hold) {
    for (; waited_ < extents; ++waited_) {
      if (hold != nullptr) hold->wait();
    }
  }

  absl::Status Start(size_t i, const Extent& extent) {
    LAYOVER_CHECK(extent.offset % kBlock == 0 && extent.bytes % kBlock == 0 && extent.bytes > 0);
    if (extent.offset + extent.bytes > file_bytes_) {
      return DataLoss("{} has {} bytes, {} are needed", channel_->path(), file_bytes_, extent.offset + extent.bytes);
    }
    RETURN_IF_ERROR(channel_->slot(i).buffer.Grow(extent.bytes, 0));
    return channel_->Start(i, false, extent.bytes, extent.offset);
  }

  std::unique_ptr<Channel> channel_;
  const uint64_t file_bytes_;
  size_t used_ = 0;    // extents of the running call
  size_t waited_ = 0;  // of those
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockWriter>> BlockWriter::Create(const std::string& path,
                                                                 const BlockIoOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, IoQueue::Create(options.engine));
  ASSIGN_OR_RETURN(UniqueFd fd, OpenForBlocks(path, OpenMode::kCreate, options.direct));
  auto channel = std::make_unique<Channel>(path, std::move(fd), std::move(queue), options);
  auto writer = std::make_unique<BlockWriterImpl>(std::move(channel));
  return writer;
}

absl::StatusOr<std::unique_ptr<BlockReader>> BlockReader::Open(const std::string& path, const BlockIoOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, IoQueue::Create(options.engine));
  ASSIGN_OR_RETURN(UniqueFd fd, OpenForBlocks(path, OpenMode::kRead, options.direct));
  ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(fd.get(), path));
  auto channel = std::make_unique<Channel>(path, std::move(fd), std::move(queue), options);
  auto reader = std::make_unique<BlockReaderImpl>(std::move(channel), file_bytes);
  return reader;
}

}  // namespace layover
