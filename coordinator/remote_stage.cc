#include "coordinator/remote_stage.h"

#include <cstdlib>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

namespace layover {
namespace {

using LinkEvent = wire::Socket::LinkEvent;

template <typename TimePoint>
int64_t MsSince(TimePoint when) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(TimePoint::clock::now() - when).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteStage>> RemoteStage::Create(wire::SocketContext& context, const Topology& topology,
                                                                 int stage, uint64_t coordinator) {
  const StageSettings& settings = topology.stages[static_cast<size_t>(stage)];
  std::unique_ptr<RemoteStage> remote(new RemoteStage(context, stage, coordinator));
  remote->host_ = settings.host;
  const size_t colon = settings.host.rfind(':');
  remote->address_ = settings.host.substr(0, colon);
  remote->port_ = std::atoi(settings.host.c_str() + colon + 1);
  if (settings.secret_key_file.empty()) return remote;
  auto keys = wire::ReadCurveKeys(settings.secret_key_file, settings.public_key_file);
  if (!keys.ok())
    return InvalidArgument("{}:{}: stage {}: {}", topology.file, settings.line, stage, ToStd(keys.status().message()));
  remote->keys_ = *std::move(keys);
  return remote;
}

absl::Status RemoteStage::Attach(uint32_t epoch) {
  epoch_ = epoch;
  attach_begin_ = Clock::now();
  told_waiting_ = false;
  return Connect();
}

// A new socket each time: nothing that was meant for an older worker is left in it.
absl::Status RemoteStage::Connect() {
  link_.reset();
  watch_.reset();
  connected_ = asks_again_ = false;
  last_beat_ = last_heard_ = Clock::now();
  ASSIGN_OR_RETURN(link_, wire::Socket::Open(context_, wire::SocketKind::kDealer, {.curve = keys_}));
  ASSIGN_OR_RETURN(watch_, link_->WatchLink());
  RETURN_IF_ERROR(link_->Connect(host_));
  return Send(wire::Encode({.epoch = epoch_}, wire::Attach{.stage = stage_, .coordinator = coordinator_}));
}

void RemoteStage::Detach() {
  if (link_ == nullptr) return;
  (void)Send(wire::Encode({.epoch = epoch_}, wire::Shutdown{}));
  link_.reset();
  watch_.reset();
}

absl::Status RemoteStage::Send(std::string_view bytes) {
  if (link_ == nullptr) return Unavailable("stage {} is not connected", stage_);
  return link_->Send({bytes});
}

absl::StatusOr<std::optional<std::string>> RemoteStage::Receive(bool* permanent) {
  *permanent = false;
  if (link_ == nullptr) return std::nullopt;
  ASSIGN_OR_RETURN(auto parts, link_->Receive());
  if (!parts.has_value()) {
    // What had come before the connection broke has been read by now.
    RETURN_IF_ERROR(LookAtLink(permanent));
    return std::nullopt;
  }
  last_heard_ = Clock::now();
  return std::move(parts->back());
}

absl::Status RemoteStage::LookAtLink(bool* permanent) {
  while (true) {
    const LinkEvent event = watch_->NextLinkEvent();
    if (event == LinkEvent::kNone) return absl::OkStatus();
    if (event == LinkEvent::kUp) {
      connected_ = ever_connected_ = true;
      last_heard_ = Clock::now();
      failed_handshakes_ = 0;
      continue;
    }
    if (event == LinkEvent::kLost && connected_) {
      link_.reset();
      return Unavailable("stage {}: the connection to {} broke", stage_, host_);
    }
    return HandshakeFailed(event, permanent);
  }
}

// Before anything ever worked it is a mistake that a person made; later the other side is on its way down or up.
absl::Status RemoteStage::HandshakeFailed(LinkEvent event, bool* permanent) {
  std::string why = "closed the connection before it was made; does public_key_file hold the key of the worker there?";
  if (event == LinkEvent::kKeyRefused)
    why = "does not let this coordinator's key in (secret_key_file; --public-key-file there)";
  // A machine with keys may only hang up on one without.
  if (event == LinkEvent::kOtherSecurity || keys_.empty()) why = "and this topology differ in whether they use keys";
  const bool certain = event == LinkEvent::kKeyRefused || event == LinkEvent::kOtherSecurity;
  *permanent = !ever_connected_ && (certain || ++failed_handshakes_ >= limits::kRemoteHandshakes);
  if (!*permanent) {
    // ZeroMQ tries again by itself, and the Attach still waits in the socket.
    LogWarning("stage {}: {} {}", stage_, host_, why);
    return absl::OkStatus();
  }
  link_.reset();
  return FailedPrecondition("stage {}: {} {}", stage_, host_, why);
}

absl::Status RemoteStage::Tick() {
  if (link_ == nullptr) return absl::OkStatus();
  if (!connected_) {
    if (!told_waiting_ && MsSince(attach_begin_) > limits::kRemoteRetryMs) {
      LogWarning("stage {}: waiting for {}", stage_, host_);
      told_waiting_ = true;
    }
    return absl::OkStatus();
  }
  if (asks_again_ && MsSince(last_heard_) >= limits::kRemoteRetryMs) {
    if (!told_waiting_) LogWarning("stage {}: another coordinator has {}", stage_, host_);
    told_waiting_ = true;
    return Connect();
  }
  if (MsSince(last_beat_) >= limits::kHeartbeatIntervalMs) {
    last_beat_ = Clock::now();
    (void)Send(wire::Encode({.epoch = epoch_}, wire::KeepAlive{}));
  }
  if (MsSince(last_heard_) < limits::kRemoteSilentMs) return absl::OkStatus();
  link_.reset();
  return Unavailable("stage {}: {} has been silent for {} ms", stage_, host_, limits::kRemoteSilentMs);
}

void RemoteStage::AddPollItems(std::vector<wire::PollItem>* items) const {
  if (link_ == nullptr) return;
  items->push_back({.socket = link_.get()});
  items->push_back({.socket = watch_.get()});
}

}  // namespace layover
