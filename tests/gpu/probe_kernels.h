// Kernels that are no operation of the back end: one for each wrapped instruction of kernels/cuda/gpu.h, so that
// tests/cuda/wrapped_test.cc can hold it against a plain loop, on a card as under the emulation; and one that reads
// memory as fast as it can be read, the floor that decode is measured against.
#ifndef LAYOVER_TESTS_GPU_PROBE_KERNELS_H_
#define LAYOVER_TESTS_GPU_PROBE_KERNELS_H_

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace layover::gpu {

// All pointers are device memory.

// out[0, 32): Dot4(a, b, c) of in[3 i ...]; out[32, 64): PermuteBytes of the same three.
void LaunchBytes(const uint32_t* in, uint32_t* out, Queue* queue);

// floats[i] = HalfToFloat(i), i in [0, 65536); halves[i] = FloatToHalf(in[i]), i in [0, n), n a multiple of 256.
void LaunchAllHalves(float* floats, Queue* queue);
void LaunchToHalves(const float* in, uint16_t* halves, int n, Queue* queue);

// d[16, 8] += a[16, k] b[8, k]^T of signed bytes, k 32 or 16. Rows go to shared memory by asynchronous copies, A from
// there by LoadMatrices4 (k 32), whose four words of each lane go to `words` [32, 4] too.
struct MmaProbe {
  const int8_t* a = nullptr;
  const int8_t* b = nullptr;
  int32_t* d = nullptr;
  uint32_t* words = nullptr;
};
void LaunchMma32(const MmaProbe& probe, Queue* queue);
void LaunchMma16(const MmaProbe& probe, Queue* queue);

// Lane i of 32 with in[i]: out[0, 32) from lane in[i] % 32, [32, 64) from lane i ^ 5, [64, 96) from lane i - 3 (its own
// below 3), [96, 128) the ballot of in[i] % 3 == 0. out[128]: 64 blocks have added 1 for each of their 32 lanes.
void LaunchCollectives(const uint32_t* in, uint32_t* out, Queue* queue);

// out[i] = in[255 - i], through a shared array, a barrier, and asynchronous copies of 16 bytes in two groups, of which
// the second may be late while the first is used.
void LaunchSharedReverse(const uint32_t* in, uint32_t* out, Queue* queue);

// Thread i of `threads` (a multiple of 256) leaves in sums[i] the exclusive-or of the words that it has read; every
// word of [data, data + bytes) is read once. bytes is a multiple of 16.
struct ReadProbe {
  const void* data = nullptr;
  long long bytes = 0;
  uint32_t* sums = nullptr;
  int threads = 0;
};
void LaunchReadMemory(const ReadProbe& probe, Queue* queue);

}  // namespace layover::gpu

#endif  // LAYOVER_TESTS_GPU_PROBE_KERNELS_H_
