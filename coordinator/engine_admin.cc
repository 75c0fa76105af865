// Lists, one conversation's facts, deletion, verification, shutdown.
#include <algorithm>
#include <set>

#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {
namespace {

// On all stages' devices: the session's pages, and the states and window pages of it and its checkpoints.
int64_t LiveBytes(const ModelShape& shape, std::string_view kv_type, const PageLedger& ledger, const Branch& branch) {
  uint64_t row_bytes = 0, window_row_bytes = 0, state_bytes = 0;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    const LayerKind kind = shape.layers[static_cast<size_t>(layer)].kind;
    if (kind == LayerKind::kRecurrent) state_bytes += RecurrentStateBytes(shape);
    (kind == LayerKind::kSlidingWindow ? window_row_bytes : row_bytes) += KvBytesPerToken(shape, layer, kv_type);
  }
  std::set<int32_t> slots, window_pages;
  const auto add = [&](const wire::StateAt& state) {
    if (state.slot >= 0) slots.insert(state.slot);
    for (const int32_t page : state.window_pages) {
      if (page >= 0) window_pages.insert(page);
    }
  };
  add(ledger.StateOf(branch.session));
  for (const PinnedCheckpoint& checkpoint : branch.checkpoints) add(ledger.PinnedState(checkpoint.pin));
  const uint64_t pages = ledger.Pages(branch.session, PageClass::kFull).size();
  return static_cast<int64_t>(limits::kPageTokens * (pages * row_bytes + window_pages.size() * window_row_bytes) +
                              slots.size() * state_bytes);
}

}  // namespace

// One of which nothing is on disk yet.
Engine::ConversationPtr Engine::NewConversation(const std::string& owner, const std::string& id) const {
  auto conversation = std::make_shared<Conversation>();
  conversation->owner = owner;
  conversation->id = id;
  conversation->folder = ConversationFolder(owner, id);
  conversation->branches.push_back(std::make_unique<Branch>());
  conversation->loaded = true;
  conversation->created_at = UnixSeconds();
  conversation->last_used_at = conversation->created_at;
  return conversation;
}

// For whoever may change it.
Engine::ConversationPtr Engine::Find(const std::string& owner, const std::string& id) {
  const auto found = conversations_.find({owner, id});
  if (found == conversations_.end()) return nullptr;
  tally_.Touch(found->second);
  return found->second;
}

void Engine::Enlist(const ConversationPtr& conversation) {
  conversations_[{conversation->owner, conversation->id}] = conversation;
  tally_.Touch(conversation);
  const std::lock_guard lock(began_mutex_);
  began_[{conversation->owner, conversation->id}] = conversation->created_at;
}

int64_t Engine::BeganAt(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(began_mutex_);
  const auto found = began_.find({owner, id});
  return found == began_.end() ? 0 : found->second;
}

// It is gone; requests that came for it meanwhile begin one anew.
void Engine::ForgetConversation(const ConversationPtr& conversation) {
  tally_.Forget(*conversation);
  conversations_.erase({conversation->owner, conversation->id});
  {
    const std::lock_guard lock(began_mutex_);
    began_.erase({conversation->owner, conversation->id});
  }
  for (const auto& [id, turn] : turns_) {
    if (turn->conversation != conversation || turn->phase != TurnPhase::kQueued) continue;
    turn->conversation = nullptr;
    --conversation->waiting_turns;
  }
}

// Finds the conversation, has it loaded, then calls `then` (on this thread); errors go to `failed`.
void Engine::WithLoaded(const std::string& owner, const std::string& id, std::function<void(absl::Status)> failed,
                        std::function<void(const ConversationPtr&)> then) {
  const ConversationPtr conversation = Find(owner, id);
  if (conversation == nullptr) {
    failed(NotFound("there is no conversation {}", id));
  } else if (LoadIfNeeded(conversation)) {
    then(conversation);
  } else {
    waiting_for_load_[{owner, id}].push_back([conversation, then = std::move(then)] { then(conversation); });
  }
}

// Nothing of it is held that could be saved, parked or forked: 409, but no question of identity.
absl::Status Engine::NoState(const Conversation& conversation, std::string_view what) {
  return WithPart(FailedPrecondition("conversation {} holds no {}", conversation.id, what), {.code = "no_state"});
}

absl::Status Engine::CheckStoreReady() const {
  if (store_ == nullptr) return Unimplemented("this server has no store");
  if (draining_ || !stages_->up()) return Unavailable("the stages are not up");
  return absl::OkStatus();
}

absl::Status Engine::CheckAtRest(const Conversation& conversation) const {
  const bool wanted = std::any_of(conversation.branches.begin(), conversation.branches.end(),
                                  [this](const auto& branch) { return InUse(*branch); });
  const bool busy = conversation.saving || conversation.restoring > 0 || conversation.switching || conversation.deleting;
  return conversation.Active() || busy || wanted ? Aborted("conversation {} is in use", conversation.id) : absl::OkStatus();
}

uint64_t Engine::TokenBytes(int layer) const { return KvBytesPerToken(*parts_.shape, layer, parts_.plan->kv_type); }

// Of the K/V rows of one token.
int64_t Engine::RowBytes(LayerRange layers) const {
  uint64_t bytes = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) bytes += TokenBytes(layer);
  return static_cast<int64_t>(bytes);
}

StoredIdentity Engine::OwnIdentity() const {
  return {.format = identity_.format,
          .page_tokens = identity_.page_tokens,
          .architecture = identity_.architecture,
          .kv_type = identity_.kv_type,
          .arch = identity_.arch,
          .rope = identity_.rope,
          .tokenizer = identity_.tokenizer,
          .weights = identity_.weights,
          .combined = identity_.Combined()};
}

BranchInfo Engine::InfoOf(const Conversation& conversation, const Branch& branch) const {
  BranchInfo info{.n_tokens = static_cast<int64_t>(branch.path.size()), .saved_n_tokens = branch.saved.n_tokens};
  if (&branch != &conversation.trunk()) info.fork_position = CommonPrefix(branch.path, conversation.trunk().path);
  std::set<int64_t> positions(branch.saved.checkpoints.begin(), branch.saved.checkpoints.end());
  for (const PinnedCheckpoint& checkpoint : branch.checkpoints) positions.insert(checkpoint.position);
  positions.insert(branch.parked_checkpoints.begin(), branch.parked_checkpoints.end());
  info.checkpoints.assign(positions.begin(), positions.end());
  info.state = branch.running != nullptr    ? ConversationState::kActive
               : branch.session != 0        ? ConversationState::kIdle
               : branch.parked != 0         ? ConversationState::kParked
               : branch.saved.n_tokens > 0  ? ConversationState::kSaved
                                            : ConversationState::kIdle;
  return info;
}

Tally::Entry Engine::TallyOf(const Conversation& conversation) const {
  Tally::Entry entry;
  bool live = false, parked = false;
  for (const auto& branch : conversation.branches) {
    parked = parked || branch->parked != 0;
    if (branch->session == 0) continue;
    live = true;
    entry.device_bytes += LiveBytes(*parts_.shape, parts_.plan->kv_type, pipeline_->ledger(), *branch);
  }
  entry.warm = live || parked || conversation.Active() || conversation.Busy();
  entry.state = conversation.saving          ? ConversationState::kSaving
                : conversation.restoring > 0 ? ConversationState::kRestoring
                : conversation.Active()      ? ConversationState::kActive
                : live                       ? ConversationState::kIdle
                : parked                     ? ConversationState::kParked
                : conversation.HasImage()    ? ConversationState::kSaved
                                             : ConversationState::kIdle;
  return entry;
}

ConversationInfo Engine::InfoOf(const Conversation& conversation, bool everything) const {
  ConversationInfo info;
  info.id = conversation.id;
  const Tally::Entry now = TallyOf(conversation);
  info.state = now.state;
  info.bytes_device = now.device_bytes;
  for (const auto& branch : conversation.branches) info.bytes_host += branch->parked_bytes;
  info.n_tokens = conversation.trunk().path.empty() ? conversation.journalled_n
                                                    : static_cast<int64_t>(conversation.trunk().path.size());
  if (conversation.manifest != nullptr) {
    info.saved_n_tokens = conversation.manifest->n_tokens;
    info.generation = conversation.manifest->generation;
    info.bytes_disk = conversation.OwnBytes();
  }
  info.branches = static_cast<int>(conversation.branches.size());
  info.pinned = store_ != nullptr && std::find(store_->pin.begin(), store_->pin.end(), conversation.id) != store_->pin.end();
  info.created_at = conversation.created_at;
  info.last_used_at = conversation.last_used_at;
  info.identity = identity_known_ ? identity_.Combined().Hex() : "";
  info.last_error = conversation.last_error;
  if (everything) {
    for (const auto& branch : conversation.branches) info.branch_list.push_back(InfoOf(conversation, *branch));
    if (conversation.manifest != nullptr) info.segments = SegmentsOf(*conversation.manifest);
    info.last_save = conversation.last_save;
    info.divergence = conversation.divergence;
  }
  return info;
}

void Engine::List(std::string owner, std::string after, int limit, Callback<ConversationPage> done) {
  inbox_.Put([this, owner, after, limit, done = std::move(done)] {
    ConversationPage page;
    for (auto it = conversations_.upper_bound({owner, after}); it != conversations_.end() && it->first.first == owner; ++it) {
      if (static_cast<int>(page.data.size()) == limit) {
        page.next = page.data.back().id;
        break;
      }
      page.data.push_back(InfoOf(*it->second, false));
    }
    done(std::move(page));
  });
}

void Engine::Show(std::string owner, std::string id, Callback<ConversationInfo> done) {
  inbox_.Put([this, owner, id, done = std::move(done)] {
    const ConversationPtr conversation = Find(owner, id);
    if (conversation == nullptr) {
      done(NotFound("there is no conversation {}", id));
    } else {
      done(InfoOf(*conversation, true));
    }
  });
}

void Engine::Delete(std::string owner, std::string id, DoneCallback done) {
  inbox_.Put([this, owner, id, done = std::move(done)] {
    const ConversationPtr conversation = Find(owner, id);
    if (conversation == nullptr) {
      done(NotFound("there is no conversation {}", id));
      return;
    }
    if (const absl::Status rest = CheckAtRest(*conversation); !rest.ok() || conversation->loading) {
      done(conversation->loading ? Aborted("conversation {} is in use", id) : rest);
      return;
    }
    for (auto& branch : conversation->branches) {
      CloseBranch(*conversation, *branch);
      DropParked(*branch);
    }
    if (store_ == nullptr) {
      ForgetConversation(conversation);
      done(absl::OkStatus());
      return;
    }
    conversation->deleting = true;
    store_thread_->Do(
        [this, files = conversation->files, store = store_->dir, folder = conversation->folder]() -> absl::Status {
          const auto folders = ListConversationFolders(store);
          RETURN_IF_ERROR(folders.status());
          if (!std::binary_search(folders->begin(), folders->end(), folder)) return absl::OkStatus();
          RETURN_IF_ERROR(DeleteConversation(store, folder, files == nullptr ? nullptr : files->journal.get(), &segment_names_));
          remote_segments_->SetNames(folder, nullptr);
          return catalog_->Remove(folder);
        },
        [this, conversation, done](absl::Status status) {
          conversation->deleting = false;
          if (status.ok()) {
            ForgetConversation(conversation);
          } else {
            conversation->last_error = std::string(status.message());
          }
          done(status);
          AdmitQueued();
          ContinueShutdown();
        });
  });
}

void Engine::Verify(std::string owner, std::string id, Callback<VerifyResult> done) {
  inbox_.Put([this, owner, id, done = std::move(done)] {
    const ConversationPtr conversation = Find(owner, id);
    if (conversation == nullptr || store_ == nullptr) {
      done(NotFound("there is no conversation {}", id));
      return;
    }
    if (conversation->saving) {
      done(Aborted("conversation {} is being saved", id));
      return;
    }
    reader_thread_->Do(
        [store = store_->dir, folder = conversation->folder, id, elsewhere = remote_segments_->Opener()]() -> absl::StatusOr<VerifyResult> {
          ASSIGN_OR_RETURN(const VerifyReport report, VerifyConversation(store, folder, nullptr, elsewhere));
          VerifyResult result{.id = id, .ok = report.ok(), .generation = report.generation,
                              .n_records = static_cast<int64_t>(report.n_records), .bytes = static_cast<int64_t>(report.bytes)};
          result.problems = report.problems;
          return result;
        },
        [done](absl::StatusOr<VerifyResult> result) { done(std::move(result)); });
  });
}

void Engine::SaveCatalogRow(const Conversation& conversation) {
  if (store_ == nullptr || conversation.anonymous() || catalog_ == nullptr) return;
  const Manifest* manifest = conversation.manifest.get();
  const CatalogRow row{conversation.folder, conversation.owner, conversation.id, manifest == nullptr ? 0 : manifest->generation,
                       conversation.journalled_n, manifest == nullptr ? 0 : manifest->n_tokens, conversation.OwnBytes(),
                       conversation.created_at, conversation.last_used_at};
  store_thread_->Post([this, row] {
    if (const absl::Status put = catalog_->Put(row); !put.ok()) LogWarning("{}", ToStd(put.message()));
  });
}

absl::Status Engine::Shutdown() {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  absl::Status result;
  inbox_.Put([&] {
    BeginShutdown([&](absl::Status status) {
      std::lock_guard<std::mutex> lock(mutex);
      result = std::move(status);
      done = true;
      changed.notify_one();
    });
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
  return result;
}

void Engine::BeginShutdown(std::function<void(absl::Status)> done) {
  draining_ = true;
  shutdown_done_ = std::move(done);
  std::vector<GenerationId> ids;
  for (const auto& [id, turn] : turns_) ids.push_back(id);
  for (GenerationId id : ids) {
    if (turns_.contains(id)) StopTurn(*turns_.at(id), Unavailable("the server is shutting down"));
  }
  ContinueShutdown();
}

// One conversation after the other, once nothing runs; whoever finishes something calls it again.
void Engine::ContinueShutdown() {
  const bool moving = !transfers_.empty() || evictions_in_flight_ > 0 || give_ups_in_flight_ > 0;
  if (!shutdown_done_ || !turns_.empty() || moving || shutdown_saving_) return;
  // A restore, rewind, fork or deletion that was asked for before ends first.
  for (const auto& [key, conversation] : conversations_) {
    if (conversation->Busy()) return;
  }
  if (store_ != nullptr && store_->save != SavePolicy::kManual) {
    for (const auto& [key, conversation] : conversations_) {
      const bool unsaved = std::any_of(conversation->branches.begin(), conversation->branches.end(),
                                       [this](const auto& branch) { return IsUnsaved(*branch); });
      if (!unsaved || !shutdown_saved_.insert(conversation->folder).second) continue;
      shutdown_saving_ = true;
      BeginSave(conversation, nullptr, [this, conversation = conversation](absl::StatusOr<SaveResult> result) {
        if (!result.ok()) {
          LogError("conversation {} was not saved: {}", conversation->folder, ToStd(result.status().message()));
          shutdown_status_ = result.status();
        }
        // Not from here: the save is still being taken apart around this call.
        inbox_.Put([this] {
          shutdown_saving_ = false;
          ContinueShutdown();
        });
      });
      return;
    }
  }
  // Behind all that the store thread still has to do.
  shutdown_saving_ = true;
  store_thread_->Do(
      [conversations = conversations_]() -> absl::Status {
        absl::Status status;
        for (const auto& [key, conversation] : conversations) {
          if (conversation->files == nullptr || conversation->files->journal == nullptr) continue;
          if (const absl::Status flushed = conversation->files->journal->Flush(); !flushed.ok()) status = flushed;
        }
        return status;
      },
      [this](absl::Status flushed) {
        if (!flushed.ok()) shutdown_status_ = flushed;
        stages_->Shutdown();
        const auto done = std::exchange(shutdown_done_, nullptr);
        done(shutdown_status_);
      });
}

}  // namespace layover
