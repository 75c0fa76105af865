// Cuts recurrent operations into pieces and spreads them over the threads.
#include "kernels/cpu/recurrent_ops.h"

#include <algorithm>

#include "common/check.h"
#include "common/limits.h"

namespace layover {

namespace scalar {
extern const CpuRecurrentKernels kRecurrentKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const CpuRecurrentKernels kRecurrentKernels;
}
namespace avx512 {
extern const CpuRecurrentKernels kRecurrentKernels;
}
#endif

namespace {

constexpr int kConvChannels = 64;    // of a piece
constexpr int kDeltaColumns = 32;    // of a piece: enough to pay for normalising its keys and queries
constexpr int kWorthAThread = 8000;  // multiplications

const CpuRecurrentKernels& KernelsFor(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return avx512::kRecurrentKernels;
  if (isa == CpuIsa::kAvx2) return avx2::kRecurrentKernels;
#endif
  return scalar::kRecurrentKernels;
}

void CheckSlots(const StateSlots& slots, int n_slices) {
  for (int s = 0; s < n_slices; ++s) {
    LAYOVER_CHECK(slots.from[s] >= -1 && slots.to[s] >= 0);
    for (int other = 0; other < n_slices; ++other) {
      if (other != s) LAYOVER_CHECK(slots.to[s] != slots.to[other] && slots.to[s] != slots.from[other]);
    }
  }
}

// Pieces a thread takes at once, so that it is worth handing them over.
int Grain(int64_t multiplications, int pieces) {
  const int64_t of_one = std::max<int64_t>(1, multiplications / std::max(1, pieces));
  return static_cast<int>(std::clamp<int64_t>(kWorthAThread / of_one, 1, 1 << 20));
}

}  // namespace

CpuRecurrentOps::CpuRecurrentOps(CpuIsa isa, int threads) : kernels_(KernelsFor(isa)), scratch_(threads) {}

void CpuRecurrentOps::CausalConv(const CausalConvArgs& args, ThreadPool* pool) {
  LAYOVER_CHECK(args.channels > 0 && args.taps >= 1 && args.taps <= limits::kMaxConvTaps && args.out != args.u);
  CheckSlots(args.slots, args.slices.n_slices);
  const int per_slice = (args.channels + kConvChannels - 1) / kConvChannels;
  const int pieces = args.slices.n_slices * per_slice;
  const int64_t work = static_cast<int64_t>(args.slices.n_rows) * args.channels * args.taps;
  pool->ForRanges(pieces, Grain(work, pieces), [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      const int channel = i % per_slice * kConvChannels;
      kernels_.causal_conv(args, {i / per_slice, channel, std::min(channel + kConvChannels, args.channels)});
    }
  });
}

void CpuRecurrentOps::GatedDeltaNet(const GatedDeltaNetArgs& args, ThreadPool* pool) {
  LAYOVER_CHECK(args.dim > 0 && args.dim <= limits::kMaxHeadDim && args.key_heads > 0 && args.value_heads > 0);
  LAYOVER_CHECK(args.value_heads % args.key_heads == 0);
  CheckSlots(args.slots, args.slices.n_slices);
  const int per_head = (args.dim + kDeltaColumns - 1) / kDeltaColumns;
  const int per_slice = args.value_heads * per_head;
  const int pieces = args.slices.n_slices * per_slice;
  const int64_t work = static_cast<int64_t>(args.slices.n_rows) * args.value_heads * args.dim * args.dim;
  pool->ForRanges(pieces, Grain(work, pieces), [&](int begin, int end, int thread) {
    std::vector<float>& scratch = scratch_[thread];
    scratch.resize(std::max<size_t>(scratch.size(), DeltaNetScratchFloats(args.dim)));
    for (int i = begin; i < end; ++i) {
      const int column = i % per_head * kDeltaColumns;
      kernels_.delta_net(args, {i / per_slice, i % per_slice / per_head, column,
                                std::min(column + kDeltaColumns, args.dim), scratch.data()});
    }
  });
}

}  // namespace layover
