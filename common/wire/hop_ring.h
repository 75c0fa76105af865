// The memory of a hop between two stages of one machine: a ring of slots that one process writes and one reads, made by
// a third, the coordinator.
//
// What must stay true:
//  - A slot is seen only when it is complete: the count of written slots rises (release) after its last byte. Of a
//  writer
//    that dies in the middle nothing is read.
//  - A ring serves one epoch and is then closed for good; the next epoch has a new one. So nothing old is read either.
//  - One process writes, one reads, and each end belongs to one thread. The reader sleeps on a pipe (the bell), which
//  the
//    writer rings only if the reader has said that it sleeps.
//  - The memory has no name: it is sealed against a change of size and opened through /proc/PID/fd of the coordinator,
//  so
//    by the same user only. What is read from it is checked, since another process can write there.
#ifndef LAYOVER_COMMON_WIRE_HOP_RING_H_
#define LAYOVER_COMMON_WIRE_HOP_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/link_end.h"

namespace layover::wire {

struct RingControl;

// A file descriptor that is closed with it.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// A mapping of a ring's memory.
class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;
  ~RingMemory();

  RingControl* control() const { return reinterpret_cast<RingControl*>(data_); }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  std::byte* slot(uint64_t number) const;  // of the number-th hop

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

struct RingShape {
  uint32_t hop = 0;  // the stage that it leads to
  uint32_t epoch = 0;
  uint32_t n_slots = 1;     // most hops that are written and not yet read
  uint64_t slot_bytes = 0;  // largest payload; 0: headers only
};

// The coordinator's end.
class HopRing {
 public:
  static absl::StatusOr<std::unique_ptr<HopRing>> Create(const RingShape& shape);

  // How the two stages open it, as long as this object lives.
  RingAddress address() const;
  // The epoch is over: whoever waits for the other end of the hop gives up.
  void Close();

 private:
  HopRing() = default;
  OwnedFd memory_fd_, bell_read_, bell_write_;
  RingMemory memory_;
};

class RingWriter {
 public:
  // FailedPrecondition if what is found there is not the ring of this hop and epoch.
  static absl::StatusOr<std::unique_ptr<RingWriter>> Open(const RingAddress& address, uint32_t hop, uint32_t epoch);

  // Where the next hop's payload goes, slot_bytes() of it; null while the ring is full.
  std::byte* NextPayload();
  // Makes the hop seen. The payload is [header.n_rows, header.dim] floats, or absent if the ring carries headers only.
  void Publish(const FrameHeader& header);

  bool closed() const;
  uint64_t slot_bytes() const;
  std::span<std::byte> memory() const { return memory_.bytes(); }

 private:
  RingWriter() = default;
  RingMemory memory_;
  OwnedFd bell_;
  uint64_t written_ = 0;
};

class RingReader {
 public:
  static absl::StatusOr<std::unique_ptr<RingReader>> Open(const RingAddress& address, uint32_t hop, uint32_t epoch);

  // The oldest hop that is complete and not passed. DataLoss if its header is none.
  bool HasFront() const;
  absl::StatusOr<FrameHeader> Front() const;
  const std::byte* FrontPayload() const;
  void Pass();        // on to the next; the payload stays as it is
  void FreePassed();  // the slots of all that were passed may be written again

  // Before a wait: true if nothing is there, and then fd() becomes readable when something is.
  bool BeginWait();
  // After one: quiets fd().
  void EndWait();
  int fd() const { return bell_.get(); }

  bool closed() const;
  std::span<std::byte> memory() const { return memory_.bytes(); }

 private:
  RingReader() = default;
  RingMemory memory_;
  OwnedFd bell_;
  uint64_t passed_ = 0;
};

}  // namespace layover::wire

#endif  // LAYOVER_COMMON_WIRE_HOP_RING_H_
