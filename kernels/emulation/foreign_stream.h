// What a stream is under emulation for a library that puts work of its own on streams, as NCCL does (tests/tools has
// its stand-in). On a card such work is a kernel that spins until the other side is there; here it is a step that is
// asked again and again, and what was queued behind it does not run meanwhile.
#ifndef LAYOVER_KERNELS_EMULATION_FOREIGN_STREAM_H_
#define LAYOVER_KERNELS_EMULATION_FOREIGN_STREAM_H_

#include <functional>

enum class ForeignStep { kWaiting, kDone };

struct CUstream_st {
  virtual ~CUstream_st() = default;
  virtual void Enqueue(std::function<ForeignStep()> step) = 0;
};

#endif  // LAYOVER_KERNELS_EMULATION_FOREIGN_STREAM_H_
