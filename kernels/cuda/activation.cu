// PrepareActivation: a warp is a block of 32 values.
#include "kernels/cuda/activation_layout.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"

namespace layover::gpu {
namespace {

constexpr float kLargest = 32639.0f;
constexpr uint32_t kSmallestMaximumBits = 27u << 23;  // 2^-100: below, a block is zero
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;
constexpr int kWarps = 8;

__device__ __forceinline__ int SumOf16(int x) {
  x += __shfl_xor_sync(kAllLanes, x, 8);
  x += __shfl_xor_sync(kAllLanes, x, 4);
  x += __shfl_xor_sync(kAllLanes, x, 2);
  return x + __shfl_xor_sync(kAllLanes, x, 1);
}

__global__ void __launch_bounds__(kWarps * 32) PrepareA16Kernel(PrepareActivationArgs args) {
  const int blocks = args.dim / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int block = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const long long row = blockIdx.x;
  if (block >= blocks) return;  // the whole warp
  const float x = args.x[row * args.x_stride + block * 32 + lane];
  uint32_t largest = __float_as_uint(x) & 0x7fffffffu;  // as integers, magnitudes compare as they do as floats
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, largest, step);
    largest = other > largest ? other : largest;
  }
  const bool usable = largest < kInfinityBits && largest >= kSmallestMaximumBits;
  int a = 0;
  if (usable) a = __float2int_rn(x * (kLargest / __uint_as_float(largest)));
  const int sum = SumOf16(a);
  const int other_sum = __shfl_xor_sync(kAllLanes, sum, 16);

  int8_t* out = static_cast<int8_t*>(args.out) + row * blocks * kA16BlockBytes;
  out[block * kA16ValueBytes + lane] = static_cast<int8_t>((a + 128) >> 8);
  out[block * kA16ValueBytes + 32 + lane] = static_cast<int8_t>(a & 255);
  if (lane != 0) return;
  A16Info info;
  info.scale = usable                    ? __uint_as_float(largest) / kLargest
               : largest < kInfinityBits ? 0.0f
                                         : __uint_as_float(kNanBits);
  info.scaled_sum = usable ? static_cast<float>(sum + other_sum) * info.scale : info.scale;
  info.first_sum = sum;
  info.second_sum = other_sum;
  reinterpret_cast<A16Info*>(out + blocks * kA16ValueBytes)[block] = info;
}

__global__ void __launch_bounds__(256) PrepareF32Kernel(PrepareActivationArgs args) {
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const long long row = blockIdx.x;
  if (i < args.dim) static_cast<float*>(args.out)[row * args.dim + i] = args.x[row * args.x_stride + i];
}

}  // namespace

void LaunchPrepareA16(const PrepareActivationArgs& args, Queue* queue) {
  const unsigned blocks = static_cast<unsigned>(args.dim / 32 + kWarps - 1) / kWarps;
  Launch("PrepareA16", PrepareA16Kernel, {static_cast<unsigned>(args.n_rows), blocks}, kWarps * 32, 0, queue, args);
}

void LaunchPrepareF32(const PrepareActivationArgs& args, Queue* queue) {
  const unsigned blocks = static_cast<unsigned>(args.dim + 255) / 256;
  Launch("PrepareF32", PrepareF32Kernel, {static_cast<unsigned>(args.n_rows), blocks}, 256, 0, queue, args);
}

}  // namespace layover::gpu
