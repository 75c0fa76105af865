#include "coordinator/stage_group.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/clocks.h"

namespace layover {
namespace {

std::string RoutingId(int stage) { return fmt::format("stage-{}", stage); }

}  // namespace

StageGroup::StageGroup(const Topology& topology, const Plan& plan, Listener* listener)
    : topology_(topology), plan_(plan), listener_(listener) {}

absl::StatusOr<std::unique_ptr<StageGroup>> StageGroup::Create(const Topology& topology, const Plan& plan,
                                                               Listener* listener, const std::string& store_id) {
  std::unique_ptr<StageGroup> group(new StageGroup(topology, plan, listener));
  group->store_id_ = store_id;
  ASSIGN_OR_RETURN(group->directory_, MakeSocketFolder());
  ASSIGN_OR_RETURN(group->control_, wire::Socket::Open(group->context_, wire::SocketKind::kRouter, {}));
  RETURN_IF_ERROR(group->control_->Bind("ipc://" + group->directory_ + "/control"));
  std::random_device random;
  const uint64_t own_number = uint64_t{random()} << 32 | random();
  for (const StagePlan& stage_plan : plan.stages) {
    Stage stage;
    stage.status = {.stage = stage_plan.stage, .device = stage_plan.device, .layers = stage_plan.layers};
    if (!topology.stages[static_cast<size_t>(stage_plan.stage)].host.empty()) {
      ASSIGN_OR_RETURN(stage.remote, RemoteStage::Create(group->context_, topology, stage_plan.stage, own_number));
    }
    group->stages_.push_back(std::move(stage));
  }
  RETURN_IF_ERROR(group->MakeLinkKeys());
  RETURN_IF_ERROR(group->RenewHops());
  group->weight_digests_.resize(static_cast<size_t>(plan.stages.back().layers.end) + 2);
  return group;
}

StageGroup::~StageGroup() {
  Shutdown();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

absl::Status StageGroup::Start() {
  std::vector<StagePlan> elsewhere;
  for (const Stage& stage : stages_) {
    if (stage.remote != nullptr) elsewhere.push_back(plan_.stages[static_cast<size_t>(stage.status.stage)]);
  }
  if (!elsewhere.empty()) model_check_ = std::make_unique<ModelCheck>(topology_.model, std::move(elsewhere));
  for (Stage& stage : stages_) RETURN_IF_ERROR(Spawn(stage));
  return absl::OkStatus();
}

absl::Status StageGroup::Spawn(Stage& stage) {
  if (stage.remote != nullptr) {
    RETURN_IF_ERROR(stage.remote->Attach(epoch_));
    stage.status.pid = 0;
  } else {
    RETURN_IF_ERROR(stage.process.Start({StageProgram(), "--stage", std::to_string(stage.status.stage), "--control",
                                         "ipc://" + directory_ + "/control", "--epoch", std::to_string(epoch_), "--parent",
                                         std::to_string(getpid())}));
    stage.status.pid = stage.process.pid();
  }
  stage.configured = false;
  stage.progress = 0;
  stage.fault.clear();
  stage.ready.reset();
  stage.last_sign = stage.last_heard = Clock::now();
  return absl::OkStatus();
}

bool StageGroup::up() const {
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].status.state != StageState::kUp) return false;
    const bool joined = hops_[i].sender_joined && hops_[i].receiver_joined;
    if (plan_.stages[i].link == LinkKind::kNccl && !joined) return false;
  }
  return true;
}

wire::Configure StageGroup::ConfigureFor(const Stage& stage) const {
  const int index = stage.status.stage;
  return {.stage = index,
          .n_stages = n_stages(),
          .model = stage.remote != nullptr ? std::filesystem::absolute(topology_.model).string() : topology_.model,
          .layer_begin = stage.status.layers.begin,
          .layer_end = stage.status.layers.end,
          .device = stage.status.device,
          .threads = topology_.stages[static_cast<size_t>(index)].threads,
          .kv_type = plan_.kv_type,
          .context = plan_.context,
          .n_pages = plan_.n_pages,
          .n_window_pages = plan_.n_window_pages + plan_.n_checkpoint_window_pages,
          .n_slots = plan_.n_state_slots + plan_.n_checkpoint_slots,
          .max_step_tokens = plan_.step_rows,
          .link_in = LinkOf(index),
          .link_out = LinkOf(index + 1),
          .data_in = EndOfHop(index, index),
          .data_out = EndOfHop(index + 1, index),
          .host = topology_.stages[static_cast<size_t>(index)].host,
          .store_id = store_id_,
          .store = topology_.store.has_value() ? topology_.store->dir : "",
          .file_ends = SegmentEndsFor(stage)};
}

absl::Status StageGroup::SendRaw(const Stage& stage, std::string_view bytes) {
  if (stage.remote != nullptr) return stage.remote->Send(bytes);
  return control_->Send({RoutingId(stage.status.stage), bytes});
}

uint64_t StageGroup::SendOrdered(const wire::ToStage& message) {
  LAYOVER_CHECK(up());
  const uint64_t seq = next_seq_++;
  const std::string bytes = wire::Encode({.epoch = epoch_, .seq = seq}, message);
  for (const Stage& stage : stages_) {
    // A stage that cannot be reached is dying; its pidfd or connection says so in a moment.
    const absl::Status sent = SendRaw(stage, bytes);
    if (!sent.ok()) LogWarning("stage {}: {}", stage.status.stage, ToStd(sent.message()));
  }
  return seq;
}

void StageGroup::SendTo(int stage, const wire::ToStage& message) {
  const absl::Status sent = SendRaw(stages_[static_cast<size_t>(stage)], wire::Encode({.epoch = epoch_}, message));
  if (!sent.ok()) LogWarning("stage {}: {}", stage, ToStd(sent.message()));
}

void StageGroup::SendToAll(const wire::ToStage& message) {
  for (const Stage& stage : stages_) {
    if (stage.status.state == StageState::kUp) SendTo(stage.status.stage, message);
  }
}

std::vector<wire::PollItem> StageGroup::PollItems() {
  std::vector<wire::PollItem> items = {{.socket = control_.get()}};
  for (const Stage& stage : stages_) {
    if (stage.remote != nullptr) stage.remote->AddPollItems(&items);
    if (stage.process.running()) items.push_back({.fd = stage.process.pidfd()});
  }
  return items;
}

void StageGroup::HandleEvents(bool work_due) {
  ReceiveMessages();
  for (Stage& stage : stages_) {
    if (stage.remote == nullptr) continue;
    ReceiveRemote(stage);
    JudgeRemote(stage);
    if (const absl::Status alive = stage.remote->Tick(); !alive.ok()) Lose(stage, alive);
  }
  ReapDead();
  KillHung(work_due);
}

void StageGroup::ReceiveMessages() {
  while (true) {
    auto parts = control_->Receive();
    if (!parts.ok()) {
      LogError("control link: {}", ToStd(parts.status().message()));
      return;
    }
    if (!parts->has_value()) return;
    if ((*parts)->size() == 2) TakeBytes((**parts)[1]);
  }
}

void StageGroup::ReceiveRemote(Stage& stage) {
  while (true) {
    bool permanent = false;
    const auto bytes = stage.remote->Receive(&permanent);
    if (!bytes.ok()) return Lose(stage, bytes.status(), permanent);
    if (!bytes->has_value()) return;
    TakeBytes(**bytes);
  }
}

void StageGroup::TakeBytes(std::string_view bytes) {
  wire::Envelope envelope;
  wire::FromStage message;
  if (const absl::Status decoded = wire::Decode(bytes, &envelope, &message); !decoded.ok()) {
    LogWarning("control link: {}", ToStd(decoded.message()));
    return;
  }
  TakeMessage(envelope, message);
}

void StageGroup::TakeMessage(const wire::Envelope& envelope, const wire::FromStage& message) {
  const int index = std::visit([](const auto& m) { return static_cast<int>(m.stage); }, message);
  if (index < 0 || index >= n_stages()) return;
  Stage& stage = stages_[static_cast<size_t>(index)];
  stage.last_heard = Clock::now();

  if (const auto* hello = std::get_if<wire::Hello>(&message)) return TakeHello(stage, *hello);
  if (std::holds_alternative<wire::WorkerEnded>(message) || std::holds_alternative<wire::Occupied>(message)) {
    return TakeRemoteEnd(stage, message);
  }
  if (const auto* fault = std::get_if<wire::Fault>(&message)) {
    stage.fault = fault->message;
    return;  // its death follows
  }
  if (const auto* ready = std::get_if<wire::Ready>(&message)) {
    if (stage.remote != nullptr) {
      stage.ready = *ready;
    } else {
      TakeReady(*ready);
    }
    return;
  }
  if (envelope.epoch != epoch_) return;
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    if (beat->progress != stage.progress) {
      stage.progress = beat->progress;
      stage.last_sign = Clock::now();
    }
    return;
  }
  stage.last_sign = Clock::now();
  if (const auto* offer = std::get_if<wire::HopOffered>(&message)) return TakeOffer(index, *offer);
  if (const auto* joined = std::get_if<wire::HopJoined>(&message)) return TakeJoined(index, *joined);
  if (std::holds_alternative<wire::StepDone>(message)) stage.status.last_seq = envelope.seq;
  listener_->OnStageMessage(index, envelope.seq, message);
}

void StageGroup::TakeHello(Stage& stage, const wire::Hello& hello) {
  const int index = stage.status.stage;
  if (stage.configured || (stage.remote == nullptr && hello.pid != stage.status.pid)) return;  // of a process that is gone
  if (hello.protocol != wire::kProtocolVersion) {
    Lose(stage, FailedPrecondition("stage {} speaks protocol {}, not {}", index, hello.protocol, wire::kProtocolVersion));
    return;
  }
  stage.configured = true;
  stage.status.pid = hello.pid;
  stage.last_sign = Clock::now();
  // A worker started in an earlier epoch learns of the present one here.
  SendTo(index, ResetFor(index));
  SendTo(index, ConfigureFor(stage));
}

void StageGroup::TakeRemoteEnd(Stage& stage, const wire::FromStage& message) {
  if (stage.remote == nullptr) return;
  if (std::holds_alternative<wire::Occupied>(message)) return stage.remote->AskAgain();
  std::string how = std::get<wire::WorkerEnded>(message).message;
  if (!stage.fault.empty()) how += ": " + stage.fault;
  Lose(stage, Unavailable("stage {} ({}): the worker there {}", stage.status.stage, stage.remote->host(), how));
}

void StageGroup::JudgeRemote(Stage& stage) {
  if (!stage.ready.has_value()) return;
  const std::optional<absl::Status> verdict = model_check_->Judge(*stage.ready);
  if (!verdict.has_value()) return;  // asked again
  const wire::Ready ready = *std::exchange(stage.ready, std::nullopt);
  if (verdict->ok()) return TakeReady(ready);
  Lose(stage, FailedPrecondition("stage {} ({}): {}", stage.status.stage, stage.remote->host(), ToStd(verdict->message())), true);
}

void StageGroup::TakeReady(const wire::Ready& ready) {
  Stage& stage = stages_[static_cast<size_t>(ready.stage)];
  if (stage.status.state == StageState::kUp || !stage.configured) return;
  for (const auto& [layer, digest] : ready.layer_digests) {
    const size_t n = weight_digests_.size();
    const size_t slot = layer == -1 ? n - 2 : layer == -2 ? n - 1 : static_cast<size_t>(layer);
    if (slot >= n || (layer >= 0 && slot >= n - 2)) continue;
    if (!weight_digests_[slot].IsZero() && weight_digests_[slot] != digest) {
      Lose(stage, FailedPrecondition("stage {} loaded other weights than before: the model file changed", ready.stage));
      return;
    }
    weight_digests_[slot] = digest;
  }
  // Stages of one kind agree; several kinds are all named.
  if (numerics_.find(ready.numerics) == std::string::npos) numerics_ += (numerics_.empty() ? "" : "+") + ready.numerics;
  stage.status.state = StageState::kUp;
  stage.last_sign = Clock::now();
  // Also tells a worker whose load outlasted an epoch which one it is.
  SendTo(ready.stage, ResetFor(ready.stage));
  HandOver(ready.stage);
  LogInfo("stage {} is up: layers [{}, {}), loaded in {} ms", ready.stage, stage.status.layers.begin,
          stage.status.layers.end, ready.load_ms);
  if (up()) listener_->OnStagesUp();
}

void StageGroup::ReapDead() {
  for (Stage& stage : stages_) {
    std::string how;
    if (stage.remote != nullptr || !stage.process.WaitEnd(0, &how)) continue;
    ReceiveMessages();  // a Fault may have been its last word
    if (!stage.fault.empty()) how += ": " + stage.fault;
    Lose(stage, Unavailable("stage {} (pid {}) {}", stage.status.stage, stage.status.pid, how));
  }
}

void StageGroup::KillHung(bool work_due) {
  const Clock::time_point now = Clock::now();
  const auto bound = BoundOfSilence(limits::kStageSilentMs);
  // Whoever did not listen cannot say that the others were silent: what they sent meanwhile is still on its way.
  const bool was_away = now - std::exchange(last_look_, now) > bound / 3;
  for (Stage& stage : stages_) {
    if (!stage.there()) continue;
    if (was_away) stage.last_sign = stage.last_heard = now;
    const bool loading = stage.status.state != StageState::kUp;
    const bool absent = stage.remote != nullptr && !stage.configured;
    if (absent ? stage.status.state == StageState::kRestarting : !loading && !work_due) stage.last_sign = now;
    const auto limit = absent    ? std::chrono::milliseconds(limits::kRemoteAppearMs)
                       : loading ? std::chrono::milliseconds(limits::kStageLoadDeadlineMs)
                                 : bound;
    const bool stopped = !loading && now - stage.last_heard >= bound;
    if (now - stage.last_sign < limit && !stopped) continue;
    stage.last_sign = stage.last_heard = now;
    const char* how = absent ? "cannot be had" : stopped ? "is silent" : "makes no progress";
    if (stage.remote != nullptr) {
      Lose(stage, Unavailable("stage {} ({}) {}", stage.status.stage, stage.remote->host(), how));
      continue;
    }
    LogError("stage {} (pid {}) {}: killed", stage.status.stage, stage.status.pid, how);
    stage.process.SignalKill();
  }
}

void StageGroup::Lose(Stage& stage, const absl::Status& why, bool permanent) {
  stage.process.Kill();
  if (stage.remote != nullptr) stage.remote->Detach();
  if (shutting_down_) return;
  LogError("{}", ToStd(why.message()));
  const bool was_up = stage.status.state == StageState::kUp;
  const Clock::time_point now = Clock::now();
  while (!stage.restarts.empty() && now - stage.restarts.front() > std::chrono::hours(1)) stage.restarts.pop_front();
  const bool again = was_up || stage.status.state == StageState::kRestarting;
  stage.status.state = StageState::kRestarting;

  ++epoch_;
  const absl::Status renewed = RenewHops();
  for (Stage& other : stages_) {
    if (&other != &stage && other.there() && other.configured) SendTo(other.status.stage, ResetFor(other.status.stage));
  }
  if (was_up) listener_->OnStageLost(stage.status.stage, why);

  // A first load that fails will fail again; a stage that keeps dying is not worth the noise.
  if (!again || permanent || static_cast<int>(stage.restarts.size()) >= limits::kMaxStageRestartsPerHour) {
    stage.status.state = StageState::kDown;
    listener_->OnStageDown(stage.status.stage, why);
    return;
  }
  stage.restarts.push_back(now);
  if (const absl::Status spawned = renewed.ok() ? Spawn(stage) : renewed; !spawned.ok()) {
    stage.status.state = StageState::kDown;
    listener_->OnStageDown(stage.status.stage, spawned);
  }
}

std::vector<StageStatus> StageGroup::Status() const {
  std::vector<StageStatus> all;
  for (const Stage& stage : stages_) all.push_back(stage.status);
  return all;
}

void StageGroup::Shutdown() {
  if (shutting_down_) return;
  shutting_down_ = true;
  CloseRings();
  for (const Stage& stage : stages_) {
    if (stage.remote != nullptr) stage.remote->Detach();
    if (stage.process.running()) SendTo(stage.status.stage, wire::Shutdown{});
  }
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  for (Stage& stage : stages_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    std::string ignored;
    (void)stage.process.WaitEnd(static_cast<int>(std::max<int64_t>(0, left)), &ignored);
    stage.process.Kill();
  }
}

}  // namespace layover
