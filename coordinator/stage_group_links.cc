// Which ends of which links each stage gets: activations from stage to stage, segments between machines. A machine is
// known by an address only if a topology names it as a host, so the ends there are those that bind.
#include <algorithm>

#include "common/status.h"
#include "coordinator/stage_group.h"

namespace layover {

absl::Status StageGroup::MakeLinkKeys() {
  hop_keys_.resize(stages_.size());
  segment_keys_.resize(stages_.size());
  const auto make = [](LinkKeys* keys) -> absl::Status {
    ASSIGN_OR_RETURN(keys->bound, wire::NewCurvePair());
    ASSIGN_OR_RETURN(keys->connecting, wire::NewCurvePair());
    return absl::OkStatus();
  };
  const auto has_keys = [](const Stage& stage) { return stage.remote != nullptr && stage.remote->has_keys(); };
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (has_keys(stages_[i])) RETURN_IF_ERROR(make(&segment_keys_[i]));
    if (i > 0 && (has_keys(stages_[i - 1]) || has_keys(stages_[i]))) RETURN_IF_ERROR(make(&hop_keys_[i]));
  }
  return absl::OkStatus();
}

wire::DataEnd StageGroup::EndOf(const LinkKeys& keys, const std::string& endpoint, bool binds) {
  return {.endpoint = endpoint,
          .binds = binds,
          .own_secret = binds ? keys.bound.secret_key : keys.connecting.secret_key,
          .peer_public = binds ? keys.connecting.public_key : keys.bound.public_key};
}

// Of the hop into stage `hop`, the end at `stage`. The receiver binds, but where only the sender's machine is known by an
// address (remote into local) the sender does.
wire::DataEnd StageGroup::EndOfHop(int hop, int stage) const {
  if (LinkOf(hop) != LinkKind::kZmq) return {};
  const RemoteStage* from = stages_[static_cast<size_t>(hop - 1)].remote.get();
  const RemoteStage* into = stages_[static_cast<size_t>(hop)].remote.get();
  const bool sender_binds = into == nullptr && from != nullptr;
  const bool binds = (stage == hop) != sender_binds;
  std::string endpoint = fmt::format("ipc://{}/data-{}", directory_, hop);
  if (into != nullptr || from != nullptr) {
    const RemoteStage& bound = sender_binds ? *from : *into;
    const std::string port = sender_binds ? bound.DataOutPort() : bound.DataInPort();
    endpoint = binds ? "tcp://*:" + port : bound.Reach(port);
  }
  return EndOf(hop_keys_[static_cast<size_t>(hop)], endpoint, binds);
}

// One end of the link over which what `remote` keeps is read, or what the coordinator's machine keeps is read by it. The
// remote stage binds both.
wire::FileEnd StageGroup::SegmentEnd(const Stage& remote, bool of_coordinator, bool binds) const {
  const std::string port = of_coordinator ? remote.remote->SegmentsInPort() : remote.remote->SegmentsOutPort();
  return {.end = EndOf(segment_keys_[static_cast<size_t>(remote.status.stage)],
                       binds ? "tcp://*:" + port : remote.remote->Reach(port), binds),
          .serves = binds != of_coordinator,
          .host = of_coordinator ? "" : remote.remote->host()};
}

std::vector<wire::FileEnd> StageGroup::SegmentEndsFor(const Stage& stage) const {
  std::vector<wire::FileEnd> ends;
  if (store_id_.empty()) return ends;
  // The first stage of this machine reads for those elsewhere.
  const auto reads = std::find_if(stages_.begin(), stages_.end(), [](const Stage& s) { return s.remote == nullptr; });
  for (const Stage& remote : stages_) {
    if (remote.remote == nullptr) continue;
    const bool binds = &remote == &stage;
    ends.push_back(SegmentEnd(remote, false, binds));
    if (reads != stages_.end() && (binds || &*reads == &stage)) ends.push_back(SegmentEnd(remote, true, binds));
  }
  return ends;
}

std::vector<wire::FileEnd> StageGroup::SegmentEnds() const {
  std::vector<wire::FileEnd> ends;
  for (const Stage& stage : stages_) {
    if (stage.remote != nullptr) ends.push_back(SegmentEnd(stage, false, false));
  }
  return ends;
}

}  // namespace layover
