// Runs CUDA kernels on the CPU, one block after another, each thread of a block on a stack of its own (fiber.h). What a
// thread may wait for is here: barriers, the other lanes of its warp, asynchronous copies. A kernel sees this through
// kernels/cuda/gpu.h only.
//
// A misuse (threads that never meet, a mask that names a lane that is not there, a copy that is not aligned) stops the
// launch and is reported with the place in the kernel's source. Data races are found by ThreadSanitizer, which is told
// what orders accesses and what does not: a shuffle, for one, orders nothing.
//
// One launch at a time in a process; RunKernel takes care of that.
#ifndef LAYOVER_KERNELS_EMULATION_ENGINE_H_
#define LAYOVER_KERNELS_EMULATION_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/emulation/settings.h"

namespace layover::emulation {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
  size_t Count() const { return static_cast<size_t>(x) * y * z; }
};

// Where in a kernel's source.
struct Site {
  const char* file = "";
  int line = 0;
};

struct KernelLaunch {
  const char* name = "";
  Extent3 grid;
  Extent3 block;
  size_t shared_bytes = 0;       // dynamic
  void (*run)(void*) = nullptr;  // the kernel's body for the thread that is current
  void* arguments = nullptr;
};

// Empty, or what went wrong and where. Nothing that the kernel had on its threads' stacks is destroyed then.
std::string RunKernel(const KernelLaunch& launch, const Settings& settings);

// ----------------------------------------------------------------------------------- for the thread that is current

struct ThreadView {
  Index3 thread;
  Index3 block;
  Extent3 block_extent;
  Extent3 grid_extent;
};
extern ThreadView* current_thread;

void BlockBarrier(Site site);

// Waits for the lanes of `mask`, which must all come here for the same `what`. The last one calls combine(lanes, mask),
// where lanes[i] is what lane i passed as `argument`.
using Combine = void (*)(void* const* lanes, uint32_t mask);
void WarpRendezvous(const char* what, uint32_t mask, void* argument, Combine combine, Site site);
// As a rendezvous, and orders the memory accesses of the lanes.
void WarpBarrier(uint32_t mask, Site site);

// The block's memory of that name, the same for all its threads; made, and filled with 0xff, by the first that asks.
void* StaticShared(const void* key, size_t bytes);
// Part `ordinal` of the block's dynamic shared memory: a piece of its own, so that an overrun is seen.
void* DynamicShared(int ordinal, size_t bytes, Site site);

void CopyAsync16(void* shared, const void* global, Site site);
void CommitCopies();
// Waits until at most `pending` of the thread's committed groups are outstanding.
void WaitCopies(int pending, Site site);

// A load of 16 bytes by the kernel's own helper.
void CountLoad16();

// Orders an atomic access against others of the same word.
void OrderAtomic(const void* word);

// Ends the launch with this report.
[[noreturn]] void Misuse(Site site, std::string what);

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_ENGINE_H_
