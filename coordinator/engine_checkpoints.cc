// Where a session of a model with recurrent or sliding-window layers can go back to. Such state cannot be cut: it is kept
// at the places that people come back to, and nowhere else. A checkpoint is a pin of the ledger; all stages hold the
// same positions, because a stop is the end of a step on all of them.
//
// Kept: before the generation prompt (what a client's re-rendered history still shares), one before the end of every
// prompt (the same prompt again costs one token), the end of the turn before, and a sparse grid in long prompts.
#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/limits.h"
#include "coordinator/engine.h"

namespace layover {

std::vector<int64_t> Engine::StopsOf(const Turn& turn) const {
  if (cut_ == CutAt::kAnywhere) return {};
  const auto fed = static_cast<int64_t>(pipeline_->tokens(turn.session).size());
  const auto prompt = static_cast<int64_t>(turn.request.prompt.size());
  std::set<int64_t> stops = {prompt - 1, std::min(turn.request.history_n, prompt)};
  constexpr int64_t kGrid = limits::kCheckpointGridTokens;
  for (int64_t position = (fed / kGrid + 1) * kGrid; position < prompt; position += kGrid) stops.insert(position);
  std::erase_if(stops, [&](int64_t position) { return position <= fed || position >= prompt; });
  return {stops.begin(), stops.end()};
}

void Engine::OnCheckpoint(SessionId session, int64_t position, PageLedger::PinId pin) {
  Turn* turn = TurnOf(session);
  if (turn == nullptr) {
    pipeline_->ledger().Unpin(pin);
    return;
  }
  KeepCheckpoint(*turn->conversation, *turn->branch, {position, pin});
}

void Engine::KeepCheckpoint(Conversation& conversation, Branch& branch, const PinnedCheckpoint& checkpoint) {
  std::vector<PinnedCheckpoint>& kept = branch.checkpoints;
  const auto place = std::lower_bound(kept.begin(), kept.end(), checkpoint.position,
                                      [](const PinnedCheckpoint& other, int64_t position) { return other.position < position; });
  if (place != kept.end() && place->position == checkpoint.position) {
    pipeline_->ledger().Unpin(checkpoint.pin);
    return;
  }
  kept.insert(place, checkpoint);
  while (static_cast<int>(kept.size()) > limits::kMostCheckpoints) {
    // Thinned evenly: the one whose neighbours are closest goes, never the newest three.
    size_t least = 0;
    for (size_t i = 1; i + 3 < kept.size(); ++i) {
      const auto gap = [&](size_t at) { return kept[at + 1].position - (at == 0 ? 0 : kept[at - 1].position); };
      if (gap(i) < gap(least)) least = i;
    }
    DropCheckpoint(conversation, branch, least);
  }
  // A step that runs must find a slot for what it writes.
  const bool has_slots = pipeline_->ledger().config().state_slots > 0;
  while (has_slots && pipeline_->ledger().FreeSlots() == 0 && DropLeastCheckpoint()) {
  }
}

void Engine::DropCheckpoint(Conversation& conversation, Branch& branch, size_t index) {
  const PageLedger::PinId pin = branch.checkpoints[index].pin;
  branch.checkpoints.erase(branch.checkpoints.begin() + static_cast<std::ptrdiff_t>(index));
  // A save or park in flight may be reading it: it goes with that one's pins.
  for (auto& [number, transfer] : transfers_) {
    const bool reads = transfer.kind == TransferKind::kSave || transfer.kind == TransferKind::kPark;
    if (!reads || transfer.conversation.get() != &conversation || transfer.pins.empty()) continue;
    transfer.pins.push_back(pin);
    return;
  }
  pipeline_->ledger().Unpin(pin);
}

void Engine::DropCheckpointsFrom(Conversation& conversation, Branch& branch, int64_t position) {
  while (!branch.checkpoints.empty() && branch.checkpoints.back().position >= position) {
    DropCheckpoint(conversation, branch, branch.checkpoints.size() - 1);
  }
}

bool Engine::DropLeastCheckpoint() {
  Held oldest;
  ForEachBranch([&oldest](const ConversationPtr& conversation, Branch& branch) {
    if (branch.session == 0 || branch.checkpoints.empty()) return;
    if (oldest.branch == nullptr || branch.last_used_ms < oldest.branch->last_used_ms) oldest = {conversation, &branch};
  });
  if (oldest.branch == nullptr) return false;
  DropCheckpoint(*oldest.conversation, *oldest.branch, 0);
  return true;
}

std::vector<wire::StateAt> Engine::StatesAt(const std::vector<PinnedCheckpoint>& checkpoints) const {
  std::vector<wire::StateAt> states;
  for (const PinnedCheckpoint& checkpoint : checkpoints) states.push_back(pipeline_->ledger().PinnedState(checkpoint.pin));
  return states;
}

absl::StatusOr<SessionId> Engine::ForkBranch(const Branch& branch, int64_t length) {
  if (cut_ == CutAt::kAnywhere || length == static_cast<int64_t>(pipeline_->tokens(branch.session).size())) {
    return pipeline_->Fork(branch.session, length);
  }
  for (const PinnedCheckpoint& checkpoint : branch.checkpoints) {
    if (checkpoint.position == length) return pipeline_->ForkCheckpoint(branch.session, checkpoint.pin);
  }
  return absl::InternalError("there is no checkpoint to fork from");
}

// Back to `length`, which must be a place it can go back to.
void Engine::CutBranch(Conversation& conversation, Branch& branch, int64_t length) {
  if (length == static_cast<int64_t>(pipeline_->tokens(branch.session).size())) return;
  DropCheckpointsFrom(conversation, branch, length + 1);
  const bool at_checkpoint = !branch.checkpoints.empty() && branch.checkpoints.back().position == length;
  if (cut_ == CutAt::kCheckpoints && length > 0) {
    LAYOVER_CHECK(at_checkpoint);
    pipeline_->RewindToCheckpoint(branch.session, branch.checkpoints.back().pin);
  } else {
    LAYOVER_CHECK(pipeline_->Truncate(branch.session, length).ok());
  }
}

int64_t Engine::StateBytes() const {
  uint64_t bytes = 0;
  for (int layer = 0; layer < parts_.shape->n_layers; ++layer) {
    if (parts_.shape->layers[static_cast<size_t>(layer)].kind == LayerKind::kRecurrent) bytes += RecurrentStateBytes(*parts_.shape);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace layover
