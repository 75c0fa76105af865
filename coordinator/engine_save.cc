// A save, step by step: cut, segments, receipts, `saving`, manifest, `saved`, catalog, removal of what is dead.
#include <algorithm>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {
namespace {

// Header, index, footer and padding of a segment, generously: what a save needs beside its rows.
constexpr int64_t kSegmentOverheadBytes = 256 * 1024;

}  // namespace

void Engine::Save(std::string owner, std::string id, ProgressCallback progress, Callback<SaveResult> done) {
  inbox_.Put([this, owner, id, progress = std::move(progress), done = std::move(done)] {
    if (store_ == nullptr) {
      done(Unimplemented("this server has no store"));
      return;
    }
    const ConversationPtr conversation = Find(owner, id);
    if (conversation == nullptr) {
      done(NotFound("there is no conversation {}", id));
      return;
    }
    if (draining_) {
      done(Unavailable("the server is shutting down"));
      return;
    }
    if (!stages_->up()) {
      done(Unavailable("the stages are not up"));
      return;
    }
    BeginSave(conversation, progress, done);
  });
}

// What is live or parked of each branch, the trunk first; branches of which nothing is held anywhere are left out.
std::vector<BranchState> Engine::StatesOf(const Conversation& conversation) const {
  std::vector<BranchState> states;
  for (const auto& branch : conversation.branches) {
    BranchState state{.branch = branch.get()};
    if (branch->session != 0 && !pipeline_->tokens(branch->session).empty()) {
      state.session = branch->session;
      state.tokens = pipeline_->tokens(branch->session);
      state.checkpoints = StatesAt(branch->checkpoints);
    } else if (branch->lent != 0 && pipeline_->Has(branch->lent)) {
      const std::vector<int32_t>& lent = pipeline_->tokens(branch->lent);
      state.session = branch->lent;
      state.tokens = std::span(lent).first(std::min(lent.size(), branch->path.size()));
      if (cut_ == CutAt::kCheckpoints && state.tokens.size() != lent.size()) state = {.branch = branch.get()};
    } else if (branch->parked != 0) {
      state.park = branch->parked;
      state.tokens = branch->parked_path;
      for (const int32_t position : branch->parked_checkpoints) state.checkpoints.push_back({.position = position});
    }
    if (!state.tokens.empty() || branch->saved.n_tokens > 0) states.push_back(state);
  }
  return states;
}

// The image of a conversation whose rows the trunk shares: its source's, a fork's, or one that shares with those.
std::optional<SharedImage> Engine::SharedImageFor(const Conversation& conversation,
                                                  std::vector<const SavedBranch*>* branches) const {
  std::map<std::string, int64_t> shared = {{conversation.folder, limits::kMaxContextTokens}};  // folder -> tokens
  std::vector<std::string> looked_at = {conversation.folder};
  const Conversation* best = nullptr;
  for (size_t i = 0; i < looked_at.size(); ++i) {
    const int64_t here = shared[looked_at[i]];
    const auto follow = [&](const Conversation& other, int64_t n) {
      n = std::min(n, here);
      if (n < limits::kPageTokens || n <= shared[other.folder]) return;
      shared[other.folder] = n;
      looked_at.push_back(other.folder);
      if (&other == &conversation || !other.HasImage() || !other.loaded || other.deleting) return;
      if (best == nullptr || n > shared[best->folder]) best = &other;
    };
    for (const auto& [key, other] : conversations_) {
      if (other->owner != conversation.owner) continue;
      for (const auto& branch : other->branches) {
        if (branch->shared_n == 0) continue;
        if (branch->shared_with == looked_at[i]) follow(*other, branch->shared_n);
        if (other->folder != looked_at[i]) continue;
        for (const auto& [other_key, source] : conversations_) {
          if (source->folder == branch->shared_with) follow(*source, branch->shared_n);
        }
      }
    }
  }
  if (best == nullptr) return std::nullopt;
  for (const auto& branch : best->branches) {
    if (branch->saved.n_tokens > 0) branches->push_back(&branch->saved);
  }
  return SharedImage{best->folder, best->manifest.get(), *branches, shared[best->folder]};
}

SavePlan Engine::PlanSaveOf(const Conversation& conversation, int64_t generation, bool whole) const {
  std::vector<const SavedBranch*> branches;
  const std::optional<SharedImage> shared = SharedImageFor(conversation, &branches);
  return PlanSave(conversation.manifest.get(), generation, StatesOf(conversation), shared.has_value() ? &*shared : nullptr, cut_, whole);
}

int64_t Engine::SaveBytes(const SavePlan& plan) const {
  int64_t states = 0;
  for (const wire::BranchCut& cut : plan.cuts) states += 1 + static_cast<int64_t>(cut.checkpoints.size());
  return plan.new_tokens * RowBytes(AllLayers()) + states * StateBytes() + kSegmentOverheadBytes * stages_->n_stages();
}

absl::Status Engine::CheckSpace(const SavePlan& plan) const {
  const int64_t bytes = SaveBytes(plan);
  int64_t image = bytes;
  for (const ManifestSegment& segment : plan.kept) image += static_cast<int64_t>(segment.bytes);
  if (static_cast<uint64_t>(image) > store_->budget_bytes) {
    return ResourceExhausted("the conversation's image needs about {} bytes, more than the store's budget of {}", image,
                             store_->budget_bytes);
  }
  ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(store_->dir));
  if (free < static_cast<uint64_t>(bytes) + store_->min_free_bytes) {
    return ResourceExhausted("the save needs about {} bytes and {} must stay free (min_free); the disk has {}", bytes,
                             store_->min_free_bytes, free);
  }
  return absl::OkStatus();
}

SaveResult Engine::UnchangedResult(const Conversation& conversation) const {
  const Manifest& manifest = *conversation.manifest;
  SaveResult same{.id = conversation.id, .generation = manifest.generation, .n_tokens = manifest.n_tokens};
  for (const StageStatus& stage : stages_->Status()) {
    same.stages.push_back({.stage = stage.stage, .layer_begin = stage.layers.begin, .layer_end = stage.layers.end});
  }
  CountKept(manifest, manifest.generation + 1, &same);
  return same;
}

// Bytes of segments older than `generation`, or another folder's, by the stage that owns their first layer.
void Engine::CountKept(const Manifest& manifest, int64_t generation, SaveResult* result) const {
  for (const ManifestSegment& segment : manifest.segments) {
    if (segment.folder.empty() && segment.generation >= generation) continue;
    result->bytes_kept += static_cast<int64_t>(segment.bytes);
    for (StageBytes& stage : result->stages) {
      if (segment.layer_begin >= stage.layer_begin && segment.layer_begin < stage.layer_end) {
        stage.bytes_kept += static_cast<int64_t>(segment.bytes);
      }
    }
  }
}

void Engine::BeginSave(const ConversationPtr& conversation, ProgressCallback progress, Callback<SaveResult> done, bool whole) {
  const auto refuse = [&](absl::Status why) {
    if (!absl::IsAborted(why)) conversation->last_error = std::string(why.message());
    if (!whole) parts_.metrics->SaveDone(TransferResult::kFailed, 0);
    done(std::move(why));
  };
  if (conversation->Busy()) {
    refuse(Aborted("conversation {} is being {}", conversation->id, conversation->saving ? "saved" : "changed"));
    return;
  }
  // Nothing stands on an image that was refused.
  const bool anew = whole || conversation->refused;
  SavePlan plan = PlanSaveOf(*conversation, conversation->next_generation, anew);
  if (plan.nothing_new || (anew && plan.cuts.empty())) {
    if (conversation->manifest == nullptr || !conversation->HasImage()) {
      refuse(NoState(*conversation, "state to save: nothing of it is live"));
    } else {
      done(UnchangedResult(*conversation));
    }
    return;
  }
  if (conversation->files == nullptr || conversation->files->journal == nullptr) {
    refuse(Internal("conversation {} has no journal that could bind a save", conversation->id));
    return;
  }
  if (const absl::Status space = CheckSpace(plan); !space.ok()) {
    refuse(space);
    return;
  }
  const auto leaving = ImagesToGiveUp(SaveBytes(plan), conversation.get());
  if (!leaving.has_value() && give_ups_in_flight_ == 0) {
    refuse(ResourceExhausted("the save needs about {} bytes; what is pinned or in use leaves less of the store's budget of {}",
                             SaveBytes(plan), store_->budget_bytes));
    return;
  }
  if (!leaving.has_value() || !leaving->empty()) {
    // Looked at again behind what leaves: each end of that comes by the queue.
    waiting_for_place_.push_back([this, conversation, progress, done, whole] { BeginSave(conversation, progress, done, whole); });
    if (give_ups_in_flight_ > 0) return;
    for (const ConversationPtr& image : *leaving) GiveUpImage(image, "the store's budget is needed for another one");
    return;
  }
  SendSave(conversation, std::move(plan), std::move(progress), std::move(done), whole);
}

void Engine::SendSave(const ConversationPtr& conversation, SavePlan plan, ProgressCallback progress, Callback<SaveResult> done,
                      bool whole) {
  const uint64_t number = next_transfer_++;
  Transfer& transfer = transfers_[number];
  transfer.conversation = conversation;
  transfer.progress = std::move(progress);
  transfer.done_so_far.verb = "save";
  transfer.generation = conversation->next_generation++;
  transfer.compaction = whole;
  transfer.save_done = std::move(done);
  transfer.plan = std::move(plan);
  conversation->saving = true;
  tally_.Touch(conversation);
  if (transfer.plan.cuts.empty()) {
    // Only what is named changes: no stage has anything to write.
    transfer.receipts = stages_->n_stages();
    ProbeForProof(number);
    CommitIfComplete(number);
    return;
  }
  const ManifestBranch& first = transfer.plan.branches[static_cast<size_t>(transfer.plan.cuts.front().branch)];
  transfer.n_tokens = first.n_tokens;
  transfer.prefix = first.prefix;
  transfer.saved.resize(static_cast<size_t>(stages_->n_stages()));
  for (const wire::BranchCut& cut : transfer.plan.cuts) {
    if (cut.session != 0) transfer.pins.push_back(pipeline_->ledger().Pin(cut.session));
  }
  // One cut for all stages, but each writes a file of its own name.
  const std::string folder = ConversationPath(store_->dir, conversation->folder);
  for (const StageStatus& stage : stages_->Status()) {
    transfer.paths.push_back(JoinPath(folder, SegmentFileName(stage.stage, transfer.generation)));
    transfer.done_so_far.stages.push_back({.stage = stage.stage, .bytes_total = transfer.plan.new_tokens * RowBytes(stage.layers)});
  }
  TellProgress(number, transfer);
  stages_->SendOrdered(wire::SaveSession{.save = number, .branches = transfer.plan.cuts, .directory = folder,
                                         .folder = conversation->folder, .generation = transfer.generation,
                                         .identity = identity_.Combined()});
  ProbeForProof(number);
}

// The digest of the logits row after the trunk as it is saved: run now, at the cut, if it is live.
void Engine::ProbeForProof(uint64_t number) {
  Transfer& transfer = transfers_.at(number);
  const ManifestBranch& trunk = transfer.plan.branches.front();
  const Branch& source = *transfer.plan.sources.front();
  const SessionId live = source.session != 0 ? source.session : source.lent;
  const Manifest* previous = transfer.conversation->manifest.get();
  if (previous != nullptr && previous->n_tokens == trunk.n_tokens && previous->prefix == trunk.prefix && previous->proof.has_value()) {
    transfer.proof = previous->proof;
  } else if (live != 0 && static_cast<int32_t>(pipeline_->tokens(live).size()) == trunk.n_tokens) {
    transfer.awaits_probe = true;
    transfer.pins.push_back(pipeline_->ledger().Pin(live));  // it may ride in a later step
    Probe(live, [this, number](const Digest& row) {
      const auto found = transfers_.find(number);
      if (found == transfers_.end()) return;
      found->second.proof = row;
      found->second.awaits_probe = false;
      CommitIfComplete(number);
    });
  } else if (source.parked != 0 && static_cast<int32_t>(source.parked_path.size()) == trunk.n_tokens) {
    transfer.proof = source.parked_proof;
  }
}

void Engine::OnTransferTick(const wire::TransferTick& tick) {
  const auto found = transfers_.find(tick.number);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  transfer.last_sign = Clock::now();
  TransferProgress& progress = transfer.done_so_far;
  progress.stages[static_cast<size_t>(tick.stage)] = {tick.stage, std::min(tick.bytes_done, tick.bytes_total), tick.bytes_total};
  TellProgress(tick.number, transfer);
}

void Engine::TellProgress(uint64_t number, Transfer& transfer) {
  TransferProgress& progress = transfer.done_so_far;
  progress.bytes_done = progress.bytes_total = 0;
  for (const TransferProgress::Stage& stage : progress.stages) {
    progress.bytes_done += stage.bytes_done;
    progress.bytes_total += stage.bytes_total;
  }
  if (transfer.kind == TransferKind::kSave || transfer.kind == TransferKind::kRestore) parts_.metrics->TransferMoved(number, progress);
  if (transfer.progress) transfer.progress(progress);
}

void Engine::OnSaveReceipt(const wire::SaveReceipt& receipt) {
  const auto found = transfers_.find(receipt.save);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  transfer.last_sign = Clock::now();
  ++transfer.receipts;
  transfer.saved[static_cast<size_t>(receipt.stage)] = receipt;
  parts_.metrics->AddStageWrittenBytes(receipt.stage, receipt.bytes);
  absl::Status status = wire::FromWire(receipt.status, receipt.stage);
  if (status.ok() && (receipt.n_tokens != transfer.n_tokens || receipt.prefix != transfer.prefix)) {
    status = Internal("stage {} saved other tokens than it was asked to", receipt.stage);
  }
  if (!status.ok()) AbortSave(transfer, receipt.save, status);
  CommitIfComplete(receipt.save);
}

void Engine::CommitIfComplete(uint64_t number) {
  Transfer& transfer = transfers_.at(number);
  if (transfer.receipts < stages_->n_stages() || transfer.committing) return;
  if (transfer.status.ok() && transfer.awaits_probe) return;
  // All stages have let go of the pages, and the proof's row has been read from them.
  for (PageLedger::PinId pin : std::exchange(transfer.pins, {})) pipeline_->ledger().Unpin(pin);
  transfer.committing = true;  // the stages are not needed any more
  if (transfer.status.ok()) {
    CommitSave(number);
    return;
  }
  // A stage that was done before it heard of the failure still has its file: the answer comes when that is gone.
  store_thread_->Do(
      [paths = transfer.paths] {
        for (const std::string& path : paths) (void)RemoveDurably(std::string(DirName(path)), BaseName(path));
        return true;
      },
      [this, number](bool) {
        if (const auto found = transfers_.find(number); found != transfers_.end()) EndSave(number, absl::Status(found->second.status));
      });
}

void Engine::AbortSave(Transfer& transfer, uint64_t number, absl::Status why) {
  if (!transfer.status.ok()) return;
  transfer.status = std::move(why);
  LogWarning("save {} of conversation {} aborted: {}", number, transfer.conversation->folder, ToStd(transfer.status.message()));
  for (size_t stage = 0; stage < transfer.paths.size(); ++stage) {
    stages_->SendTo(static_cast<int>(stage), wire::AbortSave{number, transfer.paths[stage]});
  }
}

Manifest Engine::MakeManifest(const Transfer& save) const {
  const Conversation& conversation = *save.conversation;
  Manifest manifest;
  manifest.id = conversation.id;
  manifest.owner = conversation.owner;
  manifest.generation = save.generation;
  manifest.n_tokens = save.plan.branches.front().n_tokens;
  manifest.prefix = save.plan.branches.front().prefix;
  manifest.created_at = conversation.created_at;
  manifest.saved_at = UnixSeconds();
  manifest.identity = OwnIdentity();
  manifest.template_digest = identity_.chat_template;
  manifest.numerics = stages_->numerics();
  manifest.proof = save.proof;
  manifest.branches = save.plan.branches;
  manifest.segments = save.plan.kept;
  for (const wire::SaveReceipt& receipt : save.saved) {
    manifest.segments.push_back({.file = SegmentFileName(receipt.stage, save.generation),
                                 .stage = receipt.stage,
                                 .generation = save.generation,
                                 .layer_begin = receipt.layer_begin,
                                 .layer_end = receipt.layer_end,
                                 .bytes = static_cast<uint64_t>(receipt.bytes),
                                 .index_digest = receipt.index_digest,
                                 .host = remote_segments_->HostOf(receipt.stage)});
  }
  CountLive(&manifest, BytesOfLayers());
  return manifest;
}

LayerBytes Engine::BytesOfLayers() const {
  const auto kind = [this](int layer) { return parts_.shape->layers[static_cast<size_t>(layer)].kind; };
  return {.per_token = [this, kind](int layer) { return kind(layer) == LayerKind::kFullAttention ? TokenBytes(layer) : 0; },
          .per_checkpoint = [this, kind](int layer) -> uint64_t {
            if (kind(layer) == LayerKind::kRecurrent) return RecurrentStateBytes(*parts_.shape);
            return kind(layer) == LayerKind::kSlidingWindow ? TokenBytes(layer) * static_cast<uint64_t>(parts_.shape->window) : 0;
          }};
}

// The commit, on the store thread, where everything that removes segments happens too: so what the manifest takes from
// other folders is there, or nothing is published.
Engine::Published Engine::PublishManifest(const std::string& store, const std::string& folder, Manifest manifest, Journal& journal) {
  Published published;
  for (const ManifestSegment& segment : manifest.segments) {
    if (segment.folder.empty() || segment_names_.Names(segment.folder, segment.file)) continue;
    published.outcome.status = Aborted("{}, whose rows are shared, is not needed by its own conversation any more", segment.Path());
    return published;
  }
  published.outcome = layover::CommitSave(store, folder, &manifest, &journal);
  if (published.outcome.visible && published.outcome.status.ok()) {
    segment_names_.Set(folder, &manifest);
    remote_segments_->SetNames(folder, &manifest);
    const auto removed = RemoveDeadSegments(store, folder, segment_names_);
    if (!removed.ok()) LogWarning("store: {}", ToStd(removed.status().message()));
    published.manifest_bytes = BytesOfFile(JoinPath(ConversationPath(store, folder), kManifestName));
  } else if (published.outcome.visible) {
    segment_names_.SetUnreadable(folder, published.outcome.status);
  }
  published.manifest = std::make_shared<const Manifest>(std::move(manifest));
  return published;
}

void Engine::CommitSave(uint64_t number) {
  const Transfer& transfer = transfers_.at(number);
  store_thread_->Do(
      [this, files = transfer.conversation->files, manifest = MakeManifest(transfer), store = store_->dir,
       folder = transfer.conversation->folder]() mutable {
        return PublishManifest(store, folder, std::move(manifest), *files->journal);
      },
      [this, number](Published published) {
        const auto found = transfers_.find(number);
        if (found == transfers_.end()) return;
        Transfer& save = found->second;
        if (!published.outcome.status.ok()) {
          // In doubt, both generations' segments stay until the next start has looked.
          for (size_t i = 0; i < save.paths.size() && !published.outcome.visible; ++i) {
            remote_segments_->Remove(static_cast<int>(i), save.paths[i]);
          }
          EndSave(number, published.outcome.status);
          return;
        }
        Conversation& conversation = *save.conversation;
        conversation.manifest_bytes = published.manifest_bytes;
        TakeCommitted(save, published.manifest);
        SaveResult result{.id = conversation.id, .generation = save.generation, .n_tokens = published.manifest->n_tokens,
                          .ms = MsSince(save.started)};
        for (const wire::SaveReceipt& receipt : save.saved) {
          result.bytes_written += receipt.bytes;
          result.stages.push_back({.stage = receipt.stage, .layer_begin = receipt.layer_begin, .layer_end = receipt.layer_end,
                                   .bytes_written = receipt.bytes, .ms = receipt.ms});
        }
        CountKept(*published.manifest, save.generation, &result);
        if (!save.compaction) conversation.last_save = {result.bytes_written, result.bytes_kept};
        LogInfo("conversation {}: generation {} {}, {} tokens, {} bytes written, {} kept, {} ms", conversation.folder,
                save.generation, save.compaction ? "compacted" : "saved", result.n_tokens, result.bytes_written,
                result.bytes_kept, result.ms);
        EndSave(number, std::move(result));
      });
}

// What the store holds now is what the plan said.
void Engine::TakeCommitted(Transfer& save, std::shared_ptr<const Manifest> manifest) {
  Conversation& conversation = *save.conversation;
  for (auto& branch : conversation.branches) {
    branch->saved = SavedBranch();
    for (size_t i = 0; i < save.plan.sources.size(); ++i) {
      if (save.plan.sources[i] != branch.get()) continue;
      branch->saved = {manifest->branches[i].n_tokens, std::move(save.plan.paths[i]), manifest->branches[i].chain,
                       manifest->branches[i].checkpoints};
    }
  }
  conversation.TakeManifest(std::move(manifest), conversation.trunk().saved.path);
  conversation.refused = false;
  conversation.stuck = false;
  conversation.last_error.clear();
}

void Engine::EndSave(uint64_t number, absl::StatusOr<SaveResult> result) {
  Transfer save = std::move(transfers_.at(number));
  transfers_.erase(number);
  parts_.metrics->TransferEnded(number);
  const ConversationPtr& conversation = save.conversation;
  conversation->saving = false;
  if (!result.ok()) conversation->last_error = std::string(result.status().message());
  if (!save.compaction) {
    parts_.metrics->SaveDone(result.ok() ? TransferResult::kOk : TransferResult::kFailed,
                             static_cast<double>(MsSince(save.started)) / 1000);
  }
  SaveCatalogRow(*conversation);
  if (result.ok() && save.progress) {
    for (TransferProgress::Stage& stage : save.done_so_far.stages) stage.bytes_done = stage.bytes_total;
    save.done_so_far.bytes_done = save.done_so_far.bytes_total;
    save.progress(save.done_so_far);
  }
  const bool compact = result.ok() && !save.compaction && !draining_ && WantsCompaction(*conversation->manifest, cut_);
  save.save_done(std::move(result));
  if (std::exchange(conversation->save_again, false) && !draining_) {
    SaveTurn(conversation);
  } else if (compact && !conversation->Busy()) {
    BeginSave(conversation, nullptr, [](auto) {}, true);
  }
  AdmitQueued();
  ContinueShutdown();
}

void Engine::SaveTurn(const ConversationPtr& conversation) {
  if (conversation->Busy()) {
    conversation->save_again = true;
    return;
  }
  BeginSave(conversation, nullptr, [](auto) {});
}

}  // namespace layover
