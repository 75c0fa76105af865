// A restore: the image is checked, every stage fills fresh pages from it, and only when all have verified everything
// does the session exist for anybody. Whatever is wrong leaves the live session and the store as they were.
#include <algorithm>

#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {
namespace {

absl::Status InFile(absl::Status status, std::string_view file) {
  if (PartOf(status).has_value()) return status;
  return WithPart(std::move(status), {.file = std::string(file)});
}

// The ids whose state the image holds: the path, of any turn, that has the manifest's digest.
absl::StatusOr<std::vector<int32_t>> TokensOf(const ConversationImage& image) {
  const Manifest& manifest = *image.manifest;
  const JournalState& state = image.journal.state;
  const auto n = static_cast<size_t>(manifest.n_tokens);
  const auto fits = [&](const std::vector<int32_t>& path) {
    return path.size() >= n && DigestOfTokens(std::span(path).first(n)) == manifest.prefix;
  };
  std::vector<int32_t> path = state.TrunkIds();
  for (int64_t turn = static_cast<int64_t>(state.turns.size()) - 1; turn >= 0 && !fits(path); --turn) path = state.PathIds(turn);
  if (!fits(path)) {
    return WithPart(DataLoss("journal: it does not hold the {} tokens that manifest.json was saved for", n), {.file = "journal"});
  }
  path.resize(n);
  return path;
}

}  // namespace

void Engine::Restore(std::string owner, std::string id, bool prove, ProgressCallback progress, Callback<RestoreResult> done) {
  inbox_.Put([this, owner, id, prove, progress = std::move(progress), done = std::move(done)] {
    const ConversationPtr conversation = Find(owner, id);
    if (store_ == nullptr) {
      done(Unimplemented("this server has no store"));
    } else if (prove) {
      done(Unimplemented("restores are not proved yet"));
    } else if (conversation == nullptr) {
      done(NotFound("there is no conversation {}", id));
    } else if (draining_ || !stages_->up()) {
      done(Unavailable("the stages are not up"));
    } else if (conversation->Active() || conversation->saving || conversation->restoring || conversation->deleting) {
      done(Aborted("conversation {} is in use", id));
    } else {
      BeginRestore(conversation, progress, [this, conversation, done](absl::StatusOr<RestoreResult> result, SessionId session) {
        if (result.ok()) {
          Branch& trunk = conversation->trunk();
          if (trunk.session != 0) pipeline_->Close(trunk.session);
          trunk.session = session;
          // The journal's tokens beyond the image stay the conversation's: the next request reads them again.
          const std::vector<int32_t>& held = pipeline_->tokens(session);
          if (CommonPrefix(trunk.path, held) < static_cast<int64_t>(held.size())) {
            trunk.path = held;
            trunk.fed = static_cast<int64_t>(held.size());
          }
        }
        done(std::move(result));
      });
    }
  });
}

void Engine::BeginRestore(const ConversationPtr& conversation, ProgressCallback progress, RestoredCallback done) {
  conversation->restoring = true;
  const std::string store = store_->dir, folder = conversation->folder;
  store_thread_->Do(
      [store, folder] { return LoadConversation(store, folder); },
      [this, conversation, progress = std::move(progress), done = std::move(done)](absl::StatusOr<ConversationImage> image) mutable {
        absl::Status status = image.status();
        if (status.ok()) {
          status = RestoreFromImage(conversation, std::make_shared<ConversationImage>(std::move(*image)), std::move(progress), &done);
        }
        if (status.ok()) return;
        conversation->restoring = false;
        conversation->last_error = std::string(status.message());
        const bool refused = absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
        conversation->saved.refused = conversation->saved.refused || refused;
        parts_.metrics->RestoreDone(refused ? TransferResult::kRefused : TransferResult::kFailed, 0);
        done(status, 0);
        AdmitQueued();
      });
}

absl::Status Engine::CheckIdentity(const Manifest& manifest, std::vector<std::string>* warnings) const {
  const std::vector<std::string> differences = StoredIdentityDifferences(manifest.identity, OwnIdentity());
  if (!differences.empty()) {
    std::string all = differences.front();
    for (size_t i = 1; i < differences.size(); ++i) all += ", " + differences[i];
    return WithPart(FailedPrecondition("manifest.json: the state was saved with another {}; this server cannot go on with it", all),
                    {.file = "manifest.json", .field = differences.front()});
  }
  if (manifest.template_digest != identity_.chat_template) {
    warnings->push_back("template changed since the save: the state is true, the prompt may match less of it");
  }
  return absl::OkStatus();
}

absl::Status Engine::RestoreFromImage(const ConversationPtr& conversation, const std::shared_ptr<ConversationImage>& image,
                                      ProgressCallback progress, RestoredCallback* done) {
  if (absl::IsNotFound(image->manifest_status)) return NotFound("conversation {} was never saved", conversation->id);
  if (!image->manifest_status.ok()) return InFile(image->manifest_status, kManifestName);
  if (!image->journal_status.ok()) return InFile(image->journal_status, kJournalName);
  if (!stages_->up()) return Unavailable("the stages are not up");
  const Manifest& manifest = *image->manifest;
  std::vector<std::string> warnings;
  RETURN_IF_ERROR(CheckIdentity(manifest, &warnings));
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, TokensOf(*image));
  if (static_cast<int64_t>(tokens.size()) > parts_.plan->context) {
    return InvalidArgument("the image holds {} tokens, the context here is {}", tokens.size(), parts_.plan->context);
  }

  wire::RestoreSession message{.tokens = tokens, .folder = conversation->folder, .identity = identity_.Combined()};
  for (const ManifestSegment& segment : manifest.segments) {
    ASSIGN_OR_RETURN(const SegmentPlace place, PlaceOfSegment(store_->dir, conversation->folder, manifest, segment));
    message.segments.push_back({.path = place.path, .layer_begin = segment.layer_begin, .layer_end = segment.layer_end,
                                .generation = segment.generation, .bytes = static_cast<int64_t>(segment.bytes),
                                .index_digest = segment.index_digest,
                                .folder = segment.folder.empty() ? conversation->folder : segment.folder});
  }
  absl::StatusOr<Pipeline::Shadow> shadow = pipeline_->OpenShadow(tokens);
  while (!shadow.ok() && EvictIdle(conversation->trunk().session)) shadow = pipeline_->OpenShadow(tokens);
  // The conversation's own live session makes room last: it would be replaced anyway, but only once the image is known good.
  if (!shadow.ok()) return Aborted("no room to restore beside what is live: {}", ToStd(shadow.status().message()));

  const uint64_t number = next_transfer_++;
  Transfer& transfer = transfers_[number];
  transfer.is_restore = true;
  transfer.conversation = conversation;
  transfer.progress = std::move(progress);
  transfer.done_so_far.verb = "restore";
  for (int stage = 0; stage < stages_->n_stages(); ++stage) transfer.done_so_far.stages.push_back({.stage = stage});
  transfer.generation = manifest.generation;
  transfer.n_tokens = manifest.n_tokens;
  transfer.prefix = manifest.prefix;
  transfer.session = shadow->session;
  transfer.image = image;
  transfer.warnings = std::move(warnings);
  transfer.restored.resize(static_cast<size_t>(stages_->n_stages()));
  transfer.restore_done = std::move(*done);
  message.restore = number;
  message.session = shadow->session;
  message.pages = std::move(shadow->pages);
  stages_->SendOrdered(message);
  return absl::OkStatus();
}

void Engine::OnRestoreReceipt(const wire::RestoreReceipt& receipt) {
  const auto found = transfers_.find(receipt.restore);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  transfer.last_sign = Clock::now();
  ++transfer.receipts;
  transfer.restored[static_cast<size_t>(receipt.stage)] = receipt;
  parts_.metrics->AddStageReadBytes(receipt.stage, receipt.bytes_read);
  absl::Status status = wire::FromWire(receipt.status, receipt.stage);
  if (status.ok() && (receipt.n_tokens != transfer.n_tokens || receipt.prefix != transfer.prefix)) {
    status = DataLoss("stage {} restored other tokens than it was asked to", receipt.stage);
  }
  if (transfer.status.ok()) transfer.status = std::move(status);
  if (transfer.receipts == stages_->n_stages()) EndRestore(receipt.restore);
}

void Engine::EndRestore(uint64_t number) {
  const Transfer transfer = std::move(transfers_.at(number));
  transfers_.erase(number);
  Conversation& conversation = *transfer.conversation;
  conversation.restoring = false;
  const int64_t ms = MsSince(transfer.started);
  if (!transfer.status.ok()) {
    pipeline_->Close(transfer.session);
    conversation.last_error = std::string(transfer.status.message());
    const bool refused = absl::IsDataLoss(transfer.status) || absl::IsFailedPrecondition(transfer.status) || absl::IsNotFound(transfer.status);
    conversation.saved.refused = conversation.saved.refused || refused;
    parts_.metrics->RestoreDone(refused ? TransferResult::kRefused : TransferResult::kFailed, static_cast<double>(ms) / 1000);
    LogWarning("conversation {}: restore refused: {}", conversation.folder, ToStd(transfer.status.message()));
    // A file that the manifest names and that is not there is damage of the image, not an unknown id.
    absl::Status status = transfer.status;
    if (absl::IsNotFound(status)) {
      const auto part = PartOf(status);
      status = DataLoss("{}", ToStd(status.message()));
      if (part.has_value()) status = WithPart(std::move(status), *part);
    }
    transfer.restore_done(status, 0);
  } else {
    RestoreResult result{.id = conversation.id, .generation = transfer.generation, .n_tokens = transfer.n_tokens, .ms = ms,
                         .warnings = transfer.warnings};
    const std::vector<StageStatus> stages = stages_->Status();
    for (const wire::RestoreReceipt& receipt : transfer.restored) {
      const LayerRange layers = stages[static_cast<size_t>(receipt.stage)].layers;
      result.bytes_read += receipt.bytes_read;
      result.stages.push_back({.stage = receipt.stage, .layer_begin = layers.begin, .layer_end = layers.end,
                               .bytes_read = receipt.bytes_read, .ms = receipt.ms});
    }
    conversation.last_error.clear();
    parts_.metrics->RestoreDone(TransferResult::kOk, static_cast<double>(ms) / 1000);
    LogInfo("conversation {}: generation {} restored, {} tokens, {} bytes, {} ms", conversation.folder, transfer.generation,
            transfer.n_tokens, result.bytes_read, ms);
    if (transfer.progress) transfer.progress(transfer.done_so_far);
    transfer.restore_done(std::move(result), transfer.session);
  }
  AdmitQueued();
  ContinueShutdown();
}

void Engine::FailTransfers(const absl::Status& why) {
  std::map<uint64_t, Transfer> failed = std::exchange(transfers_, {});
  for (auto& [number, transfer] : failed) {
    transfer.conversation->saving = false;
    transfer.conversation->restoring = false;
    const absl::Status status = Unavailable("interrupted: {}", ToStd(why.message()));
    if (transfer.is_restore) {
      parts_.metrics->RestoreDone(TransferResult::kFailed, 0);
      transfer.restore_done(status, 0);
    } else if (transfer.pin == 0 && transfer.receipts == stages_->n_stages()) {
      // Its segments are complete and the manifest is on its way to the disk: that goes on without the stages.
      transfer.conversation->saving = true;
      transfers_[number] = std::move(transfer);
    } else {
      stray_paths_.insert(stray_paths_.end(), transfer.paths.begin(), transfer.paths.end());
      parts_.metrics->SaveDone(TransferResult::kFailed, 0);
      transfer.save_done(status);
    }
  }
}

}  // namespace layover
