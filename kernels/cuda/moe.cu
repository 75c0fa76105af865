// MoeRoute and MoeCombine. The experts' products are MatMul's kernels with rows of one expert (product_rows.h).
#include "common/limits.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"

namespace layover::gpu {
namespace {

constexpr int kPerLane = (limits::kMaxExperts + 31) / 32;
static_assert(kPerLane <= 32, "a lane marks its experts in one word");

// A warp is a row. Lane l has the experts l, l + 32, ...; k rounds of the largest that is left.
__global__ void __launch_bounds__(32) MoeRouteKernel(MoeRouteArgs args) {
  const int lane = static_cast<int>(threadIdx.x);
  const float* logits = args.logits + static_cast<long long>(blockIdx.x) * args.experts;
  int32_t* chosen = args.chosen + static_cast<long long>(blockIdx.x) * args.k;
  float* weights = args.weights + static_cast<long long>(blockIdx.x) * args.k;
  uint32_t mine = 0;  // chosen ones: bit j is expert lane + 32 j
  float max = 0.0f;
  for (int round = 0; round < args.k; ++round) {
    float best = kMinusInfinity;
    int best_id = limits::kMaxExperts;  // none
    for (int e = lane, j = 0; e < args.experts; e += 32, ++j) {
      if (mine >> j & 1) continue;
      const float logit = logits[e] == logits[e] ? logits[e] : kMinusInfinity;  // a NaN is below everything
      if (best_id == limits::kMaxExperts || logit > best) {
        best = logit;
        best_id = e;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, step);
      const int other_id = __shfl_xor_sync(kAllLanes, best_id, step);
      if (other_id != limits::kMaxExperts &&
          (best_id == limits::kMaxExperts || other > best || (other == best && other_id < best_id))) {
        best = other;
        best_id = other_id;
      }
    }
    if (round == 0) max = best;
    if (best_id % 32 == lane) mine |= 1u << (best_id / 32);
  }
  // Sixteen lanes; both halves of the warp do the same.
  float all = 0.0f;
  for (int e = lane % 16; e < (args.experts + 15) / 16 * 16; e += 16) {
    all = all + (e < args.experts ? Exp(logits[e] - max) : 0.0f);
  }
  all = TreeSum(all);
  int before = 0;
  for (int j = 0; 32 * j < args.experts; ++j) {
    const uint32_t there = __ballot_sync(kAllLanes, (mine >> j & 1) != 0);
    if (mine >> j & 1) chosen[before + __popc(there & ((1u << lane) - 1))] = lane + 32 * j;
    before += __popc(there);
  }
  __syncwarp();                         // the chosen ones are written
  float sum = all == all ? 0.0f : all;  // a NaN that was not chosen counts as well
  for (int i = 0; i < args.k; ++i) {
    float part = Exp(logits[chosen[i]] - max);
    if (!args.softmax_after_top_k) part = part / all;
    sum = sum + part;
  }
  if (!args.softmax_after_top_k && sum < 0x1p-14f) sum = 0x1p-14f;
  for (int i = lane; i < args.k; i += 32) {
    float part = Exp(logits[chosen[i]] - max);
    if (!args.softmax_after_top_k) part = part / all;
    weights[i] = part / sum * args.weight_scale;
  }
}

__global__ void __launch_bounds__(256) MoeCombineKernel(MoeCombineArgs args) {
  const int d = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (d >= args.dim) return;
  const long long row = blockIdx.x;
  float sum = args.residual[row * args.dim + d];
  for (int j = 0; j < args.k; ++j) {
    sum = fmaf(args.weights[row * args.k + j], args.parts[(row * args.k + j) * args.dim + d], sum);
  }
  args.out[row * args.dim + d] = sum;
}

}  // namespace

void LaunchMoeRoute(const MoeRouteArgs& args, Queue* queue) {
  Launch("MoeRoute", MoeRouteKernel, {static_cast<unsigned>(args.n_rows)}, 32, 0, queue, args);
}

void LaunchMoeCombine(const MoeCombineArgs& args, Queue* queue) {
  const unsigned blocks = static_cast<unsigned>(args.dim + 255) / 256;
  Launch("MoeCombine", MoeCombineKernel, {static_cast<unsigned>(args.n_rows), blocks}, 256, 0, queue, args);
}

}  // namespace layover::gpu
