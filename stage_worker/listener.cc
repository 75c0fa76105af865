#include "stage_worker/listener.h"

#include <unistd.h>

#include <filesystem>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

namespace layover {
namespace {

bool IsLoopback(std::string_view host) {
  return host.starts_with("127.") || host == "localhost" || host == "[::1]";
}

// "0.0.0.0" of "tcp://0.0.0.0:7001"; nothing if it is not of that form.
absl::StatusOr<std::string> HostOf(const std::string& endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kScheme) || colon <= kScheme.size()) {
    return InvalidArgument("--listen: '{}' is not tcp://ADDRESS:PORT", endpoint.substr(0, 80));
  }
  const std::string digits = endpoint.substr(colon + 1);
  const bool is_number =
      !digits.empty() && digits.size() <= 5 && digits.find_first_not_of("0123456789") == std::string::npos;
  const int port = is_number ? std::atoi(digits.c_str()) : 0;
  if (port < 1 || port > 65'535 - (limits::kRemotePorts - 1)) {
    return InvalidArgument("--listen: the port of '{}' must be 1 to {}: the four after it are used too",
                           endpoint.substr(0, 80), 65'535 - (limits::kRemotePorts - 1));
  }
  return endpoint.substr(kScheme.size(), colon - kScheme.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageListener>> StageListener::Open(const ListenOptions& options) {
  std::unique_ptr<StageListener> listener(new StageListener(options));
  ASSIGN_OR_RETURN(const std::string host, HostOf(options.endpoint));
  wire::SocketOptions outside;
  if (!options.secret_key_file.empty()) {
    ASSIGN_OR_RETURN(outside.curve, wire::ReadCurveKeys(options.secret_key_file, options.public_key_file));
    outside.curve.is_server = true;
  } else if (!IsLoopback(host)) {
    LogWarning("without keys whoever reaches {} can use this machine: --secret-key-file and --public-key-file",
               options.endpoint);
  }
  if (!options.store.empty()) {
    RETURN_IF_ERROR(PrepareStore(options.store));
    ASSIGN_OR_RETURN(listener->lock_, StoreLock::Acquire(options.store));
  }
  ASSIGN_OR_RETURN(listener->directory_, MakeSocketFolder());
  ASSIGN_OR_RETURN(listener->inside_, wire::Socket::Open(listener->context_, wire::SocketKind::kRouter, {}));
  RETURN_IF_ERROR(listener->inside_->Bind("ipc://" + listener->directory_ + "/control"));
  ASSIGN_OR_RETURN(listener->outside_, wire::Socket::Open(listener->context_, wire::SocketKind::kRouter, outside));
  RETURN_IF_ERROR(listener->outside_->Bind(options.endpoint));
  LogInfo("listening on {}", options.endpoint);
  return listener;
}

StageListener::~StageListener() {
  worker_.Kill();
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

absl::Status StageListener::Run() {
  while (true) {
    std::vector<wire::PollItem> items = {{.socket = outside_.get()}, {.socket = inside_.get()}};
    if (worker_.running()) items.push_back({.fd = worker_.pidfd()});
    RETURN_IF_ERROR(wire::Poll(items, limits::kHeartbeatIntervalMs));
    RETURN_IF_ERROR(TakeFromCoordinator());
    RETURN_IF_ERROR(TakeFromWorker());
    LookAtWorker();
    LookAtOwner();
  }
}

absl::Status StageListener::Tell(const std::string& peer, const wire::FromStage& message) {
  return outside_->Send({peer, wire::Encode({}, message)});
}

absl::Status StageListener::TakeFromCoordinator() {
  while (true) {
    ASSIGN_OR_RETURN(const auto parts, outside_->Receive());
    if (!parts.has_value()) return absl::OkStatus();
    if (parts->size() == 2) TakeMessage((*parts)[0], (*parts)[1]);
  }
}

void StageListener::TakeMessage(const std::string& peer, std::string_view bytes) {
  wire::Envelope envelope;
  wire::ToStage message;
  if (const absl::Status decoded = wire::Decode(bytes, &envelope, &message); !decoded.ok()) {
    LogWarning("control link: {}", ToStd(decoded.message()));
    return;
  }
  if (const auto* attach = std::get_if<wire::Attach>(&message)) return TakeAttach(peer, envelope.epoch, *attach);
  if (peer != owner_) return;  // of a coordinator that was replaced
  last_heard_ = Clock::now();
  if (std::holds_alternative<wire::KeepAlive>(message)) return;
  if (std::holds_alternative<wire::Shutdown>(message)) return Release("the coordinator is done");
  const absl::Status sent = inside_->Send({fmt::format("stage-{}", stage_), bytes});
  if (!sent.ok()) LogWarning("worker: {}", ToStd(sent.message()));  // it is dying: its pidfd says so in a moment
}

void StageListener::TakeAttach(const std::string& peer, uint32_t epoch, const wire::Attach& attach) {
  if (attach.protocol != wire::kProtocolVersion) {
    (void)Tell(peer, wire::WorkerEnded{attach.stage, fmt::format("speaks protocol {}, the coordinator {}",
                                                                 wire::kProtocolVersion, attach.protocol)});
    return;
  }
  if (!owner_.empty() && attach.coordinator != coordinator_ && Reachable(owner_)) {
    (void)Tell(peer, wire::Occupied{attach.stage});
    return;
  }
  if (!owner_.empty()) Release("it attaches again");
  owner_ = peer;
  coordinator_ = attach.coordinator;
  stage_ = attach.stage;
  last_heard_ = Clock::now();
  LogInfo("stage {} for a coordinator, epoch {}", stage_, epoch);
  StartWorker(epoch);
}

void StageListener::StartWorker(uint32_t epoch) {
  std::vector<std::string> args = {StageProgram(),
                                   "--stage",
                                   std::to_string(stage_),
                                   "--control",
                                   "ipc://" + directory_ + "/control",
                                   "--epoch",
                                   std::to_string(epoch),
                                   "--parent",
                                   std::to_string(getpid()),
                                   "--bind-host",
                                   HostOf(options_.endpoint).value_or("127.0.0.1")};
  if (!options_.store.empty()) args.insert(args.end(), {"--store", options_.store});
  if (!options_.model.empty()) args.insert(args.end(), {"--model", options_.model});
  const absl::Status started = worker_.Start(args);
  if (started.ok()) return;
  LogError("{}", ToStd(started.message()));
  (void)Tell(owner_, wire::WorkerEnded{stage_, std::string(started.message())});
  owner_.clear();
}

absl::Status StageListener::TakeFromWorker() {
  while (true) {
    ASSIGN_OR_RETURN(const auto parts, inside_->Receive());
    if (!parts.has_value()) return absl::OkStatus();
    if (parts->size() != 2 || owner_.empty()) continue;
    if (!outside_->Send({owner_, (*parts)[1]}).ok()) Release("the coordinator cannot be reached");
  }
}

void StageListener::LookAtWorker() {
  std::string how;
  if (!worker_.WaitEnd(0, &how)) return;
  (void)TakeFromWorker();  // a Fault may have been its last word
  LogError("the worker {}", how);
  if (owner_.empty()) return;
  (void)Tell(owner_, wire::WorkerEnded{stage_, how});
  owner_.clear();
}

void StageListener::LookAtOwner() {
  if (owner_.empty()) return;
  if (!Reachable(owner_)) return Release("the coordinator is gone");
  if (Clock::now() - last_heard_ > std::chrono::milliseconds(limits::kRemoteSilentMs))
    Release("the coordinator is silent");
}

// A heartbeat that says nothing of a worker's progress: it only cannot be sent to somebody who is gone.
bool StageListener::Reachable(const std::string& peer) {
  return Tell(peer, wire::Heartbeat{stage_, 0, 0}).ok();
}

void StageListener::Release(std::string_view why) {
  LogInfo("{}: listening again", why);
  worker_.Kill();
  owner_.clear();
}

}  // namespace layover
