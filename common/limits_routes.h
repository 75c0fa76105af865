// The bounds of links between stages: those of common/limits.h that only hops need.
#ifndef LAYOVER_COMMON_LIMITS_ROUTES_H_
#define LAYOVER_COMMON_LIMITS_ROUTES_H_

#include "common/limits.h"

namespace layover::limits {

// A hop's ring has a slot for every step in flight and one for the step that is being taken out.
inline constexpr uint32_t kMaxRingSlots = kMaxStepsInFlight + 1;
inline constexpr uint64_t kMaxHopBytes = sizeof(float) * uint64_t{kMaxStepTokens} * uint64_t{kMaxEmbedding};
inline constexpr int kRingSpins = 300;  // looks at a ring before its reader sleeps: about what waking it costs, 10 us
inline constexpr int kPeerConnectMs =
    120'000;  // for two GPUs to find each other; loading NCCL's kernels took 52 s on one machine
inline constexpr int kPeerPollMs = 2;         // between looks at a connection that is being made
inline constexpr int kPeerBuffers = 2;        // hops of the largest size that a GPU keeps until they are received
inline constexpr int kPeerVerdictMs = 2'000;  // for the coordinator to notice a death that NCCL reports first

static_assert(kMaxStepsInFlight >= kMaxStages, "the scheduler lets one step per stage in flight");
static_assert(kPeerConnectMs < kStageLoadDeadlineMs, "the error that knows the reason comes first");

}  // namespace layover::limits

#endif  // LAYOVER_COMMON_LIMITS_ROUTES_H_
