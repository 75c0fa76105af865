// The bounds of links between machines: those of common/limits.h that only remote stages need.
#ifndef LAYOVER_COMMON_REMOTE_LIMITS_H_
#define LAYOVER_COMMON_REMOTE_LIMITS_H_

#include "common/limits.h"

namespace layover::limits {

inline constexpr int kRemoteSilentMs = 10'000;  // twenty missed beats over TCP: the other machine is gone
inline constexpr int kRemoteAppearMs = 60'000;  // for a remote stage's first answer when the server starts
inline constexpr int kRemoteConnectMs = 2'000;  // for one attempt to connect, beside ZeroMQ's own waits between them
inline constexpr int kRemoteRetryMs = 500;      // between attempts to get a remote stage that another coordinator has
inline constexpr int kRemoteHandshakes = 3;     // failed in a row before anything worked: it is the keys
inline constexpr int kDataPeerMs = 5'000;       // a data link's other end is connecting again after a restart
inline constexpr int kRemotePorts = 5;  // of a remote stage: control, activations in and out, segments out and in
inline constexpr int kSegmentAnswerMs = 10'000;  // for 2 MiB from a disk elsewhere, behind all else that is asked of it

static_assert(kHeartbeatIntervalMs * 10 < kRemoteSilentMs && kRemoteSilentMs < kStageSilentMs,
              "ten missed beats, as on one machine");

}  // namespace layover::limits

#endif  // LAYOVER_COMMON_REMOTE_LIMITS_H_
