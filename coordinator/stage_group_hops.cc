// What hops between stages need anew in every epoch: rings in shared memory, and for NCCL an introduction.
#include <utility>

#include "common/hop_memory.h"
#include "common/status.h"
#include "coordinator/stage_group.h"

namespace layover {

LinkKind StageGroup::LinkOf(int hop) const {
  return hop == 0 || hop == n_stages() ? LinkKind::kAuto : plan_.stages[static_cast<size_t>(hop)].link;
}

// Closes the last epoch's rings and makes those of this one.
absl::Status StageGroup::RenewHops() {
  CloseRings();
  const std::vector<Hop> old =
      std::exchange(hops_, {});  // to the end of this function: no two epochs share a descriptor
  hops_.resize(stages_.size());
  for (size_t i = 1; i < stages_.size(); ++i) {
    const LinkKind link = plan_.stages[i].link;
    if (link == LinkKind::kZmq) continue;
    const wire::RingShape shape{.hop = static_cast<uint32_t>(i),
                                .epoch = epoch_,
                                .n_slots = HopRingSlots(n_stages()),
                                .slot_bytes = link == LinkKind::kShm ? plan_.hop_bytes : 0};
    ASSIGN_OR_RETURN(hops_[i].ring, wire::HopRing::Create(shape));
  }
  return absl::OkStatus();
}

void StageGroup::CloseRings() {
  for (const Hop& hop : hops_) {
    if (hop.ring != nullptr) hop.ring->Close();
  }
}

wire::Reset StageGroup::ResetFor(int stage) const {
  const auto address = [this](int hop) {
    const bool there = hop < n_stages() && hops_[static_cast<size_t>(hop)].ring != nullptr;
    return there ? hops_[static_cast<size_t>(hop)].ring->address() : wire::RingAddress();
  };
  return {.ring_in = address(stage), .ring_out = address(stage + 1)};
}

// The stage after is told when it is there to be told.
void StageGroup::HandOver(int hop) {
  const std::string& id = hops_[static_cast<size_t>(hop)].peer_id;
  if (!id.empty() && stages_[static_cast<size_t>(hop)].status.state == StageState::kUp) SendTo(hop, wire::JoinHop{id});
}

void StageGroup::TakeOffer(int stage, const wire::HopOffered& offer) {
  if (stage + 1 == n_stages()) return;
  hops_[static_cast<size_t>(stage + 1)].peer_id = offer.peer_id;
  HandOver(stage + 1);
}

void StageGroup::TakeJoined(int stage, const wire::HopJoined& joined) {
  if (!joined.inward && stage + 1 == n_stages()) return;
  Hop& hop = hops_[static_cast<size_t>(joined.inward ? stage : stage + 1)];
  (joined.inward ? hop.receiver_joined : hop.sender_joined) = true;
  if (up()) listener_->OnStagesUp();
}

}  // namespace layover
