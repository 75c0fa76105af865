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
    BeginSave(conversation, progress, done);
  });
}

absl::Status Engine::CheckSpace(const Conversation& conversation, int64_t n_tokens) const {
  const int64_t bytes = (n_tokens + limits::kPageTokens - 1) / limits::kPageTokens * PageBytesAllLayers() +
                        kSegmentOverheadBytes * stages_->n_stages();
  if (static_cast<uint64_t>(bytes) > store_->budget_bytes) {
    return ResourceExhausted("the save needs about {} bytes, more than the store's budget of {}", bytes, store_->budget_bytes);
  }
  ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(store_->dir));
  if (free < static_cast<uint64_t>(bytes) + store_->min_free_bytes) {
    return ResourceExhausted("the save needs about {} bytes and {} must stay free (min_free); the disk has {}", bytes,
                             store_->min_free_bytes, free);
  }
  return absl::OkStatus();
}

void Engine::BeginSave(const ConversationPtr& conversation, ProgressCallback progress, Callback<SaveResult> done) {
  const auto refuse = [&](absl::Status why) {
    if (!absl::IsAborted(why)) conversation->last_error = std::string(why.message());
    parts_.metrics->SaveDone(TransferResult::kFailed, 0);
    done(std::move(why));
  };
  if (conversation->saving || conversation->restoring || conversation->deleting) {
    refuse(Aborted("conversation {} is being {}", conversation->id, conversation->saving ? "saved" : "changed"));
    return;
  }
  const SessionId session = conversation->trunk().session;
  const int64_t n = session == 0 ? 0 : static_cast<int64_t>(pipeline_->tokens(session).size());
  const SavedImage& saved = conversation->saved;
  if (n == 0) {
    if (saved.generation == 0) {
      refuse(FailedPrecondition("conversation {} holds no state to save: nothing of it is live", conversation->id));
      return;
    }
    done(SaveResult{.id = conversation->id, .generation = saved.generation, .n_tokens = saved.n_tokens, .bytes_kept = saved.bytes});
    return;
  }
  const Digest prefix = DigestOfTokens(pipeline_->tokens(session));
  if (n == saved.n_tokens && prefix == saved.prefix) {
    SaveResult same{.id = conversation->id, .generation = saved.generation, .n_tokens = n, .bytes_kept = saved.bytes};
    for (const StageStatus& stage : stages_->Status()) {
      same.stages.push_back({.stage = stage.stage, .layer_begin = stage.layers.begin, .layer_end = stage.layers.end});
    }
    done(std::move(same));
    return;
  }
  if (conversation->files == nullptr || conversation->files->journal == nullptr) {
    refuse(Internal("conversation {} has no journal that could bind a save", conversation->id));
    return;
  }
  if (const absl::Status space = CheckSpace(*conversation, n); !space.ok()) {
    refuse(space);
    return;
  }

  const uint64_t number = next_transfer_++;
  Transfer& transfer = transfers_[number];
  transfer.conversation = conversation;
  transfer.progress = std::move(progress);
  transfer.done_so_far.verb = "save";
  transfer.generation = conversation->next_generation++;
  transfer.n_tokens = n;
  transfer.prefix = prefix;
  transfer.pin = pipeline_->ledger().Pin(session);
  transfer.saved.resize(static_cast<size_t>(stages_->n_stages()));
  transfer.save_done = std::move(done);
  conversation->saving = true;
  // One cut for all stages, but each writes a file of its own name.
  const std::string folder = ConversationPath(store_->dir, conversation->folder);
  for (int stage = 0; stage < stages_->n_stages(); ++stage) {
    transfer.paths.push_back(JoinPath(folder, SegmentFileName(stage, transfer.generation)));
    transfer.done_so_far.stages.push_back({.stage = stage});
  }
  stages_->SendOrdered(wire::SaveSession{.save = number, .session = session, .n_tokens = n, .directory = folder,
                                         .folder = conversation->folder, .generation = transfer.generation,
                                         .identity = identity_.Combined()});
}

void Engine::OnTransferTick(const wire::TransferTick& tick) {
  const auto found = transfers_.find(tick.number);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  transfer.last_sign = Clock::now();
  TransferProgress& progress = transfer.done_so_far;
  progress.stages[static_cast<size_t>(tick.stage)] = {tick.stage, std::min(tick.bytes_done, tick.bytes_total), tick.bytes_total};
  progress.bytes_done = progress.bytes_total = 0;
  for (const TransferProgress::Stage& stage : progress.stages) {
    progress.bytes_done += stage.bytes_done;
    progress.bytes_total += stage.bytes_total;
  }
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
  if (transfer.receipts < stages_->n_stages()) return;
  // All stages have let go of the pages.
  pipeline_->ledger().Unpin(transfer.pin);
  transfer.pin = 0;
  if (transfer.status.ok()) {
    CommitSave(receipt.save);
  } else {
    EndSave(receipt.save, transfer.status);
  }
}

void Engine::AbortSave(Transfer& transfer, uint64_t number, absl::Status why) {
  if (!transfer.status.ok()) return;
  transfer.status = std::move(why);
  LogWarning("save {} of conversation {} aborted: {}", number, transfer.conversation->folder, ToStd(transfer.status.message()));
  for (int stage = 0; stage < stages_->n_stages(); ++stage) {
    stages_->SendTo(stage, wire::AbortSave{number, transfer.paths[static_cast<size_t>(stage)]});
  }
}

Manifest Engine::MakeManifest(const Transfer& save) const {
  const Conversation& conversation = *save.conversation;
  Manifest manifest;
  manifest.id = conversation.id;
  manifest.owner = conversation.owner;
  manifest.generation = save.generation;
  manifest.n_tokens = static_cast<int32_t>(save.n_tokens);
  manifest.prefix = save.prefix;
  manifest.created_at = conversation.created_at;
  manifest.saved_at = UnixSeconds();
  manifest.identity = OwnIdentity();
  manifest.template_digest = identity_.chat_template;
  manifest.numerics = stages_->numerics();
  manifest.branches = {{.n_tokens = manifest.n_tokens, .prefix = save.prefix}};
  for (const wire::SaveReceipt& receipt : save.saved) {
    manifest.segments.push_back({.file = SegmentFileName(receipt.stage, save.generation),
                                 .stage = receipt.stage,
                                 .generation = save.generation,
                                 .layer_begin = receipt.layer_begin,
                                 .layer_end = receipt.layer_end,
                                 .tokens = {{0, manifest.n_tokens}},
                                 .bytes = static_cast<uint64_t>(receipt.bytes),
                                 .live_bytes = static_cast<uint64_t>(receipt.payload_bytes),
                                 .index_digest = receipt.index_digest});
  }
  return manifest;
}

void Engine::CommitSave(uint64_t number) {
  const Transfer& transfer = transfers_.at(number);
  struct Committed {
    CommitOutcome outcome;
    Manifest manifest;
  };
  store_thread_->Do(
      [this, files = transfer.conversation->files, manifest = MakeManifest(transfer), store = store_->dir,
       folder = transfer.conversation->folder]() mutable -> Committed {
        const CommitOutcome outcome = layover::CommitSave(store, folder, &manifest, files->journal.get());
        if (outcome.visible && outcome.status.ok()) {
          segment_names_.Set(folder, &manifest);
          const auto removed = RemoveDeadSegments(store, folder, segment_names_);
          if (!removed.ok()) LogWarning("store: {}", ToStd(removed.status().message()));
        } else if (outcome.visible) {
          segment_names_.SetUnreadable(folder, outcome.status);
        }
        return {outcome, std::move(manifest)};
      },
      [this, number](Committed committed) {
        const auto found = transfers_.find(number);
        if (found == transfers_.end()) return;
        Transfer& save = found->second;
        if (!committed.outcome.status.ok()) {
          // In doubt, both generations' segments stay until the next start has looked.
          for (const std::string& path : committed.outcome.visible ? std::vector<std::string>() : save.paths) {
            store_thread_->Post([path] { (void)RemoveDurably(std::string(DirName(path)), BaseName(path)); });
          }
          EndSave(number, committed.outcome.status);
          return;
        }
        Conversation& conversation = *save.conversation;
        SaveResult result{.id = conversation.id, .generation = save.generation, .n_tokens = save.n_tokens,
                          .ms = MsSince(save.started)};
        conversation.saved = SavedImageOf(committed.manifest);
        for (const wire::SaveReceipt& receipt : save.saved) {
          result.bytes_written += receipt.bytes;
          result.stages.push_back({.stage = receipt.stage, .layer_begin = receipt.layer_begin, .layer_end = receipt.layer_end,
                                   .bytes_written = receipt.bytes, .ms = receipt.ms});
        }
        conversation.last_save = {result.bytes_written, result.bytes_kept};
        conversation.last_error.clear();
        LogInfo("conversation {}: generation {} saved, {} tokens, {} bytes, {} ms", conversation.folder, save.generation,
                save.n_tokens, result.bytes_written, result.ms);
        EndSave(number, std::move(result));
      });
}

void Engine::EndSave(uint64_t number, absl::StatusOr<SaveResult> result) {
  Transfer save = std::move(transfers_.at(number));
  transfers_.erase(number);
  save.conversation->saving = false;
  if (!result.ok()) save.conversation->last_error = std::string(result.status().message());
  parts_.metrics->SaveDone(result.ok() ? TransferResult::kOk : TransferResult::kFailed,
                           static_cast<double>(MsSince(save.started)) / 1000);
  SaveCatalogRow(*save.conversation);
  if (result.ok() && save.progress) {
    for (TransferProgress::Stage& stage : save.done_so_far.stages) stage.bytes_done = stage.bytes_total;
    save.done_so_far.bytes_done = save.done_so_far.bytes_total;
    save.progress(save.done_so_far);
  }
  save.save_done(std::move(result));
  AdmitQueued();
}

}  // namespace layover
