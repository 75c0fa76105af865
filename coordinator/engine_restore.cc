// A restore: the image is checked, every stage fills fresh pages from it, and only when all have verified everything
// does the session exist for anybody. Whatever is wrong leaves the live session and the store as they were. A session
// comes back from host RAM the same way.
#include <algorithm>
#include <set>

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

bool IsRefusal(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status); }

// What of an image is wanted: the first ids of one of its branches.
struct Wanted {
  const ManifestBranch* branch = nullptr;
  std::vector<int32_t> ids;  // of all records to be read
  int64_t position = 0;      // where to go on
};

// The branch that serves `ids` furthest, perhaps a little beyond; the trunk, whole, if there are none. The ids are the journal's, of any turn, that
// have the manifest's digest.
absl::StatusOr<Wanted> FindWanted(const ConversationImage& image, std::span<const int32_t> ids, CutAt cut) {
  const JournalState& state = image.journal.state;
  Wanted wanted;
  for (const ManifestBranch& branch : image.manifest->branches) {
    const int64_t turn = state.FindTurn(branch.n_tokens, branch.prefix);
    const bool trunk = branch.branch == 0;
    if (turn == kNoTurn && !trunk) continue;
    if (turn == kNoTurn) {
      return WithPart(DataLoss("journal: it does not hold the {} tokens that manifest.json was saved for", branch.n_tokens),
                      {.file = std::string(kJournalName)});
    }
    std::vector<int32_t> path = state.PathIds(turn, branch.n_tokens);
    int64_t position = branch.n_tokens;
    if (!ids.empty() && cut == CutAt::kAnywhere) {
      position = RowsToRead({.n_tokens = branch.n_tokens, .path = path}, ids);
      path.resize(static_cast<size_t>(position));
    } else if (!ids.empty()) {
      // The last of a prompt's ids is always fed.
      const int64_t common = CommonPrefix(path, ids.first(ids.size() - 1));
      position = DeepestState(cut, common, branch.n_tokens, branch.checkpoints);
      path.resize(static_cast<size_t>(RowsToRead({.n_tokens = branch.n_tokens, .path = path}, std::span(path).first(static_cast<size_t>(position)))));
    }
    if (position > wanted.position) wanted = {&branch, std::move(path), position};
    if (ids.empty()) break;
  }
  if (wanted.branch == nullptr) return NotFound("the image holds nothing of what is wanted");
  return wanted;
}

}  // namespace

void Engine::Restore(std::string owner, std::string id, bool prove, ProgressCallback progress, Callback<RestoreResult> done) {
  inbox_.Put([this, owner, id, prove, progress = std::move(progress), done = std::move(done)] {
    if (const absl::Status ready = CheckStoreReady(); !ready.ok()) {
      done(ready);
      return;
    }
    WithLoaded(owner, id, done, [this, prove, progress, done](const ConversationPtr& conversation) {
      if (const absl::Status rest = CheckAtRest(*conversation); !rest.ok()) {
        done(rest);
        return;
      }
      conversation->switching = true;
      BeginRestore({.conversation = conversation, .prove = prove || store_->prove}, progress,
                   [this, conversation, done](absl::StatusOr<RestoreResult> result, SessionId session) {
                     conversation->switching = false;
                     if (result.ok()) TakeRestored(*conversation, session);
                     done(std::move(result));
                     AdmitQueued();
                   });
    });
  });
}

// The trunk goes on with this session, in place of whatever it had.
void Engine::TakeRestored(Conversation& conversation, SessionId session) {
  Branch& trunk = conversation.trunk();
  CloseBranch(conversation, trunk);
  DropParked(trunk);
  trunk.session = session;
  HoldSlot(session);
  trunk.last_used_ms = SteadyMs();
  // The journal's tokens beyond the image stay the conversation's: the next request reads them again.
  const std::vector<int32_t>& held = pipeline_->tokens(session);
  if (CommonPrefix(trunk.path, held) < static_cast<int64_t>(held.size())) {
    trunk.path = held;
    trunk.fed = static_cast<int64_t>(held.size());
  }
}

void Engine::BeginRestore(const RestoreWish& wish, ProgressCallback progress, RestoredCallback done) {
  const ConversationPtr& conversation = wish.conversation;
  if (conversation->saving) {
    // Its files are changing.
    waiting_for_place_.push_back([this, wish, progress, done] { BeginRestore(wish, progress, done); });
    return;
  }
  ++conversation->restoring;
  if (!conversation->anonymous()) tally_.Touch(conversation);
  store_thread_->Do(
      [store = store_->dir, folder = conversation->folder, files = conversation->files] {
        const bool open = files != nullptr && files->journal != nullptr;
        return open ? LoadBeside(store, folder, *files->journal) : LoadConversation(store, folder);
      },
      [this, wish, progress = std::move(progress), done = std::move(done)](absl::StatusOr<ConversationImage> image) {
        absl::Status status = image.status();
        if (status.ok()) status = RestoreFromImage(wish, std::make_shared<ConversationImage>(std::move(*image)), progress, done);
        if (!status.ok()) FailRestore(wish, status, done);
      });
}

void Engine::FailRestore(const RestoreWish& wish, const absl::Status& why, const RestoredCallback& done) {
  Conversation& conversation = *wish.conversation;
  --conversation.restoring;
  conversation.last_error = std::string(why.message());
  conversation.refused = conversation.refused || IsRefusal(why);
  parts_.metrics->RestoreDone(IsRefusal(why) ? TransferResult::kRefused : TransferResult::kFailed, 0);
  LogWarning("conversation {}: not restored: {}", conversation.folder, ToStd(why.message()));
  done(why, 0);
  AdmitQueued();
  ContinueShutdown();
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

absl::Status Engine::RestoreFromImage(const RestoreWish& wish, const std::shared_ptr<ConversationImage>& image,
                                      const ProgressCallback& progress, const RestoredCallback& done) {
  const Conversation& conversation = *wish.conversation;
  if (absl::IsNotFound(image->manifest_status)) return NotFound("conversation {} was never saved", conversation.id);
  if (!image->manifest_status.ok()) return InFile(image->manifest_status, kManifestName);
  if (!image->journal_status.ok()) return InFile(image->journal_status, kJournalName);
  if (!stages_->up()) return Unavailable("the stages are not up");
  const Manifest& manifest = *image->manifest;
  if (manifest.n_tokens == 0) return NotFound("the image of conversation {} was given up", conversation.id);
  std::vector<std::string> warnings;
  RETURN_IF_ERROR(CheckIdentity(manifest, &warnings));
  ASSIGN_OR_RETURN(const Wanted wanted, FindWanted(*image, wish.ids, cut_));
  const std::vector<int32_t>& tokens = wanted.ids;
  if (static_cast<int64_t>(tokens.size()) > parts_.plan->context) {
    return InvalidArgument("the image holds {} tokens, the context here is {}", tokens.size(), parts_.plan->context);
  }

  wire::RestoreSession message{.tokens = tokens, .folder = conversation.folder, .identity = identity_.Combined()};
  std::set<std::pair<std::string, int64_t>> needed;  // folder, generation
  for (const ChainLink& link : wanted.branch->chain) {
    // A checkpoint may stand in a later segment than the rows before it.
    if (link.begin < static_cast<int32_t>(tokens.size()) || cut_ == CutAt::kCheckpoints) needed.insert({link.folder, link.generation});
  }
  for (const ManifestSegment& segment : manifest.segments) {
    if (!needed.contains({segment.folder, segment.generation})) continue;
    RETURN_IF_ERROR(remote_segments_->CheckReach(segment));
    ASSIGN_OR_RETURN(const SegmentPlace place, PlaceOfSegment(store_->dir, conversation.folder, manifest, segment));
    message.segments.push_back({.path = place.path, .layer_begin = segment.layer_begin, .layer_end = segment.layer_end,
                                .generation = segment.generation, .bytes = static_cast<int64_t>(segment.bytes),
                                .index_digest = segment.index_digest,
                                .folder = segment.folder.empty() ? conversation.folder : segment.folder,
                                .host = segment.host});
  }
  const std::vector<int32_t> held(tokens.begin(), tokens.begin() + wanted.position);
  ASSIGN_OR_RETURN(Pipeline::Shadow shadow, PlaceForRestore(wish, held));
  if (shadow.session == 0) {
    waiting_for_place_.push_back([this, wish, image, progress, done] {
      const absl::Status status = RestoreFromImage(wish, image, progress, done);
      if (!status.ok()) FailRestore(wish, status, done);
    });
    return absl::OkStatus();
  }

  const uint64_t number = next_transfer_++;
  Transfer& transfer = transfers_[number];
  transfer.kind = TransferKind::kRestore;
  transfer.conversation = wish.conversation;
  transfer.progress = progress;
  transfer.done_so_far.verb = "restore";
  for (const StageStatus& stage : stages_->Status()) {
    transfer.done_so_far.stages.push_back({.stage = stage.stage, .bytes_total = static_cast<int64_t>(tokens.size()) * RowBytes(stage.layers)});
  }
  transfer.generation = manifest.generation;
  transfer.n_tokens = static_cast<int64_t>(tokens.size());
  transfer.prefix = DigestOfTokens(tokens);
  transfer.session = shadow.session;
  transfer.numerics = manifest.numerics;
  if (wish.prove) {
    // The proof is of the trunk as it was saved.
    const bool provable = manifest.proof.has_value() && transfer.prefix == manifest.prefix && wanted.position == manifest.n_tokens;
    if (provable) transfer.proof = manifest.proof;
    if (!provable) warnings.push_back("proof: there is no probe row for this state");
  }
  transfer.warnings = std::move(warnings);
  transfer.restored.resize(static_cast<size_t>(stages_->n_stages()));
  transfer.restore_done = done;
  message.restore = number;
  message.session = shadow.session;
  message.pages = std::move(shadow.pages);
  message.state = std::move(shadow.state);
  TellProgress(number, transfer);
  stages_->SendOrdered(message);
  return absl::OkStatus();
}

// A session with room for these tokens. Session 0: there will be room, later.
absl::StatusOr<Pipeline::Shadow> Engine::PlaceForRestore(const RestoreWish& wish, const std::vector<int32_t>& tokens) {
  const auto turn = turns_.find(wish.turn);
  if (turn != turns_.end()) turn->second->reserves_place = false;  // it is taken here
  absl::StatusOr<Pipeline::Shadow> shadow = ResourceExhausted("every place is taken");
  // The conversation's own live session would be replaced, but only once the image is known good.
  const SessionId keep = wish.conversation->trunk().session;
  do {
    if (FreePlaces() > 0) shadow = pipeline_->OpenShadow(tokens);
  } while (!shadow.ok() && ((FreePlaces() > 0 && DropLeastCheckpoint()) || EvictIdle(keep, false)));
  if (shadow.ok()) return shadow;
  if (turn != turns_.end()) turn->second->reserves_place = true;
  if (evictions_in_flight_ > 0) return Pipeline::Shadow();
  return Aborted("no room to restore beside what is live: {}", ToStd(shadow.status().message()));
}

absl::Status Engine::BeginUnpark(const ConversationPtr& conversation, Branch& branch, int64_t n, RestoredCallback done) {
  if (branch.parked == 0 || static_cast<int64_t>(branch.parked_path.size()) < n) return NotFound("the image was dropped meanwhile");
  std::vector<int32_t> tokens(branch.parked_path.begin(), branch.parked_path.begin() + n);
  const Digest prefix = DigestOfTokens(tokens);
  absl::StatusOr<Pipeline::Shadow> shadow = pipeline_->OpenShadow(tokens);
  while (!shadow.ok() && (DropLeastCheckpoint() || EvictIdle(0, true))) shadow = pipeline_->OpenShadow(tokens);
  RETURN_IF_ERROR(shadow.status());
  const uint64_t number = next_transfer_++;
  Transfer& transfer = transfers_[number];
  transfer.kind = TransferKind::kUnpark;
  transfer.conversation = conversation;
  transfer.branch = &branch;
  for (int stage = 0; stage < stages_->n_stages(); ++stage) transfer.done_so_far.stages.push_back({.stage = stage});
  transfer.n_tokens = n;
  transfer.prefix = prefix;
  transfer.session = shadow->session;
  transfer.restored.resize(static_cast<size_t>(stages_->n_stages()));
  transfer.restore_done = std::move(done);
  stages_->SendOrdered(wire::UnparkSession{.restore = number, .park = branch.parked, .session = shadow->session, .n_tokens = n,
                                           .pages = std::move(shadow->pages), .state = std::move(shadow->state)});
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
  if (transfer.receipts == stages_->n_stages()) OnRestored(receipt.restore);
}

void Engine::OnRestored(uint64_t number) {
  Transfer& transfer = transfers_.at(number);
  // What was read beyond the position, to the end of its records, is forgotten again.
  if (transfer.status.ok()) pipeline_->SettleShadow(transfer.session);
  if (!transfer.status.ok() || !transfer.proof.has_value()) {
    EndRestore(number);
    return;
  }
  Probe(transfer.session, [this, number](const Digest& row) {
    const auto found = transfers_.find(number);
    if (found == transfers_.end()) return;
    Transfer& proved = found->second;
    proved.proves_exact = row == *proved.proof;
    if (!proved.proves_exact && proved.numerics == stages_->numerics()) {
      proved.status = WithPart(DataLoss("manifest.json: proof: the row after the restored state is {}, the save's was {}", row.Hex(),
                                        proved.proof->Hex()),
                               {.file = std::string(kManifestName), .field = "proof"});
    }
    EndRestore(number);
  });
}

void Engine::EndRestore(uint64_t number) {
  const Transfer transfer = std::move(transfers_.at(number));
  transfers_.erase(number);
  Conversation& conversation = *transfer.conversation;
  const bool from_disk = transfer.kind == TransferKind::kRestore;
  parts_.metrics->TransferEnded(number);
  if (from_disk) --conversation.restoring;
  const int64_t ms = MsSince(transfer.started);
  if (!transfer.status.ok()) {
    pipeline_->Close(transfer.session);
    absl::Status status = transfer.status;
    // A file that the manifest names and that is not there is damage of the image, not an unknown id.
    if (absl::IsNotFound(status)) {
      const auto part = PartOf(status);
      status = DataLoss("{}", ToStd(status.message()));
      if (part.has_value()) status = WithPart(std::move(status), *part);
    }
    if (from_disk) {
      conversation.last_error = std::string(status.message());
      conversation.refused = conversation.refused || IsRefusal(status);
      parts_.metrics->RestoreDone(IsRefusal(status) ? TransferResult::kRefused : TransferResult::kFailed, static_cast<double>(ms) / 1000);
    }
    LogWarning("conversation {}: restore refused: {}", conversation.folder, ToStd(status.message()));
    transfer.restore_done(status, 0);
  } else {
    RestoreResult result{.id = conversation.id, .generation = transfer.generation,
                         .n_tokens = static_cast<int64_t>(pipeline_->tokens(transfer.session).size()), .ms = ms,
                         .warnings = transfer.warnings};
    if (transfer.proof.has_value()) result.proof = transfer.proves_exact ? "bit-exact" : "state exact, arithmetic differs";
    const std::vector<StageStatus> stages = stages_->Status();
    for (const wire::RestoreReceipt& receipt : transfer.restored) {
      const LayerRange layers = stages[static_cast<size_t>(receipt.stage)].layers;
      result.bytes_read += receipt.bytes_read;
      result.stages.push_back({.stage = receipt.stage, .layer_begin = layers.begin, .layer_end = layers.end,
                               .bytes_read = receipt.bytes_read, .ms = receipt.ms});
    }
    if (from_disk) {
      conversation.last_error.clear();
      parts_.metrics->RestoreDone(TransferResult::kOk, static_cast<double>(ms) / 1000);
    }
    LogInfo("conversation {}: {} tokens are back from {}, {} bytes read, {} ms", conversation.folder, result.n_tokens,
            from_disk ? "the store" : "memory", result.bytes_read, ms);
    if (transfer.progress) transfer.progress(transfer.done_so_far);
    transfer.restore_done(std::move(result), transfer.session);
  }
  AdmitQueued();
  ContinueShutdown();
}

void Engine::FailTransfers(const absl::Status& why) {
  std::map<uint64_t, Transfer> failed;
  for (auto next = transfers_.begin(); next != transfers_.end();) {
    const auto transfer = next++;
    // A manifest on its way to the disk goes on without the stages.
    if (!transfer->second.committing) failed.insert(transfers_.extract(transfer));
  }
  probes_.clear();
  for (auto& [number, transfer] : failed) {
    const absl::Status status = Unavailable("interrupted: {}", ToStd(why.message()));
    parts_.metrics->TransferEnded(number);
    switch (transfer.kind) {
      case TransferKind::kRestore:
        --transfer.conversation->restoring;
        parts_.metrics->RestoreDone(TransferResult::kFailed, 0);
        transfer.restore_done(status, 0);
        break;
      case TransferKind::kUnpark: transfer.restore_done(status, 0); break;
      case TransferKind::kPark:
        transfer.branch->moving = false;
        --evictions_in_flight_;
        if (transfer.park_done) transfer.park_done(status);
        break;
      case TransferKind::kSave:
        transfer.conversation->saving = false;
        for (size_t i = 0; i < transfer.paths.size(); ++i) stray_paths_.emplace_back(static_cast<int>(i), transfer.paths[i]);
        if (!transfer.compaction) parts_.metrics->SaveDone(TransferResult::kFailed, 0);
        transfer.save_done(status);
        break;
    }
  }
}

}  // namespace layover
