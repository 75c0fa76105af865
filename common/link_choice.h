// Which link a hop between two stages runs over: one pure function of what the topology asks for and where the two
// stages are. `plan` prints it, the coordinator builds by it.
#ifndef LAYOVER_COMMON_LINK_CHOICE_H_
#define LAYOVER_COMMON_LINK_CHOICE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "common/topology.h"

namespace layover {

// One end of a hop, as the topology says it.
struct HopEnd {
  std::string_view device;  // "cpu", "cuda:N", "emu:N"
  std::string_view host;    // empty: the coordinator's machine
};

// shm between two stages of the coordinator's machine (two on one card too), zmq wherever another machine is an end.
// `wanted` other than kAuto is taken as it is, or refused: InvalidArgument with the reason, without file and line.
absl::StatusOr<LinkKind> ChooseLink(LinkKind wanted, const HopEnd& from, const HopEnd& into);

// Of the hop into stage `stage`, which is not the first.
absl::StatusOr<LinkKind> ChooseLink(const Topology& topology, size_t stage);

}  // namespace layover

#endif  // LAYOVER_COMMON_LINK_CHOICE_H_
