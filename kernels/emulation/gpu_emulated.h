// The host compiler's side of kernels/cuda/gpu.h: CUDA's words, its collectives and the wrapped instructions, on top of
// the engine. Included by gpu.h only. Layouts of fragments: the PTX manual's figures for ldmatrix and for mma.m16n8k16
// and .m16n8k32 with 8-bit integers.
#ifndef LAYOVER_KERNELS_EMULATION_GPU_EMULATED_H_
#define LAYOVER_KERNELS_EMULATION_GPU_EMULATED_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "fmt/format.h"
#include "kernels/cuda/runtime.h"
#include "kernels/emulation/engine.h"
#include "kernels/float16.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict

#define threadIdx (::layover::emulation::current_thread->thread)
#define blockIdx (::layover::emulation::current_thread->block)
#define blockDim (::layover::emulation::current_thread->block_extent)
#define gridDim (::layover::emulation::current_thread->grid_extent)

// Around functions whose accesses are the emulation's and not a kernel's: lanes that hand each other values are no
// race.
#ifdef __SANITIZE_THREAD__
#define GPU_UNWATCHED __attribute__((no_sanitize("thread"), noinline))
#else
#define GPU_UNWATCHED
#endif

#define GPU_UNROLL
// A block's shared array: GPU_SHARED(float, sums, [4][32]).
#define GPU_SHARED(T, name, dims)   \
  static const char name##_key = 0; \
  T(&name) dims = *static_cast<T(*) dims>(::layover::emulation::StaticShared(&name##_key, sizeof(T dims)))

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

// ------------------------------------------------------------------------------------------------------- collectives

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  layover::emulation::BlockBarrier({file, line});
}
inline void __syncwarp(uint32_t mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  layover::emulation::WarpBarrier(mask, {file, line});
}
inline void __threadfence() {}

namespace layover::emulation {

template <typename T>
struct ShuffleLane {
  T value;
  int source;  // lane
};

// A value from a lane outside the mask is poison.
template <typename T>
GPU_UNWATCHED void CombineShuffle(void* const* lanes, uint32_t mask) {
  T values[32];
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) {
      values[i] = static_cast<ShuffleLane<T>*>(lanes[i])->value;
    } else {
      std::memset(&values[i], 0xff, sizeof(T));
    }
  }
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    auto* lane = static_cast<ShuffleLane<T>*>(lanes[i]);
    lane->value = values[lane->source];
  }
}

template <typename T>
GPU_UNWATCHED T Shuffle(const char* what, uint32_t mask, T value, int source, Site site) {
  ShuffleLane<T> lane{value, source};
  WarpRendezvous(what, mask, &lane, CombineShuffle<T>, site);
  return lane.value;
}

inline int Lane() {
  return static_cast<int>(current_thread->thread.x % 32);
}  // of a one-dimensional block

struct BallotLane {
  bool vote;
  uint32_t result;
};
GPU_UNWATCHED inline void CombineBallot(void* const* lanes, uint32_t mask) {
  uint32_t votes = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) votes |= static_cast<uint32_t>(static_cast<BallotLane*>(lanes[i])->vote) << i;
  }
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) static_cast<BallotLane*>(lanes[i])->result = votes;
  }
}
GPU_UNWATCHED inline uint32_t Ballot(uint32_t mask, bool vote, Site site) {
  BallotLane lane{vote, 0};
  WarpRendezvous("__ballot_sync", mask, &lane, CombineBallot, site);
  return lane.result;
}

// An atomic access orders what came before it and what comes after, as __threadfence beside it does on a card.
GPU_UNWATCHED inline int AtomicAdd(int* word, int value) {
  OrderAtomic(word);
  const int before = *word;  // here, not in a function that is watched
  *word = before + value;
  return before;
}

}  // namespace layover::emulation

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return layover::emulation::Shuffle("__shfl_sync", mask, value, source & 31, {file, line});
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return layover::emulation::Shuffle("__shfl_xor_sync", mask, value, (layover::emulation::Lane() ^ lane_mask) & 31,
                                     {file, line});
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, int delta, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const int lane = layover::emulation::Lane();
  return layover::emulation::Shuffle("__shfl_up_sync", mask, value, lane < delta ? lane : lane - delta, {file, line});
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  return layover::emulation::Ballot(mask, vote, {file, line});
}

inline int atomicAdd(int* word, int value) {
  return layover::emulation::AtomicAdd(word, value);
}

// ------------------------------------------------------------------------------------------------------------- math

inline float __int_as_float(int bits) {
  return std::bit_cast<float>(bits);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::lrintf(x));
}
inline int __popc(uint32_t bits) {
  return std::popcount(bits);
}
// One more than the place of the lowest set bit; 0 if there is none.
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
using std::fma;
using std::sqrt;

namespace layover::gpu {

inline float HalfToFloat(uint16_t half) {
  return layover::HalfToFloat(half);
}
inline uint16_t FloatToHalf(float x) {
  return layover::FloatToHalf(x);
}

// c + a[0] b[0] + ... + a[3] b[3] of signed bytes.
inline int32_t Dot4(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}

// Byte i is byte number (selector >> 4 i & 7) of a's four and then b's four.
inline uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  }
  return result;
}

// ------------------------------------------------------------------------------------ memory and wrapped instructions

template <typename T>
T Load16(const void* p, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  static_assert(sizeof(T) == 16);
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) emulation::Misuse({file, line}, "a load of 16 bytes not aligned to 16");
  emulation::CountLoad16();
  return *static_cast<const T*>(p);
}

// Parts of the dynamic shared memory, taken in the same order by all threads.
class SharedCarver {
 public:
  template <typename T>
  T* Take(int n, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<T*>(emulation::DynamicShared(ordinal_++, static_cast<size_t>(n) * sizeof(T), {file, line}));
  }

 private:
  int ordinal_ = 0;
};

inline void CopyAsync16(void* shared, const void* global, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  emulation::CopyAsync16(shared, global, {file, line});
}
inline void CommitCopies() {
  emulation::CommitCopies();
}
template <int kPending>
void WaitCopies(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::WaitCopies(kPending, {file, line});
}

struct MatrixLane {
  const void* row;
  uint32_t* out;
};
GPU_UNWATCHED inline void CombineMatrices(void* const* lanes, uint32_t) {
  for (int to = 0; to < 32; ++to) {
    for (int i = 0; i < 4; ++i) {
      const auto* from = static_cast<const MatrixLane*>(lanes[8 * i + to / 4]);
      std::memcpy(static_cast<MatrixLane*>(lanes[to])->out + i, static_cast<const char*>(from->row) + 4 * (to % 4), 4);
    }
  }
}

// Four matrices of 8 rows of 16 bytes; lane 8 i + r names row r of matrix i and gets bytes [4 (lane % 4), + 4) of row
// lane / 4 of each.
GPU_UNWATCHED inline void LoadMatrices4(uint32_t (&out)[4], const void* row, const char* file = __builtin_FILE(),
                                        int line = __builtin_LINE()) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulation::Misuse({file, line}, "a matrix row not aligned to 16");
  MatrixLane lane{row, out};
  emulation::WarpRendezvous("ldmatrix", 0xffffffffu, &lane, CombineMatrices, {file, line});
}

template <int kWordsA>
struct MmaLane {
  int32_t* d;
  const uint32_t* a;
  const uint32_t* b;
};

// kK is 16 or 32: a lane holds kK / 8 words of A and kK / 16 of B. With g = lane / 4, t = lane % 4:
// word 2 h + s of A is row g + 8 s, columns 16 h + 4 t ..; word h of B is rows 16 h + 4 t .., column g;
// d[2 s + j] is row g + 8 s, column 2 t + j.
template <int kK>
GPU_UNWATCHED void CombineMma(void* const* lanes, uint32_t) {
  constexpr int kHalves = kK / 16;
  int8_t a[16][kK], b[8][kK];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& from = *static_cast<const MmaLane<kHalves * 2>*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int h = 0; h < kHalves; ++h) {
      for (int s = 0; s < 2; ++s) std::memcpy(&a[g + 8 * s][16 * h + 4 * t], &from.a[2 * h + s], 4);
      std::memcpy(&b[g][16 * h + 4 * t], &from.b[h], 4);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto& to = *static_cast<MmaLane<kHalves * 2>*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      int32_t sum = to.d[i];
      for (int k = 0; k < kK; ++k) sum += a[row][k] * b[column][k];
      to.d[i] = sum;
    }
  }
}

// d += A B of signed bytes: A 16 x 32, B 32 x 8.
GPU_UNWATCHED inline void MmaS8K32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                   const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  MmaLane<4> lane{d, a, b};
  emulation::WarpRendezvous("mma.m16n8k32", 0xffffffffu, &lane, CombineMma<32>, {file, line});
}
// A 16 x 16, B 16 x 8.
GPU_UNWATCHED inline void MmaS8K16(int32_t (&d)[4], const uint32_t (&a)[2], uint32_t b,
                                   const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  MmaLane<2> lane{d, a, &b};
  emulation::WarpRendezvous("mma.m16n8k16", 0xffffffffu, &lane, CombineMma<16>, {file, line});
}

// ------------------------------------------------------------------------------------------------------------ launch

// A value's bytes, those between its fields cleared, so that equal values have equal ones.
template <typename T>
void AppendBytes(T value, std::string* bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  __builtin_clear_padding(&value);
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Puts the kernel in the queue with copies of its arguments.
template <typename... Parameters, typename... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads, size_t shared_bytes, Queue* queue,
            const Arguments&... arguments) {
  emulation::KernelEntry entry;
  entry.name = name;
  entry.grid = grid;
  entry.threads = threads;
  entry.shared_bytes = shared_bytes;
  entry.body = [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); };
  AppendBytes(kernel, &entry.arguments);
  AppendBytes(grid, &entry.arguments);
  AppendBytes(threads, &entry.arguments);
  AppendBytes(shared_bytes, &entry.arguments);
  (AppendBytes(static_cast<Parameters>(arguments), &entry.arguments), ...);
  emulation::EnqueueKernel(queue, std::move(entry));
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_EMULATION_GPU_EMULATED_H_
