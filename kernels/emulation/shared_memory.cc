// Compiled without ThreadSanitizer, as the engine.
#include "kernels/emulation/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "common/check.h"
#include "fmt/format.h"

namespace layover::emulation {
namespace {

[[maybe_unused]] constexpr size_t kArenaBytes = size_t{1} << 30;  // of address space

}  // namespace

void Poison(void* data, size_t bytes) {
  volatile char* out = static_cast<char*>(data);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(0xff);
}

void SharedMemory::BeginLaunch(size_t dynamic_bytes) {
  dynamic_bytes_ = dynamic_bytes;
#if defined(LAYOVER_EMULATION_TSAN)
  arena_used_ = 0;
  if (arena_ != nullptr) return;
  // Here and not when a thread first asks: to ThreadSanitizer it is a write of who does it.
  arena_ = static_cast<char*>(
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  LAYOVER_CHECK(arena_ != MAP_FAILED);
#endif
}

void SharedMemory::EndBlock() {
#if !defined(LAYOVER_EMULATION_TSAN)
  for (int i = 0; i < n_pieces_; ++i) std::free(pieces_[i].data);
#endif
  n_pieces_ = 0;
}

void* SharedMemory::FindOrMake(const void* key, int ordinal, size_t bytes) {
  for (int i = 0; i < n_pieces_; ++i) {
    if (pieces_[i].key == key && pieces_[i].ordinal == ordinal) return pieces_[i].data;
  }
  LAYOVER_CHECK(n_pieces_ < kMaxPieces);
  Piece piece{key, ordinal, nullptr, bytes};
#if defined(LAYOVER_EMULATION_TSAN)
  LAYOVER_CHECK(arena_used_ + bytes + 128 <= kArenaBytes);
  piece.data = arena_ + arena_used_;
  arena_used_ += (bytes + 127) / 128 * 128;
#else
  LAYOVER_CHECK(posix_memalign(&piece.data, 16, std::max<size_t>(bytes, 1)) == 0);
#endif
  Poison(piece.data, bytes);
  pieces_[n_pieces_++] = piece;
  return piece.data;
}

void* SharedMemory::Static(const void* key, size_t bytes) {
  return FindOrMake(key, 0, bytes);
}

void* SharedMemory::Dynamic(int ordinal, size_t bytes, std::string* error) {
  size_t taken = 0;
  for (int i = 0; i < n_pieces_; ++i) {
    if (pieces_[i].key != nullptr) continue;
    if (pieces_[i].ordinal == ordinal && pieces_[i].bytes != bytes) {
      *error = fmt::format("threads want {} and {} bytes of the same shared memory", pieces_[i].bytes, bytes);
      return nullptr;
    }
    if (pieces_[i].ordinal < ordinal) taken += (pieces_[i].bytes + 15) / 16 * 16;
  }
  if (taken + bytes > dynamic_bytes_) {
    *error =
        fmt::format("{} bytes of dynamic shared memory behind {}; the launch has {}", bytes, taken, dynamic_bytes_);
    return nullptr;
  }
  return FindOrMake(nullptr, ordinal, bytes);
}

}  // namespace layover::emulation
