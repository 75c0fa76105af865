// Shared memory of the block that runs: pieces of exact size, so that AddressSanitizer sees an overrun, filled with
// 0xff, so that what nobody wrote is no number. Of no other translation unit than the engine's.
#ifndef LAYOVER_KERNELS_EMULATION_SHARED_MEMORY_H_
#define LAYOVER_KERNELS_EMULATION_SHARED_MEMORY_H_

#include <cstddef>
#include <string>

namespace layover::emulation {

// Fills with 0xff by a loop that is no call of memset, which ThreadSanitizer would take for an access of the thread.
void Poison(void* data, size_t bytes);

class SharedMemory {
 public:
  // Before a launch with so many bytes of dynamic shared memory.
  void BeginLaunch(size_t dynamic_bytes);
  void EndBlock();

  // The piece of that key, made when first asked for.
  void* Static(const void* key, size_t bytes);
  // Part `ordinal` of the dynamic memory; null, and why in *error, if it does not fit or threads disagree about it.
  // Parts are taken in order, so each is checked by the first thread that asks for it.
  void* Dynamic(int ordinal, size_t bytes, std::string* error);

 private:
  struct Piece {
    const void* key;
    int ordinal;
    void* data;
    size_t bytes;
  };
  static constexpr int kMaxPieces = 64;

  void* FindOrMake(const void* key, int ordinal, size_t bytes);

  Piece pieces_[kMaxPieces];
  int n_pieces_ = 0;
  size_t dynamic_bytes_ = 0;
  // With ThreadSanitizer: addresses that no earlier block of the launch used, because what it did there must not count.
  char* arena_ = nullptr;
  size_t arena_used_ = 0;
};

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_SHARED_MEMORY_H_
