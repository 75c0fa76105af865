// What the CUDA back end needs of the runtime: memory, queues, events. Two implementations: runtime_cuda.cc over
// NVIDIA's runtime, and kernels/emulation/runtime.cc, whose queues run their entries late, in an order that the seed
// chooses, so that nothing works by luck.
//
// A queue belongs to one host thread. Pointers handed to a queue's operations stay valid until it is synchronised.
#ifndef LAYOVER_KERNELS_CUDA_RUNTIME_H_
#define LAYOVER_KERNELS_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#ifndef __CUDACC__
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#endif

struct CUstream_st;

namespace layover::gpu {

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

class Queue;

// What a library that puts work on a stream is given. Under emulation it is kernels/emulation/foreign_stream.h's.
CUstream_st* CudaStream(Queue* queue);

#ifdef __CUDACC__
void NoteLaunchError(Queue* queue, const char* kernel, int error);
#else

struct CardInfo {
  std::string name;          // "NVIDIA GeForce RTX 3090"
  std::string architecture;  // "sm_86"
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // dynamic, of a block
  int64_t memory_bytes = 0;
};

class QueueEvent {
 public:
  virtual ~QueueEvent() = default;
  virtual bool Done() const = 0;
};

class Queue {
 public:
  virtual ~Queue() = default;
  virtual void CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t bytes) = 0;
  virtual void CopyOnDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void Fill(void* device, uint8_t byte, size_t bytes) = 0;
  virtual std::unique_ptr<QueueEvent> Record() = 0;
  // What comes after this runs once the event has come true, which may be another queue's of the same card.
  virtual void WaitFor(const QueueEvent& event) = 0;
  // The first error of the queue, for good.
  virtual absl::Status Synchronize() = 0;
};

// Unavailable, saying why, if there is no such card. Chooses the card for the calling thread.
absl::StatusOr<CardInfo> OpenCard(int index);
// Chooses the card for the calling thread; for threads other than the one that opened it.
void UseCard(int index);

absl::StatusOr<void*> AllocateOnDevice(int card, size_t bytes);  // not cleared
void FreeOnDevice(int card, void* memory);

// Page-locks host memory for every card of the process; false if that is refused.
bool PinHostMemory(int card, void* memory, size_t bytes);
void UnpinHostMemory(int card, void* memory);

// Of kernels that are ready to run those of a queue kAhead go first; those kBehind take what is left of the card.
enum class QueueRank { kAhead, kBehind };
std::unique_ptr<Queue> NewQueue(int card, QueueRank rank = QueueRank::kAhead);

// "cuda" or "emu".
const char* BackEndKind();

#endif

}  // namespace layover::gpu

#if !defined(__CUDACC__)
namespace layover::emulation {
// The emulation's part of a launch.
void EnqueueKernel(gpu::Queue* queue, const char* name, gpu::Grid grid, int threads, size_t shared_bytes,
                   std::function<void()> body);
}  // namespace layover::emulation
#endif

#endif  // LAYOVER_KERNELS_CUDA_RUNTIME_H_
