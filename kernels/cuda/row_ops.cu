// RmsNorm, RopeAngles, Rope, Gated and GatherRows.
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"

namespace layover::gpu {
namespace {

constexpr int kNormChunk = 4096;  // floats of a row in shared memory at a time

// A block is a row. The row comes in by all threads; sixteen lanes add it up in the contract's order, which is a chain
// of dim / 16 fused steps.
__global__ void __launch_bounds__(256) RmsNormKernel(RmsNormArgs args) {
  GPU_SHARED(float, chunk, [kNormChunk]);
  GPU_SHARED(float, inverse_of_row, [1]);
  const float* x = args.x + static_cast<long long>(blockIdx.x) * args.x_stride;
  float* y = args.y + static_cast<long long>(blockIdx.x) * args.y_stride;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  float sum = 0.0f;
  for (int begin = 0; begin < args.dim; begin += kNormChunk) {
    const int count = MinInt(kNormChunk, args.dim - begin);
    for (int i = thread; i < count; i += threads) chunk[i] = x[begin + i];
    __syncthreads();
    if (thread < 16) {
      for (int i = thread; i < count; i += 16) sum = fmaf(chunk[i], chunk[i], sum);
    }
    __syncthreads();
  }
  if (thread < 32) {
    sum = TreeSum(sum);
    if (thread == 0) inverse_of_row[0] = 1.0f / sqrtf(sum / static_cast<float>(args.dim) + args.eps);
  }
  __syncthreads();
  const float inverse = inverse_of_row[0];
  for (int i = thread; i < args.dim; i += threads) y[i] = x[i] * inverse * args.weight[i];
}

__global__ void __launch_bounds__(128) RopeAnglesKernel(RopeAnglesArgs args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= args.n_rows * args.n_pairs) return;
  double c, s;
  const double position = args.positions[i / args.n_pairs];
  CosSin(position * args.frequencies[i % args.n_pairs], &c, &s);
  const double magnitude = args.magnitude;
  args.angles[2 * i] = static_cast<float>(c * magnitude);
  args.angles[2 * i + 1] = static_cast<float>(s * magnitude);
}

__global__ void __launch_bounds__(128) RopeKernel(RopeArgs args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  if (i >= args.heads * args.n_pairs) return;
  const int head = i / args.n_pairs;
  const int pair = i % args.n_pairs;
  const bool norm = args.pairing == RopePairing::kNorm;
  float* first = args.x + static_cast<long long>(row) * args.x_stride + head * args.head_dim + (norm ? 2 * pair : pair);
  float* second = first + (norm ? 1 : args.n_pairs);
  const float* angle = args.angles + (static_cast<long long>(row) * args.n_pairs + pair) * 2;
  const float a = *first, b = *second, c = angle[0], s = angle[1];
  *first = fmaf(a, c, 0.0f - b * s);
  *second = fmaf(b, c, a * s);
}

__device__ __forceinline__ float Activate(GateKind kind, float g) {
  switch (kind) {
    case GateKind::kSilu:
      return g / (1.0f + Exp(0.0f - g));
    case GateKind::kSigmoid:
      return Sigmoid(g);
    default: {
      const float cubic = fmaf(0.044715f * (g * g), g, g);
      return g / (1.0f + Exp(-1.5957691216057308f * cubic));
    }
  }
}

// gpt-oss. The bounds stand first, so that a NaN passes through.
__device__ __forceinline__ float ClampedSwiglu(float g, float u) {
  g = Min(7.0f, g);
  u = Max(-7.0f, Min(7.0f, u));
  return g / (1.0f + Exp(-1.702f * g)) * (u + 1.0f);
}

__global__ void __launch_bounds__(256) GatedKernel(GatedArgs args) {
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const long long row = blockIdx.x;
  if (i >= args.dim) return;
  const float gate = args.gate[row * args.gate_stride + i];
  float out;
  if (args.up == nullptr) {
    out = Activate(args.kind, gate);
  } else {
    const float up = args.up[row * args.up_stride + i];
    out = args.kind == GateKind::kClampedSwiglu ? ClampedSwiglu(gate, up) : Activate(args.kind, gate) * up;
  }
  args.out[row * args.out_stride + i] = out;
}

__global__ void __launch_bounds__(256) GatherRowsKernel(GatherRowsArgs args) {
  const float* from = args.x + static_cast<long long>(args.rows[blockIdx.x]) * args.dim;
  float* to = args.out + static_cast<long long>(blockIdx.x) * args.dim;
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += static_cast<int>(blockDim.x)) to[i] = from[i];
}

unsigned Blocks(long long n, int threads) {
  return static_cast<unsigned>((n + threads - 1) / threads);
}

}  // namespace

void LaunchRmsNorm(const RmsNormArgs& args, Queue* queue) {
  Launch("RmsNorm", RmsNormKernel, {static_cast<unsigned>(args.n_rows)}, args.dim <= 256 ? 32 : 256, 0, queue, args);
}
void LaunchRopeAngles(const RopeAnglesArgs& args, Queue* queue) {
  Launch("RopeAngles", RopeAnglesKernel, {Blocks(static_cast<long long>(args.n_rows) * args.n_pairs, 128)}, 128, 0,
         queue, args);
}
void LaunchRope(const RopeArgs& args, Queue* queue) {
  Launch("Rope", RopeKernel, {Blocks(args.heads * args.n_pairs, 128), static_cast<unsigned>(args.n_rows)}, 128, 0,
         queue, args);
}
void LaunchGated(const GatedArgs& args, Queue* queue) {
  Launch("Gated", GatedKernel, {static_cast<unsigned>(args.n_rows), Blocks(args.dim, 256)}, 256, 0, queue, args);
}
void LaunchGatherRows(const GatherRowsArgs& args, Queue* queue) {
  Launch("GatherRows", GatherRowsKernel, {static_cast<unsigned>(args.n_rows)}, 256, 0, queue, args);
}

}  // namespace layover::gpu
