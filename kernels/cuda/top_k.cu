// TopK. A block finds the best k of a segment of a row in k rounds; the segments' winners are segments of a further
// launch, until a row has one. Keys are those of kernels/top_k.h: one integer that orders a logit and its id.
#include "common/limits.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"

namespace layover::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kSegment = 4096;  // keys of a block: 32 KiB of shared memory
static_assert(kSegment >= 2 * limits::kMaxTopK, "each launch leaves at most half as many keys");

constexpr uint64_t kNone = 0;  // below every key
constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kLargestBits = 0x7f7fffffu;

__device__ __forceinline__ uint64_t KeyOf(float logit, int id) {
  if (!(logit > kMinusInfinity)) return kNone;
  uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  if (bits == kLargestBits + 1) bits = kLargestBits;
  const uint32_t ordered = bits & kSign ? ~bits : bits | kSign;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

__device__ __forceinline__ uint64_t LargestOfLanes(uint64_t key) {
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t high = __shfl_xor_sync(kAllLanes, static_cast<uint32_t>(key >> 32), step);
    const uint32_t low = __shfl_xor_sync(kAllLanes, static_cast<uint32_t>(key), step);
    const uint64_t other = static_cast<uint64_t>(high) << 32 | low;
    key = other > key ? other : key;
  }
  return key;
}

struct TopKSegments {
  const float* logits = nullptr;   // [n_rows, count], stride `stride`; null: `keys` instead
  const uint64_t* keys = nullptr;  // [n_rows, count]
  uint64_t* out = nullptr;         // [n_rows, segments, k]; null: ids and values instead, of one segment
  int32_t* ids = nullptr;          // [n_rows, k]
  float* values = nullptr;         // [n_rows, k]
  long long stride = 0;
  int count = 0;
  int k = 0;
};

// Thread t has the keys t, t + 256, ... of the segment, and only the one whose key was the best looks at its own again.
__global__ void __launch_bounds__(kThreads) TopKKernel(TopKSegments p) {
  GPU_SHARED(uint64_t, keys, [kSegment]);
  GPU_SHARED(uint64_t, best_of_warp, [2][kWarps]);  // of this round and of the one before
  const int thread = static_cast<int>(threadIdx.x);
  const long long row = blockIdx.y;
  const int begin = static_cast<int>(blockIdx.x) * kSegment;
  const int count = MinInt(kSegment, p.count - begin);
  uint64_t mine = kNone;
  for (int i = thread; i < count; i += kThreads) {
    const uint64_t key = p.logits != nullptr ? KeyOf(p.logits[row * p.stride + begin + i], begin + i)
                                             : p.keys[row * p.stride + begin + i];
    keys[i] = key;  // this thread's alone
    mine = key > mine ? key : mine;
  }
  for (int round = 0; round < p.k; ++round) {
    const uint64_t of_warp = LargestOfLanes(mine);
    if (thread % 32 == 0) best_of_warp[round % 2][thread / 32] = of_warp;
    __syncthreads();
    uint64_t best = best_of_warp[round % 2][0];
    for (int warp = 1; warp < kWarps; ++warp) {
      const uint64_t other = best_of_warp[round % 2][warp];
      best = other > best ? other : best;
    }
    if (thread == 0) {
      if (p.out != nullptr) {
        p.out[(row * gridDim.x + blockIdx.x) * p.k + round] = best;
      } else {
        const uint32_t ordered = static_cast<uint32_t>(best >> 32);
        const uint32_t bits = ordered & kSign ? ordered & ~kSign : ~ordered;
        p.ids[row * p.k + round] = best == kNone ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
        p.values[row * p.k + round] = best == kNone ? kMinusInfinity : __uint_as_float(bits);
      }
    }
    if (mine == best && best != kNone) {  // keys of a row differ, so one thread has it
      mine = kNone;
      for (int i = thread; i < count; i += kThreads) {
        if (keys[i] == best) keys[i] = kNone;
        mine = keys[i] > mine ? keys[i] : mine;
      }
    }
  }
}

int Segments(int count) {
  return (count + kSegment - 1) / kSegment;
}

}  // namespace

// Winners of the first launch and of the second, which the third reads.
size_t TopKScratchBytes(const TopKArgs& args) {
  const int first = Segments(args.dim);
  if (first == 1) return 0;
  const size_t keys = static_cast<size_t>(first) + static_cast<size_t>(Segments(first * args.k));
  return sizeof(uint64_t) * static_cast<size_t>(args.n_rows) * static_cast<size_t>(args.k) * keys;
}

void LaunchTopK(const TopKArgs& args, void* scratch, Queue* queue) {
  TopKSegments p;
  p.logits = args.x;
  p.stride = args.x_stride;
  p.count = args.dim;
  p.k = args.k;
  p.ids = args.ids;
  p.values = args.values;
  uint64_t* const halves[2] = {static_cast<uint64_t*>(scratch),
                               static_cast<uint64_t*>(scratch) + static_cast<size_t>(args.n_rows) *
                                                                     static_cast<size_t>(args.k) *
                                                                     static_cast<size_t>(Segments(args.dim))};
  for (int launch = 0;; ++launch) {
    const int segments = Segments(p.count);
    p.out = segments > 1 ? halves[launch % 2] : nullptr;
    Launch("TopK", TopKKernel, {static_cast<unsigned>(segments), static_cast<unsigned>(args.n_rows)}, kThreads, 0,
           queue, p);
    if (segments == 1) return;
    p.logits = nullptr;
    p.keys = p.out;
    p.count = segments * args.k;
    p.stride = p.count;
  }
}

}  // namespace layover::gpu
