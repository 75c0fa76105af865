#include "common/link_choice.h"

#include "common/status.h"

namespace layover {
namespace {

// "cuda" of "cuda:1"
std::string_view KindOf(std::string_view device) {
  return device.substr(0, device.find(':'));
}

absl::Status CheckNccl(const HopEnd& from, const HopEnd& into) {
  if (from.device == "cpu" || into.device == "cpu")
    return InvalidArgument("link nccl joins two GPUs, this hop has a cpu");
  if (!from.host.empty() || !into.host.empty()) return InvalidArgument("link nccl joins stages of one host");
  if (KindOf(from.device) != KindOf(into.device)) {
    return InvalidArgument("link nccl joins two GPUs of one kind, not {} and {}", from.device, into.device);
  }
  if (from.device == into.device) {
    return InvalidArgument("link nccl joins two GPUs, and NCCL refuses two stages on {}; link shm serves them",
                           from.device);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LinkKind> ChooseLink(LinkKind wanted, const HopEnd& from, const HopEnd& into) {
  const bool one_machine = from.host.empty() && into.host.empty();
  switch (wanted) {
    case LinkKind::kAuto:
      return one_machine ? LinkKind::kShm : LinkKind::kZmq;
    case LinkKind::kZmq:
      return wanted;
    case LinkKind::kShm:
      if (!one_machine) return InvalidArgument("link shm joins stages of one host");
      return wanted;
    case LinkKind::kNccl:
      RETURN_IF_ERROR(CheckNccl(from, into));
      return wanted;
  }
  return Internal("link {} is unknown", static_cast<int>(wanted));
}

absl::StatusOr<LinkKind> ChooseLink(const Topology& topology, size_t stage) {
  const StageSettings& from = topology.stages[stage - 1];
  const StageSettings& into = topology.stages[stage];
  absl::StatusOr<LinkKind> link = ChooseLink(into.link, {from.device, from.host}, {into.device, into.host});
  if (link.ok()) return link;
  return InvalidArgument("{}:{}: stage {}: {}", topology.file, into.line, stage, ToStd(link.status().message()));
}

}  // namespace layover
