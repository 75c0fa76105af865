#include "coordinator/stage_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/clocks.h"

namespace layover {
namespace {

std::string RoutingId(int stage) { return fmt::format("stage-{}", stage); }

}  // namespace

std::string StageProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "layover-stage";
}

StageGroup::StageGroup(const Topology& topology, const Plan& plan, Listener* listener)
    : topology_(topology), plan_(plan), listener_(listener) {}

absl::StatusOr<std::unique_ptr<StageGroup>> StageGroup::Create(const Topology& topology, const Plan& plan,
                                                               Listener* listener) {
  std::unique_ptr<StageGroup> group(new StageGroup(topology, plan, listener));
  // Short: a socket's path may have 107 characters.
  char path[] = "/tmp/layover-XXXXXX";
  if (mkdtemp(path) == nullptr) return ErrnoStatus(errno, "mkdtemp /tmp/layover-XXXXXX");
  group->directory_ = path;
  ASSIGN_OR_RETURN(group->control_, wire::Socket::Open(group->context_, wire::SocketKind::kRouter, {}));
  RETURN_IF_ERROR(group->control_->Bind("ipc://" + group->directory_ + "/control"));
  for (const StagePlan& stage_plan : plan.stages) {
    if (!topology.stages[static_cast<size_t>(stage_plan.stage)].host.empty()) {
      return Unimplemented("{}:{}: stages on another host are not served yet", topology.file,
                           topology.stages[static_cast<size_t>(stage_plan.stage)].line);
    }
    Stage stage;
    stage.status = {.stage = stage_plan.stage, .device = stage_plan.device, .layers = stage_plan.layers};
    group->stages_.push_back(std::move(stage));
  }
  group->weight_digests_.resize(static_cast<size_t>(plan.stages.back().layers.end) + 2);
  return group;
}

StageGroup::~StageGroup() {
  Shutdown();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

absl::Status StageGroup::Start() {
  for (Stage& stage : stages_) RETURN_IF_ERROR(Spawn(stage));
  return absl::OkStatus();
}

absl::Status StageGroup::Spawn(Stage& stage) {
  const std::string program = StageProgram();
  const std::string stage_text = std::to_string(stage.status.stage), control = "ipc://" + directory_ + "/control";
  const std::string epoch = std::to_string(epoch_), parent = std::to_string(getpid());
  std::vector<const char*> args = {program.c_str(), "--stage",  stage_text.c_str(), "--control",    control.c_str(),
                                   "--epoch",       epoch.c_str(), "--parent",      parent.c_str(), nullptr};
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    // Nothing but async-signal-safe calls here: other threads may have held locks at the fork.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // only the coordinator's `ready` line belongs on stdout
    execv(program.c_str(), const_cast<char* const*>(args.data()));
    _exit(127);
  }
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) return ErrnoStatus(errno, "pidfd_open");
  fcntl(pidfd, F_SETFD, FD_CLOEXEC);
  stage.pidfd = pidfd;
  stage.status.pid = pid;
  stage.configured = false;
  stage.progress = 0;
  stage.fault.clear();
  stage.last_sign = stage.last_heard = Clock::now();
  return absl::OkStatus();
}

bool StageGroup::up() const {
  return std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.status.state == StageState::kUp; });
}

std::string StageGroup::DataEndpoint(int stage) const { return fmt::format("ipc://{}/data-{}", directory_, stage); }

wire::Configure StageGroup::ConfigureFor(const Stage& stage) const {
  const int index = stage.status.stage;
  return {.stage = index,
          .n_stages = n_stages(),
          .model = topology_.model,
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
          .data_bind = index == 0 ? "" : DataEndpoint(index),
          .data_connect = index + 1 == n_stages() ? "" : DataEndpoint(index + 1)};
}

absl::Status StageGroup::SendRaw(int stage, const wire::Envelope& envelope, const wire::ToStage& message) {
  return control_->Send({RoutingId(stage), wire::Encode(envelope, message)});
}

uint64_t StageGroup::SendOrdered(const wire::ToStage& message) {
  LAYOVER_CHECK(up());
  const uint64_t seq = next_seq_++;
  const std::string bytes = wire::Encode({.epoch = epoch_, .seq = seq}, message);
  for (const Stage& stage : stages_) {
    // A stage that cannot be reached is dying; its pidfd says so in a moment.
    const absl::Status sent = control_->Send({RoutingId(stage.status.stage), bytes});
    if (!sent.ok()) LogWarning("stage {}: {}", stage.status.stage, ToStd(sent.message()));
  }
  return seq;
}

void StageGroup::SendTo(int stage, const wire::ToStage& message) {
  const absl::Status sent = SendRaw(stage, {.epoch = epoch_}, message);
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
    if (stage.pidfd >= 0) items.push_back({.fd = stage.pidfd});
  }
  return items;
}

void StageGroup::HandleEvents(bool work_due) {
  ReceiveMessages();
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
    if ((*parts)->size() != 2) continue;
    wire::Envelope envelope;
    wire::FromStage message;
    if (const absl::Status decoded = wire::Decode((**parts)[1], &envelope, &message); !decoded.ok()) {
      LogWarning("control link: {}", ToStd(decoded.message()));
      continue;
    }
    TakeMessage((**parts)[0], envelope, message);
  }
}

void StageGroup::TakeMessage(const std::string& routing_id, const wire::Envelope& envelope, const wire::FromStage& message) {
  const int index = std::visit([](const auto& m) { return static_cast<int>(m.stage); }, message);
  if (index < 0 || index >= n_stages()) return;
  Stage& stage = stages_[static_cast<size_t>(index)];
  stage.last_heard = Clock::now();

  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    if (hello->pid != stage.status.pid || stage.configured) return;  // of a process that is gone
    if (hello->protocol != wire::kProtocolVersion) {
      Lose(stage, FailedPrecondition("stage {} speaks protocol {}, not {}", index, hello->protocol, wire::kProtocolVersion));
      return;
    }
    stage.configured = true;
    // A worker started in an earlier epoch learns of the present one here.
    SendTo(index, wire::Reset{});
    SendTo(index, ConfigureFor(stage));
    return;
  }
  if (const auto* fault = std::get_if<wire::Fault>(&message)) {
    stage.fault = fault->message;
    return;  // its death follows
  }
  if (const auto* ready = std::get_if<wire::Ready>(&message)) {
    TakeReady(*ready);
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
  if (std::holds_alternative<wire::StepDone>(message)) stage.status.last_seq = envelope.seq;
  listener_->OnStageMessage(index, envelope.seq, message);
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
  SendTo(ready.stage, wire::Reset{});
  LogInfo("stage {} is up: layers [{}, {}), loaded in {} ms", ready.stage, stage.status.layers.begin,
          stage.status.layers.end, ready.load_ms);
  if (up()) listener_->OnStagesUp();
}

void StageGroup::ReapDead() {
  for (Stage& stage : stages_) {
    if (stage.pidfd < 0) continue;
    pollfd item{stage.pidfd, POLLIN, 0};
    if (poll(&item, 1, 0) != 1) continue;
    ReceiveMessages();  // a Fault may have been its last word
    if (stage.pidfd < 0) continue;
    int wait_status = 0;
    waitpid(stage.status.pid, &wait_status, 0);
    std::string how = WIFSIGNALED(wait_status) ? fmt::format("was killed by signal {}", WTERMSIG(wait_status))
                                               : fmt::format("exited with {}", WEXITSTATUS(wait_status));
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 127) how = "could not be started: layover-stage is not beside layover";
    if (!stage.fault.empty()) how += ": " + stage.fault;
    close(stage.pidfd);
    stage.pidfd = -1;
    Lose(stage, Unavailable("stage {} (pid {}) {}", stage.status.stage, stage.status.pid, how));
  }
}

void StageGroup::KillHung(bool work_due) {
  const Clock::time_point now = Clock::now();
  const auto bound = BoundOfSilence(limits::kStageSilentMs);
  // Whoever did not listen cannot say that the others were silent: what they sent meanwhile is still on its way.
  const bool was_away = now - std::exchange(last_look_, now) > bound / 3;
  for (Stage& stage : stages_) {
    if (stage.pidfd < 0) continue;
    if (was_away) stage.last_sign = stage.last_heard = now;
    const bool loading = stage.status.state != StageState::kUp;
    if (!loading && !work_due) stage.last_sign = now;
    const auto limit = loading ? std::chrono::milliseconds(limits::kStageLoadDeadlineMs) : bound;
    const bool stopped = !loading && now - stage.last_heard >= bound;
    if (now - stage.last_sign < limit && !stopped) continue;
    LogError("stage {} (pid {}) {}: killed", stage.status.stage, stage.status.pid, stopped ? "is silent" : "makes no progress");
    kill(stage.status.pid, SIGKILL);
    stage.last_sign = stage.last_heard = now;
  }
}

void StageGroup::StopProcess(Stage& stage) {
  if (stage.pidfd < 0) return;
  kill(stage.status.pid, SIGKILL);
  waitpid(stage.status.pid, nullptr, 0);
  close(stage.pidfd);
  stage.pidfd = -1;
}

void StageGroup::Lose(Stage& stage, const absl::Status& why) {
  StopProcess(stage);
  if (shutting_down_) return;
  LogError("{}", ToStd(why.message()));
  const bool was_up = stage.status.state == StageState::kUp;
  const Clock::time_point now = Clock::now();
  while (!stage.restarts.empty() && now - stage.restarts.front() > std::chrono::hours(1)) stage.restarts.pop_front();
  const bool again = was_up || stage.status.state == StageState::kRestarting;
  stage.status.state = StageState::kRestarting;

  ++epoch_;
  for (Stage& other : stages_) {
    if (other.pidfd >= 0 && other.configured) SendTo(other.status.stage, wire::Reset{});
  }
  if (was_up) listener_->OnStageLost(stage.status.stage, why);

  // A first load that fails will fail again; a stage that keeps dying is not worth the noise.
  if (!again || static_cast<int>(stage.restarts.size()) >= limits::kMaxStageRestartsPerHour) {
    stage.status.state = StageState::kDown;
    listener_->OnStageDown(stage.status.stage, why);
    return;
  }
  stage.restarts.push_back(now);
  if (const absl::Status spawned = Spawn(stage); !spawned.ok()) {
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
  for (const Stage& stage : stages_) {
    if (stage.pidfd >= 0) SendTo(stage.status.stage, wire::Shutdown{});
  }
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  for (Stage& stage : stages_) {
    if (stage.pidfd < 0) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd item{stage.pidfd, POLLIN, 0};
    poll(&item, 1, static_cast<int>(std::max<int64_t>(0, left)));
    StopProcess(stage);
  }
}

}  // namespace layover
