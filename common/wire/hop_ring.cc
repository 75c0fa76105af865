#include "common/wire/hop_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/hop_memory.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover::wire {

// The first page of the memory. What one side writes often has a cache line of its own.
struct RingControl {
  uint32_t magic;
  uint32_t hop;
  uint32_t epoch;
  uint32_t n_slots;
  uint64_t slot_bytes;
  uint64_t stride;
  alignas(64) std::atomic<uint64_t> written;  // hops that are complete; the writer's
  alignas(64) std::atomic<uint64_t> taken;    // hops whose slots are free again; the reader's
  std::atomic<uint32_t> sleeping;             // 1: the reader waits for the bell
  alignas(64) std::atomic<uint32_t> closed;   // the coordinator's
};

namespace {

constexpr uint32_t kRingMagic = 0x474e5252;  // "RRNG"
constexpr size_t kPageBytes = kHopPageBytes;
constexpr size_t kSlotHeaderBytes = kHopSlotHeaderBytes;  // FrameHeader and padding

static_assert(sizeof(RingControl) <= kPageBytes && sizeof(FrameHeader) <= kSlotHeaderBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "a lock would not work between processes");

void RingBell(int fd) {
  const char one = 1;
  // A full pipe has rung already.
  [[maybe_unused]] const ssize_t ignored = write(fd, &one, 1);
}

absl::StatusOr<RingMemory> Map(int fd, size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, fmt::format("map {} bytes of a hop's ring", bytes));
  return RingMemory(static_cast<std::byte*>(data), bytes);
}

absl::StatusOr<OwnedFd> OpenPath(const std::string& path, int flags) {
  OwnedFd fd(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    return FailedPrecondition("a hop's ring: open {}: {}", path, std::strerror(error));
  }
  return fd;
}

absl::StatusOr<RingMemory> OpenMemory(const RingAddress& address, uint32_t hop, uint32_t epoch) {
  ASSIGN_OR_RETURN(const OwnedFd fd, OpenPath(address.memory, O_RDWR));
  struct stat file;
  if (fstat(fd.get(), &file) != 0) return ErrnoStatus(errno, "a hop's ring");
  const auto bytes = static_cast<size_t>(file.st_size);
  // The descriptor's number may have gone to another file, of another epoch or of no ring.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (bytes < kPageBytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return FailedPrecondition("{} is no hop's ring", address.memory);
  }
  ASSIGN_OR_RETURN(RingMemory memory, Map(fd.get(), bytes));
  const RingControl& control = *memory.control();
  if (control.magic != kRingMagic || control.hop != hop || control.epoch != epoch) {
    return FailedPrecondition("{} is not the ring of hop {} in epoch {}", address.memory, hop, epoch);
  }
  if (control.n_slots == 0 || control.n_slots > limits::kMaxRingSlots || control.slot_bytes > limits::kMaxHopBytes ||
      control.stride != HopSlotStride(control.slot_bytes) ||
      bytes != HopRingBytes(control.n_slots, control.slot_bytes)) {
    return FailedPrecondition("{} is a ring of no good shape", address.memory);
  }
  return memory;
}

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

RingMemory::RingMemory(RingMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RingMemory::~RingMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

std::byte* RingMemory::slot(uint64_t number) const {
  const RingControl& ring = *control();
  return data_ + kPageBytes + number % ring.n_slots * ring.stride;
}

absl::StatusOr<std::unique_ptr<HopRing>> HopRing::Create(const RingShape& shape) {
  LAYOVER_CHECK(shape.n_slots > 0 && shape.n_slots <= limits::kMaxRingSlots &&
                shape.slot_bytes <= limits::kMaxHopBytes);
  std::unique_ptr<HopRing> ring(new HopRing);
  ring->memory_fd_ = OwnedFd(memfd_create("layover-hop", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = ring->memory_fd_.get();
  if (fd < 0) return ErrnoStatus(errno, "memfd_create for a hop's ring");
  const size_t bytes = HopRingBytes(shape.n_slots, shape.slot_bytes);
  if (fchmod(fd, 0600) != 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, fmt::format("a hop's ring of {} bytes", bytes));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "pipe for a hop's ring");
  ring->bell_read_ = OwnedFd(ends[0]);
  ring->bell_write_ = OwnedFd(ends[1]);
  ASSIGN_OR_RETURN(ring->memory_, Map(fd, kPageBytes));  // slots are no business of this process
  RingControl* control = ring->memory_.control();        // zero so far
  control->hop = shape.hop;
  control->epoch = shape.epoch;
  control->n_slots = shape.n_slots;
  control->slot_bytes = shape.slot_bytes;
  control->stride = HopSlotStride(shape.slot_bytes);
  control->magic = kRingMagic;
  return ring;
}

RingAddress HopRing::address() const {
  const auto path = [](const OwnedFd& fd) { return fmt::format("/proc/{}/fd/{}", getpid(), fd.get()); };
  return {.memory = path(memory_fd_), .bell_read = path(bell_read_), .bell_write = path(bell_write_)};
}

void HopRing::Close() {
  memory_.control()->closed.store(1, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<RingWriter>> RingWriter::Open(const RingAddress& address, uint32_t hop, uint32_t epoch) {
  std::unique_ptr<RingWriter> writer(new RingWriter);
  ASSIGN_OR_RETURN(writer->memory_, OpenMemory(address, hop, epoch));
  ASSIGN_OR_RETURN(writer->bell_, OpenPath(address.bell_write, O_WRONLY));
  writer->written_ = writer->memory_.control()->written;
  return writer;
}

std::byte* RingWriter::NextPayload() {
  const RingControl& control = *memory_.control();
  if (written_ - control.taken.load(std::memory_order_acquire) >= control.n_slots) return nullptr;
  return memory_.slot(written_) + kSlotHeaderBytes;
}

void RingWriter::Publish(const FrameHeader& header) {
  RingControl* control = memory_.control();
  std::memcpy(memory_.slot(written_), &header, sizeof(header));
  // In one order with the reader's "I sleep" and its look at `written`: one of the two sees the other.
  control->written.store(++written_, std::memory_order_seq_cst);
  if (control->sleeping.exchange(0, std::memory_order_seq_cst) != 0) RingBell(bell_.get());
}

bool RingWriter::closed() const {
  return memory_.control()->closed.load(std::memory_order_relaxed) != 0;
}
uint64_t RingWriter::slot_bytes() const {
  return memory_.control()->slot_bytes;
}

absl::StatusOr<std::unique_ptr<RingReader>> RingReader::Open(const RingAddress& address, uint32_t hop, uint32_t epoch) {
  std::unique_ptr<RingReader> reader(new RingReader);
  ASSIGN_OR_RETURN(reader->memory_, OpenMemory(address, hop, epoch));
  ASSIGN_OR_RETURN(reader->bell_, OpenPath(address.bell_read, O_RDONLY));
  reader->passed_ = reader->memory_.control()->taken;
  return reader;
}

bool RingReader::HasFront() const {
  return memory_.control()->written.load(std::memory_order_acquire) != passed_;
}

absl::StatusOr<FrameHeader> RingReader::Front() const {
  LAYOVER_CHECK(HasFront());
  const RingControl& control = *memory_.control();
  FrameHeader header;
  std::memcpy(&header, memory_.slot(passed_), sizeof(header));
  if (header.magic != FrameHeader().magic || header.epoch != control.epoch)
    return DataLoss("hop {}: bad header", control.hop);
  const uint64_t bytes = sizeof(float) * uint64_t{header.n_rows} * uint64_t{header.dim};
  if (control.slot_bytes > 0 && bytes > control.slot_bytes) {
    return DataLoss("hop {}: [{}, {}] does not fit into a slot", control.hop, header.n_rows, header.dim);
  }
  return header;
}

const std::byte* RingReader::FrontPayload() const {
  return memory_.slot(passed_) + kSlotHeaderBytes;
}

void RingReader::Pass() {
  LAYOVER_CHECK(HasFront());
  ++passed_;
}

void RingReader::FreePassed() {
  memory_.control()->taken.store(passed_, std::memory_order_release);
}

bool RingReader::BeginWait() {
  RingControl* control = memory_.control();
  control->sleeping.store(1, std::memory_order_seq_cst);
  if (control->written.load(std::memory_order_seq_cst) == passed_) return true;
  control->sleeping.store(0, std::memory_order_seq_cst);
  return false;
}

void RingReader::EndWait() {
  memory_.control()->sleeping.store(0, std::memory_order_relaxed);
  char bytes[64];
  while (read(bell_.get(), bytes, sizeof(bytes)) == sizeof(bytes)) {
  }
}

bool RingReader::closed() const {
  return memory_.control()->closed.load(std::memory_order_relaxed) != 0;
}

}  // namespace layover::wire
