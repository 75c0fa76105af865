// Slots, llama-server's view of what is live: place i holds one branch's session from when it is given one until it
// goes. Saving a slot makes or extends a conversation; restoring one makes an anonymous session of it.
#include <algorithm>

#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {

Engine::Slot* Engine::HoldSlot(SessionId session, int wish) {
  const auto with = [this](SessionId held) {
    return std::find_if(slots_held_.begin(), slots_held_.end(), [held](const Slot& slot) { return slot.session == held; });
  };
  if (const auto own = with(session); own != slots_held_.end()) return &*own;
  auto place = with(0);
  if (wish >= 0 && wish < static_cast<int>(slots_held_.size()) && slots_held_[static_cast<size_t>(wish)].session == 0) {
    place = slots_held_.begin() + wish;
  }
  if (place == slots_held_.end()) return nullptr;
  place->session = session;
  return &*place;
}

std::vector<SlotInfo> Engine::DescribeSlots() const {
  std::vector<SlotInfo> infos;
  for (const Slot& slot : slots_held_) {
    SlotInfo info{.id = static_cast<int>(infos.size()), .task = slot.task};
    if (slot.session != 0) info.n_tokens = static_cast<int64_t>(pipeline_->tokens(slot.session).size());
    const auto turn = turn_of_session_.find(slot.session);
    if (slot.session != 0 && turn != turn_of_session_.end()) {
      const Turn& running = *turns_.at(turn->second);
      info.is_processing = true;
      info.n_decoded = static_cast<int64_t>(running.output.size());
      if (running.request.max_tokens >= 0) info.n_remain = running.request.max_tokens - running.timings.predicted_n;
    }
    infos.push_back(info);
  }
  return infos;
}

// What the owner holds in a slot; no branch: nothing.
Engine::Held Engine::InSlot(const std::string& owner, int slot) const {
  const SessionId session = slots_held_[static_cast<size_t>(slot)].session;
  Held held;
  if (session == 0) return held;
  ForEachBranch([&](const ConversationPtr& conversation, Branch& branch) {
    if (branch.session == session && conversation->owner == owner) held = {conversation, &branch};
  });
  return held;
}

void Engine::SaveSlot(std::string owner, int slot, std::string id, Callback<SaveResult> done) {
  inbox_.Put([this, owner, slot, id, done = std::move(done)] {
    if (const absl::Status ready = CheckStoreReady(); !ready.ok()) {
      done(ready);
      return;
    }
    const Held held = InSlot(owner, slot);
    if (held.branch == nullptr || pipeline_->tokens(held.branch->session).empty()) {
      done(InvalidArgument("slot {} is empty", slot));
      return;
    }
    if (!held.conversation->anonymous() && held.conversation->id == id) {
      BeginSave(held.conversation, nullptr, done);
      return;
    }
    const bool fresh = Find(owner, id) == nullptr;
    if (fresh) Enlist(NewConversation(owner, id));
    WithLoaded(owner, id, done, [this, fresh, session = held.branch->session, done](const ConversationPtr& target) {
      if (const absl::Status rest = CheckAtRest(*target); !rest.ok()) {
        done(rest);
      } else if (!pipeline_->Has(session)) {
        done(Aborted("the slot's session went meanwhile"));
      } else {
        SaveAs(target, session, fresh, done);
      }
    });
  });
}

// The session's tokens become a line of `target`, as a prompt with them would, and are saved from the session.
void Engine::SaveAs(const ConversationPtr& target, SessionId session, bool fresh, const Callback<SaveResult>& done) {
  const std::vector<int32_t> tokens = pipeline_->tokens(session);
  const ReusePlan plan = PlanReuse(*target, tokens, cut_, false, [this](const Branch& branch) -> std::span<const int32_t> {
    return pipeline_->tokens(branch.session);
  });
  Branch* const branch = TakeBranch(*target, plan);
  if (branch->session != 0) CloseBranch(*target, *branch);
  DropParked(*branch);
  const int64_t parent = plan.branch == nullptr ? kNoTurn : plan.branch->turn;
  const int64_t fork = parent == kNoTurn ? 0 : plan.common;
  branch->path = tokens;
  branch->fed = static_cast<int64_t>(tokens.size());
  branch->last_used_ms = SteadyMs();
  branch->lent = session;
  branch->moving = true;  // until it is saved
  MakeTrunk(*target, branch);
  target->journalled_n = branch->fed;
  target->last_used_at = UnixSeconds();
  target->switching = true;
  if (target->files == nullptr) target->files = std::make_shared<ConversationFiles>();
  const Journal::NewJournal first{.owner = target->owner, .id = target->id, .time_ms = UnixMs()};
  store_thread_->Do(
      [files = target->files, first, tokens, parent, fork, store = store_->dir] {
        const PromptFrame prompt{.parent = parent, .fork_position = static_cast<int32_t>(fork), .time_ms = first.time_ms,
                                 .ids = std::span(tokens).subspan(static_cast<size_t>(fork))};
        return files->AppendHeld(store, first, prompt, static_cast<int32_t>(tokens.size()));
      },
      [this, target, branch, session, fresh, done](ConversationFiles::Written written) {
        target->switching = false;
        const auto forget = [this, target, fresh](Branch& line) {
          line.lent = 0;
          line.moving = false;
          if (fresh && target->manifest == nullptr && !target->Active()) Delete(target->owner, target->id, [](absl::Status) {});
        };
        if (!written.status.ok()) {
          forget(*branch);
          done(written.status);
          AdmitQueued();
          ContinueShutdown();
          return;
        }
        branch->turn = written.turn;
        if (branch->lent == session && !pipeline_->Has(session)) branch->lent = 0;
        BeginSave(target, nullptr, [branch, forget, done](absl::StatusOr<SaveResult> result) {
          forget(*branch);
          done(std::move(result));
        });
        AdmitQueued();
        ContinueShutdown();
      });
}

void Engine::RestoreSlot(std::string owner, int slot, std::string id, Callback<RestoreResult> done) {
  inbox_.Put([this, owner, slot, id, done = std::move(done)] {
    if (const absl::Status ready = CheckStoreReady(); !ready.ok()) {
      done(ready);
      return;
    }
    if (const Held held = InSlot(owner, slot); held.branch != nullptr && InUse(*held.branch)) {
      done(Aborted("a request runs in slot {}", slot));
      return;
    }
    WithLoaded(owner, id, done, [this, owner, slot, done](const ConversationPtr& conversation) {
      if (!conversation->HasImage()) {
        done(NotFound("nothing is saved as {}", conversation->id));
        return;
      }
      BeginRestore({.conversation = conversation, .prove = store_->prove}, nullptr,
                   [this, owner, slot, done](absl::StatusOr<RestoreResult> result, SessionId session) {
                     if (result.ok()) PutInSlot(owner, slot, session);
                     done(std::move(result));
                   });
    });
  });
}

void Engine::PutInSlot(const std::string& owner, int slot, SessionId session) {
  const Held before = InSlot(owner, slot);
  auto conversation = std::make_shared<Conversation>();
  conversation->owner = owner;
  conversation->loaded = true;
  conversation->branches.push_back(std::make_unique<Branch>());
  Branch& line = conversation->trunk();
  line.path = pipeline_->tokens(session);
  line.fed = static_cast<int64_t>(line.path.size());
  line.session = session;
  line.last_used_ms = SteadyMs();
  anonymous_.push_front(conversation);
  slots_held_[static_cast<size_t>(slot)].session = session;
  if (before.branch == nullptr) return;
  if (!InUse(*before.branch)) Evict(before, false);
  if (before.branch->session != 0) HoldSlot(before.branch->session);
}

void Engine::EraseSlot(std::string owner, int slot, Callback<int64_t> done) {
  inbox_.Put([this, owner, slot, done = std::move(done)] {
    const Held held = stages_->up() ? InSlot(owner, slot) : Held();
    if (held.branch == nullptr) {
      done(int64_t{0});
      return;
    }
    if (InUse(*held.branch) || held.conversation->saving) {
      done(Aborted("slot {} is in use", slot));
      return;
    }
    const auto n = static_cast<int64_t>(pipeline_->tokens(held.branch->session).size());
    CloseBranch(*held.conversation, *held.branch);
    done(n);
    AdmitQueued();
  });
}

}  // namespace layover
