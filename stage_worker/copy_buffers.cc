#include "stage_worker/copy_buffers.h"

#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

namespace layover {
namespace {

// Empty if there is none.
std::span<std::byte> MapMemory(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  madvise(memory, bytes, MADV_HUGEPAGE);  // only a wish
  return {static_cast<std::byte*>(memory), bytes};
}

}  // namespace

std::unique_ptr<CopyBuffers> CopyBuffers::Create(Device& device, size_t count, size_t bytes) {
  LAYOVER_CHECK(bytes > 0 && bytes % limits::kIoBufferBytes == 0);
  const std::span<std::byte> all = MapMemory(count * bytes);
  if (!all.empty()) return std::unique_ptr<CopyBuffers>(new CopyBuffers(device, all, bytes));
  LogWarning("no memory for {} buffers of {} bytes: copies to and from the device go in smaller pieces", count, bytes);
  return nullptr;
}

CopyBuffers::CopyBuffers(Device& device, std::span<std::byte> all, size_t bytes)
    : device_(device), all_(all), bytes_(bytes), pinned_(device.PinHost(all.data(), all.size())) {
  for (size_t at = all.size(); at > 0; at -= bytes) free_.push_back(all.data() + (at - bytes));
}

CopyBuffers::~CopyBuffers() {
  LAYOVER_CHECK(free_.size() * bytes_ == all_.size());
  if (pinned_) device_.UnpinHost(all_.data());
  munmap(all_.data(), all_.size());
}

absl::StatusOr<std::span<std::byte>> CopyBuffers::Take(size_t bytes) {
  if (bytes <= bytes_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      std::byte* const buffer = free_.back();
      free_.pop_back();
      return std::span<std::byte>(buffer, bytes_);
    }
  }
  constexpr size_t kMultiple = limits::kIoBufferBytes;
  const std::span<std::byte> memory = MapMemory((bytes + kMultiple - 1) / kMultiple * kMultiple);
  if (memory.empty()) return ResourceExhausted("no memory for a disk buffer of {} bytes", bytes);
  return memory;
}

void CopyBuffers::Give(std::span<std::byte> memory) {
  if (!IsOurs(memory.data())) {
    munmap(memory.data(), memory.size());
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(memory.data());
}

PieceCopier::PieceCopier(Stream& stream, CopyBuffers* buffers) : stream_(stream), buffers_(buffers) {
  if (buffers == nullptr) return;
  for (Side& side : sides_) {
    auto buffer = buffers->Take(buffers->buffer_bytes());
    if (buffer.ok()) side.buffer = *buffer;
  }
}

PieceCopier::~PieceCopier() {
  (void)stream_.Synchronize();  // whoever wants to know has called Finish
  for (Side& side : sides_) {
    if (!side.buffer.empty()) buffers_->Give(side.buffer);
  }
}

void PieceCopier::Read(std::span<std::byte> to, const std::function<void(Stream&, std::byte*)>& read) {
  std::byte* const room = Room(to.size());
  if (room == nullptr) return read(stream_, to.data());
  sides_[current_].reads.emplace_back(room, to);
  read(stream_, room);
}

void PieceCopier::Write(std::span<const std::byte> from, const std::function<void(Stream&, const std::byte*)>& write) {
  std::byte* const room = Room(from.size());
  if (room == nullptr) return write(stream_, from.data());
  std::memcpy(room, from.data(), from.size());
  write(stream_, room);
}

absl::Status PieceCopier::Finish() {
  const absl::Status status = stream_.Synchronize();
  for (Side& side : sides_) Empty(&side);
  return status;
}

std::byte* PieceCopier::Room(size_t bytes) {
  Side& side = sides_[current_];
  Side& other = sides_[1 - current_];
  if (bytes > side.buffer.size() || bytes > other.buffer.size()) return nullptr;
  if (side.used + bytes <= side.buffer.size()) {
    side.used += bytes;
    return side.buffer.data() + (side.used - bytes);
  }
  side.copied = stream_.Record();
  Empty(&other);
  current_ = 1 - current_;
  other.used = bytes;
  return other.buffer.data();
}

void PieceCopier::Empty(Side* side) {
  if (side->copied != nullptr) WaitFor(*side->copied);
  side->copied.reset();
  for (const auto& [from, to] : side->reads) std::memcpy(to.data(), from, to.size());
  side->reads.clear();
  side->used = 0;
}

void WaitFor(const Event& event) {
  while (!event.Done()) std::this_thread::yield();
}

}  // namespace layover
