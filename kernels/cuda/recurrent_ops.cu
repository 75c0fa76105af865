// CausalConv and GatedDeltaNet: sequences side by side, tokens one after another, the state in registers. Decode and
// prefill are the same recurrence, so they agree to the bit.
#include "common/limits.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"

namespace layover::gpu {
namespace {

constexpr int kTaps = limits::kMaxConvTaps;

// A thread is a channel of a slice.
__global__ void __launch_bounds__(128) CausalConvKernel(CausalConvArgs args) {
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int slice = static_cast<int>(blockIdx.y);
  if (channel >= args.channels) return;
  const SequenceSlice rows = args.slices.slices[slice];
  const long long channels = args.channels;
  const int history = args.taps - 1;
  const int from = args.slots.from[slice];
  float weight[kTaps], past[kTaps];  // the oldest first
  GPU_UNROLL
  for (int t = 0; t < kTaps; ++t) {
    weight[t] = t < args.taps ? args.weight[channel * static_cast<long long>(args.taps) + t] : 0.0f;
    past[t] =
        t < history && from >= 0 ? args.state[(from * static_cast<long long>(history) + t) * channels + channel] : 0.0f;
  }
  for (int row = rows.row_begin; row < rows.row_begin + rows.row_count; ++row) {
    const float u = args.u[row * channels + channel];
    float sum = 0.0f;
    GPU_UNROLL
    for (int t = 0; t < kTaps; ++t) {
      if (t < args.taps) sum = fmaf(weight[t], t < history ? past[t] : u, sum);
    }
    args.out[row * channels + channel] = sum / (1.0f + Exp(0.0f - sum));
    GPU_UNROLL
    for (int t = 0; t < kTaps; ++t) {
      if (t < history) past[t] = t + 1 < history ? past[t + 1 < kTaps ? t + 1 : t] : u;
    }
  }
  const long long to = args.slots.to[slice] * static_cast<long long>(history);
  GPU_UNROLL
  for (int t = 0; t < kTaps; ++t) {
    if (t < history) args.state[(to + t) * channels + channel] = past[t];
  }
}

// ln(1 + e^x), as kernels/cpu/recurrent_ops_kernel.inc has it.
__device__ __forceinline__ float Softplus(float x) {
  const float z = Exp(0.0f - Max(0.0f - x, x));
  const float s = z / (2.0f + z);
  const float square = s * s;
  float series = 2.0f / 17;
  GPU_UNROLL
  for (int n = 15; n > 0; n -= 2) series = fmaf(series, square, 2.0f / static_cast<float>(n));
  return Max(0.0f, x) + s * series;
}

constexpr int kDeltaWarps = 4;
constexpr int kDeltaColumns = 2 * kDeltaWarps;  // of a block: a half warp has one

// x / sqrt(|x|^2 + eps) * scale; this lane's elements are lane, lane + 16, ...
template <int kParts>
__device__ __forceinline__ void Normalise(const float* x, int dim, int lane, float eps, float scale,
                                          float (&out)[kParts]) {
  float sum = 0.0f;
  GPU_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const int d = 16 * i + lane;
    out[i] = d < dim ? x[d] : 0.0f;
    if (16 * i < dim) sum = fmaf(out[i], out[i], sum);
  }
  const float inverse = 1.0f / sqrtf(TreeSum(sum) + eps);
  GPU_UNROLL
  for (int i = 0; i < kParts; ++i) out[i] = out[i] * inverse * scale;
}

// A half warp is a value column of one head of one slice: sixteen lanes are the contract's sixteen lanes.
template <int kParts>
__global__ void __launch_bounds__(kDeltaWarps * 32, 1) DeltaNetKernel(GatedDeltaNetArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int column = static_cast<int>(blockIdx.x) * kDeltaColumns + static_cast<int>(threadIdx.x) / 16;
  const int head = static_cast<int>(blockIdx.y), slice = static_cast<int>(blockIdx.z);
  const int dim = args.dim;
  const bool real = column < dim;  // the others take part in the sums of the warp, and write nothing
  const SequenceSlice rows = args.slices.slices[slice];
  const int key_head = args.key_head_is_modulo ? head % args.key_heads : head / (args.value_heads / args.key_heads);
  const long long width = (2 * args.key_heads + args.value_heads) * static_cast<long long>(dim);
  const long long slot = args.value_heads * static_cast<long long>(dim) * dim;
  const long long at = (head * static_cast<long long>(dim) + (real ? column : 0)) * dim;
  const float scale = 1.0f / sqrtf(static_cast<float>(dim));

  float s[kParts];
  const int from = args.slots.from[slice];
  GPU_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const int d = 16 * i + lane;
    s[i] = d < dim && from >= 0 ? args.state[from * slot + at + d] : 0.0f;
  }
  for (int row = rows.row_begin; row < rows.row_begin + rows.row_count; ++row) {
    const float* qkv = args.qkv + row * width;
    float q[kParts], k[kParts];
    Normalise(qkv + key_head * dim, dim, lane, args.eps, scale, q);
    Normalise(qkv + (args.key_heads + key_head) * dim, dim, lane, args.eps, 1.0f, k);
    const long long of_head = static_cast<long long>(row) * args.value_heads + head;
    const float decay = Exp(args.a[head] * Softplus(args.alpha[of_head] + args.dt_bias[head]));
    const float beta = Sigmoid(args.beta[of_head]);
    const float v = qkv[(2 * args.key_heads + head) * dim + (real ? column : 0)];
    float held = 0.0f, read = 0.0f;
    GPU_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (16 * i < dim) held = fmaf(s[i] * decay, k[i], held);
    }
    const float delta = beta * (v - TreeSum(held));
    GPU_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (16 * i < dim) {
        s[i] = fmaf(k[i], delta, s[i] * decay);
        read = fmaf(s[i], q[i], read);
      }
    }
    read = TreeSum(read);
    if (real && lane == 0) args.out[of_head * dim + column] = read;
  }
  const int to = args.slots.to[slice];
  GPU_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const int d = 16 * i + lane;
    if (real && d < dim) args.state[to * slot + at + d] = s[i];
  }
}

template <int kParts>
void LaunchDelta(const GatedDeltaNetArgs& args, Queue* queue) {
  const Grid grid = {static_cast<unsigned>(args.dim + kDeltaColumns - 1) / kDeltaColumns,
                     static_cast<unsigned>(args.value_heads), static_cast<unsigned>(args.slices.n_slices)};
  Launch("GatedDeltaNet", DeltaNetKernel<kParts>, grid, kDeltaWarps * 32, 0, queue, args);
}

}  // namespace

void LaunchCausalConv(const CausalConvArgs& args, Queue* queue) {
  const Grid grid = {static_cast<unsigned>(args.channels + 127) / 128, static_cast<unsigned>(args.slices.n_slices)};
  Launch("CausalConv", CausalConvKernel, grid, 128, 0, queue, args);
}

void LaunchGatedDeltaNet(const GatedDeltaNetArgs& args, Queue* queue) {
  if (args.dim <= 64) return LaunchDelta<4>(args, queue);
  if (args.dim <= 128) return LaunchDelta<8>(args, queue);
  if (args.dim <= 256) return LaunchDelta<16>(args, queue);
  LaunchDelta<32>(args, queue);
}

}  // namespace layover::gpu
