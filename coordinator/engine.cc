#include "coordinator/engine.h"

#include <algorithm>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/setup.h"

namespace layover {
namespace {

constexpr int kTimerMs = 200;  // how often silence is looked at

std::string_view StateName(StageState state) {
  switch (state) {
    case StageState::kUp: return "up";
    case StageState::kLoading:
    case StageState::kRestarting: return "restarting";
    case StageState::kDown: return "down";
  }
  return "down";
}

}  // namespace

Engine::Engine(EngineParts parts)
    : parts_(std::move(parts)),
      store_(parts_.topology->store.has_value() ? &*parts_.topology->store : nullptr),
      cut_(parts_.plan->n_state_slots == 0 && parts_.plan->n_window_pages == 0 ? CutAt::kAnywhere : CutAt::kCheckpoints),
      identity_(parts_.identity),
      slots_held_(static_cast<size_t>(parts_.plan->sessions)) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(EngineParts parts) {
  std::unique_ptr<Engine> engine(new Engine(std::move(parts)));
  RETURN_IF_ERROR(engine->OpenStore());
  engine->health_.status = "loading";
  engine->store_thread_ = std::make_unique<StoreThread>(&engine->inbox_);
  engine->reader_thread_ = std::make_unique<StoreThread>(&engine->inbox_);
  engine->thread_ = std::thread([raw = engine.get()] { raw->Loop(); });
  return engine;
}

Engine::~Engine() {
  inbox_.Put([this] { stop_ = true; });
  if (thread_.joinable()) thread_.join();
  // What they still have to do ends in an inbox that nobody reads any more.
  store_thread_.reset();
  reader_thread_.reset();
}

absl::Status Engine::OpenStore() {
  if (store_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(PrepareStore(store_->dir));
  ASSIGN_OR_RETURN(lock_, StoreLock::Acquire(store_->dir));
  ASSIGN_OR_RETURN(StartReport report, CleanStore(store_->dir));
  for (const std::string& name : report.removed) LogInfo("store: removed {}, which nothing needs", name);
  for (const std::string& name : report.mended) LogWarning("store: the torn end of {}/journal was cut off", name);
  segment_names_ = std::move(report.names);
  for (const auto& [folder, why] : segment_names_.unreadable()) LogError("store: {}: {}", folder, ToStd(why.message()));

  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(store_->dir));
  for (const std::string& folder : folders) {
    auto image = LoadConversation(store_->dir, folder);
    if (!image.ok()) {
      LogError("store: {}: {}", folder, ToStd(image.status().message()));
      continue;
    }
    AddStored(*image);
  }
  ASSIGN_OR_RETURN(catalog_, Catalog::Open(store_->dir));
  std::vector<CatalogRow> rows;
  for (const auto& [key, conversation] : conversations_) {
    const Manifest* manifest = conversation->manifest.get();
    rows.push_back({conversation->folder, conversation->owner, conversation->id, manifest == nullptr ? 0 : manifest->generation,
                    conversation->journalled_n, manifest == nullptr ? 0 : manifest->n_tokens, conversation->OwnBytes(),
                    conversation->created_at, conversation->last_used_at});
  }
  return catalog_->Replace(rows);
}

void Engine::AddStored(const ConversationImage& image) {
  if (image.id.empty()) return;  // a folder that only keeps segments for others
  auto conversation = std::make_shared<Conversation>();
  conversation->owner = image.owner;
  conversation->id = image.id;
  conversation->folder = image.folder;
  conversation->next_generation = image.next_generation;
  conversation->branches.push_back(std::make_unique<Branch>());
  if (image.journal_status.ok()) {
    const JournalState& state = image.journal.state;
    conversation->journalled_n = state.trunk_length;
    conversation->journal_bytes = static_cast<int64_t>(image.journal.end.bytes);
    conversation->created_at = state.created_at_ms / 1000;
    conversation->last_used_at = state.turns.empty() ? conversation->created_at : state.turns.back().time_ms / 1000;
  } else {
    conversation->last_error = std::string(image.journal_status.message());
  }
  if (image.manifest_status.ok()) {
    const int64_t turn = image.journal.state.FindTurn(image.manifest->n_tokens, image.manifest->prefix);
    std::vector<int32_t> ids;
    if (turn != kNoTurn) ids = image.journal.state.PathIds(turn, std::min(image.manifest->n_tokens, limits::kPageTokens));
    conversation->TakeManifest(std::make_shared<const Manifest>(*image.manifest), ids);
    conversation->manifest_bytes = BytesOfFile(JoinPath(ConversationPath(store_->dir, image.folder), kManifestName));
    conversation->last_used_at = std::max(conversation->last_used_at, image.manifest->saved_at);
  } else if (!absl::IsNotFound(image.manifest_status)) {
    conversation->last_error = std::string(image.manifest_status.message());
  }
  Enlist(conversation);
}

absl::Status Engine::WaitUp() {
  std::unique_lock<std::mutex> lock(up_mutex_);
  up_changed_.wait(lock, [this] { return up_once_ || !start_failure_.ok(); });
  return up_once_ ? absl::OkStatus() : start_failure_;
}

void Engine::Loop() {
  absl::StatusOr<std::string> store_id = "";
  if (store_ != nullptr && HasRemoteStages(*parts_.topology)) store_id = EnsureStoreId(store_->dir);
  using Stages = absl::StatusOr<std::unique_ptr<StageGroup>>;
  Stages stages = store_id.ok() ? StageGroup::Create(*parts_.topology, *parts_.plan, this, *store_id) : Stages(store_id.status());
  if (stages.ok()) {
    stages_ = std::move(*stages);
    remote_segments_ = std::make_unique<RemoteSegments>(*parts_.topology, stages_.get(), store_thread_.get(), &segment_names_);
    for (const auto& [key, conversation] : conversations_) {
      remote_segments_->SetNames(conversation->folder, conversation->manifest.get());
    }
    const SchedulerConfig scheduler{.stages = stages_->n_stages(), .chunk_tokens = parts_.topology->chunk,
                                    .max_slices = std::min(limits::kMaxStepSlices, parts_.plan->step_rows - parts_.topology->chunk)};
    pipeline_ = std::make_unique<Pipeline>(stages_.get(), LedgerFor(*parts_.plan, *parts_.shape), scheduler,
                                           parts_.plan->step_rows, static_cast<Pipeline::Listener*>(this));
  }
  if (const absl::Status started = stages.ok() ? stages_->Start() : stages.status(); !started.ok()) OnStageDown(0, started);

  next_timer_ = Clock::now();
  while (!stop_) {
    std::vector<wire::PollItem> items = {{.fd = inbox_.fd()}};
    if (stages_ != nullptr) {
      for (const wire::PollItem& item : stages_->PollItems()) items.push_back(item);
    }
    if (const absl::Status polled = wire::Poll(items, PollTimeoutMs()); !polled.ok()) LogError("{}", polled.ToString());
    for (Task& task : inbox_.TakeAll()) task();
    if (stages_ != nullptr) stages_->HandleEvents(pipeline_->steps_in_flight() > 0);
    if (Clock::now() >= next_timer_) OnTimer();
    if (pipeline_ != nullptr) pipeline_->Pump();
    UpdateHealth();
  }
  pipeline_.reset();
  stages_.reset();
}

int Engine::PollTimeoutMs() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next_timer_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kTimerMs));
}

void Engine::OnTimer() {
  next_timer_ = Clock::now() + std::chrono::milliseconds(kTimerMs);
  AbortSilentSaves();
  if (Clock::now() >= next_expiry_) {
    next_expiry_ = Clock::now() + std::chrono::milliseconds(limits::kExpiryIntervalMs);
    ExpireImages();
  }
  if (remote_segments_ != nullptr) remote_segments_->RemoveDropped();
  UpdateGauges();
}

void Engine::AbortSilentSaves() {
  const auto bound = BoundOfSilence(limits::kSaveSilentMs);
  std::vector<uint64_t> silent;
  for (const auto& [number, transfer] : transfers_) {
    if (transfer.kind != TransferKind::kSave || transfer.committing || !transfer.status.ok()) continue;
    if (Clock::now() - transfer.last_sign >= bound) silent.push_back(number);
  }
  for (const uint64_t number : silent) {
    AbortSave(transfers_.at(number), number, DeadlineExceeded("the save made no progress for {} ms", bound.count()));
    CommitIfComplete(number);  // where only its proof was missing
  }
}

void Engine::UpdateHealth() {
  HealthReport report;
  bool all_up = stages_ != nullptr, any_down = stages_ == nullptr;
  if (stages_ != nullptr) {
    for (const StageStatus& stage : stages_->Status()) {
      all_up = all_up && stage.state == StageState::kUp;
      any_down = any_down || stage.state == StageState::kDown;
      report.stages.push_back({stage.stage, stage.pid, stage.device, stage.layers.begin, stage.layers.end,
                               std::string(StateName(stage.state)), static_cast<int64_t>(stage.last_seq)});
    }
  }
  std::vector<SlotInfo> slots;
  if (pipeline_ != nullptr) slots = DescribeSlots();
  report.status = draining_ ? "draining" : all_up ? "ok" : !identity_known_ && !any_down ? "loading" : "degraded";
  std::lock_guard<std::mutex> lock(health_mutex_);
  health_ = std::move(report);
  slots_ = std::move(slots);
}

HealthReport Engine::Health() const {
  std::lock_guard<std::mutex> lock(health_mutex_);
  return health_;
}

std::vector<SlotInfo> Engine::Slots() const {
  std::lock_guard<std::mutex> lock(health_mutex_);
  return slots_;
}

void Engine::UpdateGauges() {
  int64_t running = 0;
  for (const auto& [id, turn] : turns_) running += turn->phase != TurnPhase::kQueued ? 1 : 0;
  parts_.metrics->SetRequestsRunning(running);
  parts_.metrics->SetRequestsQueued(static_cast<int64_t>(queue_.size()));
  tally_.Settle([this](const Conversation& conversation) { return TallyOf(conversation); });
  for (ConversationState state : {ConversationState::kActive, ConversationState::kIdle, ConversationState::kParked,
                                  ConversationState::kSaved, ConversationState::kSaving, ConversationState::kRestoring}) {
    parts_.metrics->SetConversations(state, tally_.Count(state));
  }
  const int64_t disk = store_ == nullptr ? 0 : tally_.disk_bytes() + CatalogBytes();
  parts_.metrics->SetConversationBytes(StateTier::kDevice, tally_.device_bytes());
  parts_.metrics->SetConversationBytes(StateTier::kHost, parked_bytes_);
  parts_.metrics->SetConversationBytes(StateTier::kDisk, disk);
  parts_.metrics->SetStoreBytes(disk);
}

void Engine::CompleteIdentity() {
  identity_.weights = stages_->weight_digests();
  identity_known_ = true;
  LogInfo("model identity {}", identity_.Combined().Hex());
}

void Engine::OnStagesUp() {
  if (!identity_known_) CompleteIdentity();
  // What an ended save left on the stages that survived; they have dealt with their Reset by now.
  for (const auto& [stage, path] : std::exchange(stray_paths_, {})) remote_segments_->Remove(stage, path);
  remote_segments_->Sweep();
  {
    std::lock_guard<std::mutex> lock(up_mutex_);
    up_once_ = true;
  }
  up_changed_.notify_all();
  AdmitQueued();
  ContinueShutdown();
}

void Engine::OnStageLost(int stage, const absl::Status& why) {
  parts_.metrics->StageRestarted(stage);
  // Every session is gone. What ran goes back to the queue and on from the store or the journal's tokens.
  pipeline_->Reset();
  turn_of_session_.clear();
  for (Slot& slot : slots_held_) slot.session = 0;
  parked_bytes_ = 0;
  ForEachBranch([](const ConversationPtr&, Branch& branch) {
    branch.session = 0;
    branch.checkpoints.clear();
    branch.parked = 0;
    branch.parked_bytes = 0;
    branch.parked_path.clear();
    branch.parked_checkpoints.clear();
  });
  std::vector<GenerationId> stopping;
  for (auto id = turns_.rbegin(); id != turns_.rend(); ++id) {
    Turn& turn = *id->second;
    turn.session = 0;
    turn.reserves_place = false;
    if (turn.phase == TurnPhase::kStopping) stopping.push_back(turn.id);
    if (turn.phase != TurnPhase::kRunning && turn.phase != TurnPhase::kRestoring) continue;
    if (turn.branch != nullptr) turn.branch->path = turn.Target();
    turn.resumed = turn.resumed || turn.phase == TurnPhase::kRunning;
    turn.phase = TurnPhase::kQueued;
    queue_.push_front(turn.id);
    LogInfo("request {}: goes on when stage {} is back, {} tokens so far", turn.id, stage, turn.output.size());
  }
  for (GenerationId id : stopping) {
    Turn& turn = *turns_.at(id);
    EndTurn(turn, turn.cancelled ? TurnEnd::kCancelled : TurnEnd::kUnfinished);
  }
  FailTransfers(why);
}

void Engine::OnStageDown(int stage, const absl::Status& why) {
  LogError("stage {} cannot be brought up: {}", stage, ToStd(why.message()));
  {
    std::lock_guard<std::mutex> lock(up_mutex_);
    if (start_failure_.ok()) start_failure_ = why;
  }
  up_changed_.notify_all();
  stages_down_ = Unavailable("stage {} is down: {}", stage, ToStd(why.message()));
  AdmitQueued();
  ContinueShutdown();
}

void Engine::OnStageMessage(int stage, uint64_t seq, const wire::FromStage& message) {
  if (const auto* done = std::get_if<wire::StepDone>(&message)) {
    pipeline_->OnStepDone(stage, seq, *done);
    pipeline_->Pump();
  } else if (const auto* saved = std::get_if<wire::SaveReceipt>(&message)) {
    OnSaveReceipt(*saved);
  } else if (const auto* restored = std::get_if<wire::RestoreReceipt>(&message)) {
    OnRestoreReceipt(*restored);
  } else if (const auto* parked = std::get_if<wire::ParkReceipt>(&message)) {
    OnParkReceipt(*parked);
  } else if (const auto* tick = std::get_if<wire::TransferTick>(&message)) {
    OnTransferTick(*tick);
  }
}

}  // namespace layover
