#include "kernels/cuda/gpu.h"
#include "tests/gpu/probe_kernels.h"

namespace layover::gpu {
namespace {

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kRowBytes = 32;  // of A and B in shared memory, also where k is 16

__global__ void __launch_bounds__(32) BytesKernel(const uint32_t* in, uint32_t* out) {
  const int i = static_cast<int>(threadIdx.x);
  const uint32_t a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
  out[i] = static_cast<uint32_t>(Dot4(a, b, static_cast<int32_t>(c)));
  out[32 + i] = PermuteBytes(a, b, c);
}

__global__ void __launch_bounds__(256) AllHalvesKernel(float* floats) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  floats[i] = HalfToFloat(static_cast<uint16_t>(i));
}

__global__ void __launch_bounds__(256) ToHalvesKernel(const float* in, uint16_t* halves) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  halves[i] = FloatToHalf(in[i]);
}

// Rows of kBytes to rows of kRowBytes in shared memory.
template <int kBytes>
__device__ __forceinline__ void StageRows(int8_t* shared, const int8_t* rows, int n_rows) {
  constexpr int kPieces = kBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * kPieces; i += 32) {
    CopyAsync16(shared + i / kPieces * kRowBytes + i % kPieces * 16, rows + i * 16);
  }
}

__device__ __forceinline__ uint32_t WordOf(const int8_t* bytes) {
  return *reinterpret_cast<const uint32_t*>(bytes);
}

// Rows of A [16, kColumns] and B [8, kColumns] in shared memory, kRowBytes apart.
struct Operands {
  const int8_t* a;
  const int8_t* b;
};
template <int kColumns>
__device__ __forceinline__ Operands StageOperands(const MmaProbe& probe) {
  SharedCarver carver;
  int8_t* a = carver.Take<int8_t>(16 * kRowBytes);
  int8_t* b = carver.Take<int8_t>(8 * kRowBytes);
  StageRows<kColumns>(a, probe.a, 16);
  StageRows<kColumns>(b, probe.b, 8);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  return {a, b};
}

// Where element i of a lane's part of D [16, 8] stands.
__device__ __forceinline__ int ResultAt(int lane, int i) {
  return (lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2;
}

__global__ void __launch_bounds__(32) Mma32Kernel(MmaProbe probe) {
  const Operands staged = StageOperands<32>(probe);
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  // Matrix 2 h + s: rows 8 s .., bytes 16 h ..
  const int matrix = lane / 8;
  uint32_t words[4];
  LoadMatrices4(words, staged.a + (matrix % 2 * 8 + lane % 8) * kRowBytes + matrix / 2 * 16);
  const int8_t* const column = staged.b + g * kRowBytes + 4 * t;
  const uint32_t columns[2] = {WordOf(column), WordOf(column + 16)};
  int32_t d[4];
  for (int i = 0; i < 4; ++i) d[i] = probe.d[ResultAt(lane, i)];
  MmaS8K32(d, words, columns);
  for (int i = 0; i < 4; ++i) {
    probe.d[ResultAt(lane, i)] = d[i];
    probe.words[lane * 4 + i] = words[i];
  }
}

__global__ void __launch_bounds__(32) Mma16Kernel(MmaProbe probe) {
  const Operands staged = StageOperands<16>(probe);
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const int8_t* const row = staged.a + g * kRowBytes + 4 * t;
  const uint32_t words[2] = {WordOf(row), WordOf(row + 8 * kRowBytes)};
  int32_t d[4];
  for (int i = 0; i < 4; ++i) d[i] = probe.d[ResultAt(lane, i)];
  MmaS8K16(d, words, WordOf(staged.b + g * kRowBytes + 4 * t));
  for (int i = 0; i < 4; ++i) probe.d[ResultAt(lane, i)] = d[i];
}

__global__ void __launch_bounds__(32) CollectivesKernel(const uint32_t* in, uint32_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t value = in[lane];
  const uint32_t from = __shfl_sync(kAllLanes, value, static_cast<int>(value % 32));
  const uint32_t crossed = __shfl_xor_sync(kAllLanes, value, 5);
  const uint32_t above = __shfl_up_sync(kAllLanes, value, 3);
  const uint32_t votes = __ballot_sync(kAllLanes, value % 3 == 0);
  if (blockIdx.x == 0) {
    out[lane] = from;
    out[32 + lane] = crossed;
    out[64 + lane] = above;
    out[96 + lane] = votes;
  }
  atomicAdd(reinterpret_cast<int*>(out + 128), 1);
}

__global__ void __launch_bounds__(256) SharedReverseKernel(const uint32_t* in, uint32_t* out) {
  GPU_SHARED(uint4, first, [32]);
  GPU_SHARED(uint4, second, [32]);
  const int i = static_cast<int>(threadIdx.x);
  if (i < 32) CopyAsync16(&first[i], in + 4 * i);
  CommitCopies();
  if (i < 32) CopyAsync16(&second[i], in + 128 + 4 * i);
  CommitCopies();
  WaitCopies<1>();
  __syncthreads();
  const int from = 255 - i;
  if (from < 128) out[i] = reinterpret_cast<const uint32_t*>(first)[from];
  WaitCopies<0>();
  __syncthreads();
  if (from >= 128) out[i] = reinterpret_cast<const uint32_t*>(second)[from - 128];
}

__device__ __forceinline__ uint32_t Fold(uint4 v) {
  return v.x ^ v.y ^ v.z ^ v.w;
}

// Four loads under way in each thread, as the products have.
__global__ void __launch_bounds__(256) ReadMemoryKernel(ReadProbe probe) {
  const long long n = probe.bytes / 16, stride = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long self = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint4* data = static_cast<const uint4*>(probe.data);
  uint32_t sum = 0;
  long long i = self;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint4 a = Load16<uint4>(data + i), b = Load16<uint4>(data + i + stride);
    const uint4 c = Load16<uint4>(data + i + 2 * stride), d = Load16<uint4>(data + i + 3 * stride);
    sum ^= Fold(a) ^ Fold(b) ^ Fold(c) ^ Fold(d);
  }
  for (; i < n; i += stride) sum ^= Fold(Load16<uint4>(data + i));
  probe.sums[self] = sum;
}

}  // namespace

void LaunchBytes(const uint32_t* in, uint32_t* out, Queue* queue) {
  Launch("Bytes", BytesKernel, {1}, 32, 0, queue, in, out);
}
void LaunchAllHalves(float* floats, Queue* queue) {
  Launch("AllHalves", AllHalvesKernel, {256}, 256, 0, queue, floats);
}
void LaunchToHalves(const float* in, uint16_t* halves, int n, Queue* queue) {
  Launch("ToHalves", ToHalvesKernel, {static_cast<unsigned>(n / 256)}, 256, 0, queue, in, halves);
}
void LaunchMma32(const MmaProbe& probe, Queue* queue) {
  Launch("Mma32", Mma32Kernel, {1}, 32, 24 * kRowBytes, queue, probe);
}
void LaunchMma16(const MmaProbe& probe, Queue* queue) {
  Launch("Mma16", Mma16Kernel, {1}, 32, 24 * kRowBytes, queue, probe);
}
void LaunchCollectives(const uint32_t* in, uint32_t* out, Queue* queue) {
  Launch("Collectives", CollectivesKernel, {64}, 32, 0, queue, in, out);
}
void LaunchSharedReverse(const uint32_t* in, uint32_t* out, Queue* queue) {
  Launch("SharedReverse", SharedReverseKernel, {1}, 256, 0, queue, in, out);
}
void LaunchReadMemory(const ReadProbe& probe, Queue* queue) {
  Launch("ReadMemory", ReadMemoryKernel, {static_cast<unsigned>(probe.threads / 256)}, 256, 0, queue, probe);
}

}  // namespace layover::gpu
