// Who leaves the memory when room is short: sessions go to host RAM while its budget lasts, then to the store, and only
// with `save: manual` (or for requests without an id) to the journal alone. Least recently used first; requests without
// an id before named conversations, side branches before trunks.
#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {
namespace {

std::vector<int32_t> PositionsBelow(const std::vector<PinnedCheckpoint>& checkpoints, int64_t length) {
  std::vector<int32_t> positions = PositionsOf(checkpoints);
  std::erase_if(positions, [length](int32_t position) { return position >= length; });
  return positions;
}

}  // namespace

int Engine::FreePlaces() const {
  int reserved = 0;
  for (const auto& [id, turn] : turns_) reserved += turn->reserves_place ? 1 : 0;
  return pipeline_->ledger().FreeSessions() - reserved;
}

bool Engine::InUse(const Branch& branch) const {
  if (branch.running != nullptr || branch.moving) return true;
  const bool wanted = std::any_of(turns_.begin(), turns_.end(), [&](const auto& entry) {
    const Turn& turn = *entry.second;
    // What a queued one had in mind is decided anew when there is a place for it.
    const bool waits = turn.phase == TurnPhase::kJournalling || turn.phase == TurnPhase::kRestoring;
    return turn.branch == &branch || (turn.source_branch == &branch && waits);
  });
  return wanted || std::any_of(transfers_.begin(), transfers_.end(),
                               [&](const auto& entry) { return entry.second.branch == &branch; });
}

bool Engine::IsUnsaved(const Branch& branch) const {
  const std::vector<int32_t>* held = branch.session != 0 ? &pipeline_->tokens(branch.session)
                                     : branch.parked != 0 ? &branch.parked_path
                                                          : nullptr;
  if (held == nullptr || held->empty()) return false;
  return CommonPrefix(*held, branch.saved.path) < static_cast<int64_t>(held->size());
}

bool Engine::SavesOnEviction(const Conversation& conversation) const {
  return store_ != nullptr && store_->save != SavePolicy::kManual && !conversation.anonymous();
}

Engine::Held Engine::OldestIdle(SessionId keep) const {
  Held oldest;
  std::tuple<bool, bool, int64_t> least;
  ForEachBranch([&](const ConversationPtr& conversation, Branch& branch) {
    if (branch.session == 0 || branch.session == keep || conversation->saving || InUse(branch)) return;
    const bool trunk = &branch == &conversation->trunk();
    const std::tuple rank{!conversation->anonymous(), trunk, branch.last_used_ms};
    if (oldest.branch != nullptr && rank >= least) return;
    least = rank;
    oldest = {conversation, &branch};
  });
  return oldest;
}

Engine::Held Engine::OldestParked() const {
  Held oldest;
  std::pair<bool, int64_t> least;
  ForEachBranch([&](const ConversationPtr& conversation, Branch& branch) {
    if (branch.parked == 0 || conversation->saving || InUse(branch)) return;
    const std::pair rank{!conversation->anonymous(), branch.last_used_ms};
    if (oldest.branch != nullptr && rank >= least) return;
    least = rank;
    oldest = {conversation, &branch};
  });
  return oldest;
}

// Saves what is to leave, and lets it leave if that worked or nothing can be done about it. False: the save cannot even begin.
bool Engine::SaveThen(const Held& held, std::function<void()> then) {
  if (held.conversation->Busy()) return false;
  ++evictions_in_flight_;
  held.branch->moving = true;
  BeginSave(held.conversation, nullptr, [this, held, then = std::move(then)](const absl::StatusOr<SaveResult>& result) {
    // Not from here: the save is still being taken apart around this call.
    inbox_.Put([this, held, then, failed = result.status()] {
      --evictions_in_flight_;
      held.branch->moving = false;
      if (!failed.ok()) LogWarning("conversation {} leaves unsaved: {}", held.conversation->folder, ToStd(failed.message()));
      // The stages may have gone, or a request come, in between.
      if (stages_->up() && !InUse(*held.branch)) then();
      AdmitQueued();
      ContinueShutdown();
    });
  });
  return true;
}

bool Engine::EvictIdle(SessionId keep, bool at_once) {
  if (!at_once && evictions_in_flight_ > 0) return false;
  const Held held = OldestIdle(keep);
  return held.branch != nullptr && Evict(held, at_once);
}

bool Engine::Evict(const Held& held, bool at_once) {
  Branch& branch = *held.branch;
  if (!at_once) {
    const int before = evictions_in_flight_;
    const bool may_park = branch.not_parked != branch.session;
    if (may_park && MakeRoomToPark(ParkBytes(branch))) {
      if (BeginPark(held.conversation, branch, nullptr).ok()) return false;
    } else if (evictions_in_flight_ > before) {
      return false;  // room to park will be there
    }
    const bool unsaved = IsUnsaved(branch) && SavesOnEviction(*held.conversation);
    if (unsaved && SaveThen(held, [this, held] { CloseBranch(*held.conversation, *held.branch); })) return false;
  }
  CloseBranch(*held.conversation, branch);
  return true;
}

void Engine::CloseBranch(Conversation& conversation, Branch& branch) {
  if (branch.session == 0) return;
  DropCheckpointsFrom(conversation, branch, 0);
  parts_.metrics->Evicted(StateTier::kDevice);
  pipeline_->Close(branch.session);
  for (Slot& slot : slots_held_) {
    if (slot.session == branch.session) slot.session = 0;
  }
  branch.session = 0;
}

void Engine::DropParked(Branch& branch) {
  if (branch.parked == 0) return;
  if (stages_->up()) stages_->SendOrdered(wire::DropPark{branch.parked});
  parked_bytes_ -= branch.parked_bytes;
  branch.parked = 0;
  branch.parked_bytes = 0;
  branch.parked_path.clear();
  branch.parked_checkpoints.clear();
  branch.parked_proof.reset();
}

// Never one that `plan` reuses.
void Engine::DropOldestSideBranch(Conversation& conversation, const ReusePlan& plan) {
  size_t oldest = 0;
  for (size_t i = 1; i < conversation.branches.size(); ++i) {
    const Branch* const branch = conversation.branches[i].get();
    if (InUse(*branch) || branch == plan.branch || branch == plan.from) continue;
    if (oldest == 0 || conversation.branches[i]->last_used_ms < conversation.branches[oldest]->last_used_ms) oldest = i;
  }
  if (oldest == 0) return;  // all are at work: one more than the limit, for a while
  Branch& branch = *conversation.branches[oldest];
  CloseBranch(conversation, branch);
  DropParked(branch);
  conversation.branches.erase(conversation.branches.begin() + static_cast<std::ptrdiff_t>(oldest));
}

bool Engine::HoldsState(const Conversation& conversation) const {
  return std::any_of(conversation.branches.begin(), conversation.branches.end(),
                     [](const auto& branch) { return branch->session != 0 || branch->parked != 0; });
}

void Engine::ForgetAnonymous() {
  anonymous_.remove_if([this](const ConversationPtr& conversation) {
    if (conversation->Active() || HoldsState(*conversation)) return false;
    return std::none_of(conversation->branches.begin(), conversation->branches.end(),
                        [this](const auto& branch) { return InUse(*branch); });
  });
}

// ------------------------------------------------------------------------------------------------------------- park

int64_t Engine::ParkBytes(const Branch& branch) const {
  const auto tokens = static_cast<int64_t>(pipeline_->tokens(branch.session).size());
  const auto states = static_cast<int64_t>(branch.checkpoints.size()) + 1;
  const auto ids = tokens * static_cast<int64_t>(sizeof(int32_t)) * stages_->n_stages();
  return states * StateBytes() + tokens * RowBytes(AllLayers()) + ids;
}

bool Engine::MakeRoomToPark(int64_t bytes) {
  const auto budget = static_cast<int64_t>(parts_.topology->park.ram_budget_bytes);
  if (bytes > budget) return false;
  while (parked_bytes_ + bytes > budget) {
    const Held oldest = OldestParked();
    if (oldest.branch == nullptr) return false;
    const bool unsaved = IsUnsaved(*oldest.branch) && SavesOnEviction(*oldest.conversation);
    if (unsaved && SaveThen(oldest, [this, oldest] { DropParked(*oldest.branch); })) return false;
    parts_.metrics->Evicted(StateTier::kHost);
    DropParked(*oldest.branch);
  }
  return true;
}

absl::Status Engine::BeginPark(const ConversationPtr& conversation, Branch& branch, Callback<ParkResult> done) {
  if (pipeline_->tokens(branch.session).empty()) return NoState(*conversation, "live state to park");
  const uint64_t number = next_transfer_++;
  Transfer& transfer = transfers_[number];
  transfer.kind = TransferKind::kPark;
  transfer.conversation = conversation;
  transfer.branch = &branch;
  transfer.session = branch.session;
  transfer.parked_tokens = pipeline_->tokens(branch.session);
  transfer.parked_checkpoints = PositionsBelow(branch.checkpoints, static_cast<int64_t>(transfer.parked_tokens.size()));
  transfer.pins.push_back(pipeline_->ledger().Pin(branch.session));
  transfer.park_done = std::move(done);
  branch.moving = true;
  ++evictions_in_flight_;
  std::vector<wire::StateAt> states = StatesAt(branch.checkpoints);
  states.resize(transfer.parked_checkpoints.size());
  stages_->SendOrdered(wire::ParkSession{.park = number, .session = branch.session, .checkpoints = std::move(states)});
  if (store_ != nullptr && !conversation->anonymous()) {
    // A save of the image could not run its proof any more.
    transfer.awaits_probe = true;
    Probe(branch.session, [this, number](const Digest& row) {
      const auto found = transfers_.find(number);
      if (found == transfers_.end()) return;
      found->second.proof = row;
      found->second.awaits_probe = false;
      if (found->second.receipts == stages_->n_stages()) EndPark(number);
    });
  }
  return absl::OkStatus();
}

void Engine::OnParkReceipt(const wire::ParkReceipt& receipt) {
  const auto found = transfers_.find(receipt.park);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  ++transfer.receipts;
  transfer.bytes += receipt.bytes;
  if (transfer.status.ok()) transfer.status = wire::FromWire(receipt.status, receipt.stage);
  if (transfer.receipts == stages_->n_stages() && !transfer.awaits_probe) EndPark(receipt.park);
}

void Engine::EndPark(uint64_t number) {
  Transfer transfer = std::move(transfers_.at(number));
  transfers_.erase(number);
  Branch& branch = *transfer.branch;
  branch.moving = false;
  --evictions_in_flight_;
  for (PageLedger::PinId pin : transfer.pins) pipeline_->ledger().Unpin(pin);
  // A request that came meanwhile goes on with the session, or has, and the image is of no use.
  const bool wanted =
      InUse(branch) || branch.session != transfer.session || pipeline_->tokens(branch.session) != transfer.parked_tokens;
  if (!transfer.status.ok() || wanted) {
    stages_->SendOrdered(wire::DropPark{number});
    if (transfer.status.ok()) {
      transfer.status = Aborted("conversation {} is in use", transfer.conversation->id);
    } else {
      // Whoever needs its place saves it or lets it go; the next failure would be the same.
      branch.not_parked = transfer.session;
      LogWarning("conversation {}: not parked: {}", transfer.conversation->folder, ToStd(transfer.status.message()));
    }
  } else {
    DropParked(branch);
    branch.parked = number;
    branch.parked_bytes = transfer.bytes;
    branch.parked_path = std::move(transfer.parked_tokens);
    branch.parked_checkpoints = std::move(transfer.parked_checkpoints);
    branch.parked_proof = transfer.proof;
    parked_bytes_ += transfer.bytes;
    CloseBranch(*transfer.conversation, branch);
  }
  if (transfer.park_done) {
    if (transfer.status.ok()) {
      transfer.park_done(ParkResult{transfer.conversation->id, branch.parked_bytes});
    } else {
      transfer.park_done(transfer.status);
    }
  }
  AdmitQueued();
  ContinueShutdown();
}

void Engine::Park(std::string owner, std::string id, Callback<ParkResult> done) {
  inbox_.Put([this, owner, id, done = std::move(done)] {
    const ConversationPtr conversation = Find(owner, id);
    if (conversation == nullptr) {
      done(NotFound("there is no conversation {}", id));
      return;
    }
    if (const absl::Status rest = CheckAtRest(*conversation); !rest.ok()) {
      done(rest);
      return;
    }
    Branch& trunk = conversation->trunk();
    if (trunk.session == 0) {
      if (trunk.parked != 0) {
        done(ParkResult{id, trunk.parked_bytes});
      } else {
        done(NoState(*conversation, "live state to park"));
      }
      return;
    }
    const int64_t bytes = ParkBytes(trunk);
    if (bytes > static_cast<int64_t>(parts_.topology->park.ram_budget_bytes)) {
      done(ResourceExhausted("the image takes {} bytes, park.ram_budget is {}", bytes, parts_.topology->park.ram_budget_bytes));
      return;
    }
    if (!MakeRoomToPark(bytes)) {
      // Another image is being saved to make room: this one is looked at again behind it.
      if (evictions_in_flight_ > 0) {
        waiting_for_place_.push_back([this, owner, id, done] { Park(owner, id, done); });
      } else {
        done(ResourceExhausted("the other parked conversations are in use"));
      }
      return;
    }
    if (const absl::Status begun = BeginPark(conversation, trunk, done); !begun.ok()) done(begun);
  });
}

}  // namespace layover
