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

// What a queue was given between BeginCapture and EndCapture. It may go while it still runs, not after its queue.
class QueueGraph {
 public:
  virtual ~QueueGraph() = default;
  // Puts all of it in its queue.
  virtual void Launch() = 0;
  // Where `other` is not the same to the last argument; empty: nowhere, or this runtime cannot tell.
  virtual std::string DifferenceTo(const QueueGraph& other) const { return {}; }
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

  // From here on kernels, fills and copies on the device are noted instead of run. Copies from and to the host, events
  // and waiting are refused meanwhile, and so is memory that this thread allocates or frees. After a failure nothing
  // is captured.
  virtual absl::Status BeginCapture() = 0;
  // If it fails, nothing of what was noted will run.
  virtual absl::StatusOr<std::unique_ptr<QueueGraph> > EndCapture() = 0;
  // Whether graphs are to be held against what they stand for each time (QueueGraph::DifferenceTo).
  virtual bool ComparesGraphs() const { return false; }
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
struct KernelEntry {
  const char* name = "";
  gpu::Grid grid;
  int threads = 0;
  size_t shared_bytes = 0;
  std::function<void()> body;
  std::string arguments;  // bytes: which kernel, and what it is given
};
void EnqueueKernel(gpu::Queue* queue, KernelEntry entry);
}  // namespace layover::emulation
#endif

#endif  // LAYOVER_KERNELS_CUDA_RUNTIME_H_
