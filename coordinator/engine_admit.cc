// How a request gets its place: queue, conversation, the deepest source, a session; and who leaves when none is free.
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

// Ids around a divergence that `show` and the log give.
constexpr int64_t kDivergenceContext = 10;
// A head shared with another conversation is worth a fork from so many tokens on.
constexpr int64_t kLeastSharedHead = 16;

}  // namespace

GenerationId Engine::Generate(GenerationRequest request, std::shared_ptr<GenerationObserver> observer) {
  auto turn = std::make_unique<Turn>();
  const GenerationId id = next_generation_id_++;
  turn->id = id;
  turn->request = std::move(request);
  turn->observer = std::move(observer);
  inbox_.Put([this, shared = std::make_shared<std::unique_ptr<Turn>>(std::move(turn))] { Enqueue(std::move(*shared)); });
  return id;
}

void Engine::Enqueue(std::unique_ptr<Turn> turn) {
  absl::Status refused;
  if (draining_) refused = Unavailable("the server is shutting down");
  if (stages_ == nullptr) refused = Unavailable("the stages are not up");
  if (static_cast<int>(queue_.size()) >= limits::kMaxQueuedRequests) refused = Unavailable("{} requests are waiting already", queue_.size());
  if (turn->request.prompt.empty() || static_cast<int64_t>(turn->request.prompt.size()) >= parts_.plan->context) {
    refused = InvalidArgument("a prompt of {} tokens in a context of {}", turn->request.prompt.size(), parts_.plan->context);
  }
  if (!refused.ok()) {
    if (turn->observer != nullptr) turn->observer->OnFailed(refused);
    return;
  }
  parts_.metrics->RequestStarted();
  queue_.push_back(turn->id);
  turns_[turn->id] = std::move(turn);
  AdmitQueued();
}

void Engine::CancelGeneration(GenerationId id) {
  inbox_.Put([this, id] {
    const auto found = turns_.find(id);
    if (found == turns_.end()) return;
    Turn& turn = *found->second;
    if (turn.phase == TurnPhase::kEnding || turn.cancelled) return;
    turn.cancelled = true;
    turn.observer.reset();
    parts_.metrics->RequestCancelled(turn.phase != TurnPhase::kRunning ? RequestPhase::kQueued
                                     : turn.output.empty()            ? RequestPhase::kPrefill
                                                                      : RequestPhase::kDecode);
    StopTurn(turn, Cancelled("the client went away"));
  });
}

void Engine::AdmitQueued() {
  const std::vector<GenerationId> waiting(queue_.begin(), queue_.end());
  for (GenerationId id : waiting) {
    const auto found = turns_.find(id);
    if (found == turns_.end() || found->second->phase != TurnPhase::kQueued) continue;
    if (TryAdmit(*found->second)) queue_.remove(id);
  }
}

Engine::ConversationPtr Engine::ConversationFor(const GenerationRequest& request) {
  if (request.cache_prompt && !request.conversation_id.empty()) {
    ConversationPtr& conversation = conversations_[{request.owner, request.conversation_id}];
    if (conversation == nullptr) {
      conversation = std::make_shared<Conversation>();
      conversation->owner = request.owner;
      conversation->id = request.conversation_id;
      conversation->folder = ConversationFolder(request.owner, request.conversation_id);
      conversation->branches.push_back(std::make_unique<Branch>());
      conversation->loaded = true;  // there is nothing on disk
      conversation->created_at = UnixMs() / 1000;
      conversation->last_used_at = conversation->created_at;
    }
    return conversation;
  }
  // Without an id: the idle one that is continued, else a new one (which may still share another's head).
  if (request.cache_prompt) {
    ConversationPtr best;
    int64_t best_common = 0;
    for (const ConversationPtr& candidate : anonymous_) {
      const Branch& branch = candidate->trunk();
      if (candidate->owner != request.owner || candidate->Active()) continue;
      const int64_t common = CommonPrefix(branch.path, request.prompt);
      if (common * 2 >= static_cast<int64_t>(branch.path.size()) && common > best_common) {
        best = candidate;
        best_common = common;
      }
    }
    if (best != nullptr) {
      anonymous_.remove(best);
      anonymous_.push_front(best);
      return best;
    }
  }
  auto conversation = std::make_shared<Conversation>();
  conversation->owner = request.owner;
  conversation->branches.push_back(std::make_unique<Branch>());
  conversation->loaded = true;
  anonymous_.push_front(conversation);
  return conversation;
}

void Engine::LoadConversationFiles(const ConversationPtr& conversation) {
  if (conversation->loading) return;
  conversation->loading = true;
  struct Loaded {
    std::shared_ptr<ConversationImage> image;
    std::shared_ptr<ConversationFiles> files;
    absl::Status status;
  };
  const std::string store = store_->dir, folder = conversation->folder;
  store_thread_->Do(
      [store, folder]() -> Loaded {
        Loaded loaded{.files = std::make_shared<ConversationFiles>()};
        auto image = LoadConversation(store, folder);
        if (!image.ok()) return {.status = image.status()};
        std::optional<JournalBound> bound;
        if (image->manifest_status.ok()) bound = image->manifest->journal;
        loaded.image = std::make_shared<ConversationImage>(std::move(*image));
        auto journal = Journal::Open(ConversationPath(store, folder), bound);
        if (journal.ok()) loaded.files->journal = std::move(*journal);
        loaded.status = journal.status();
        return loaded;
      },
      [this, conversation](Loaded loaded) {
        conversation->loading = false;
        conversation->loaded = true;
        conversation->files = loaded.files;
        if (loaded.status.ok()) {
          const JournalState& state = loaded.image->journal.state;
          Branch& trunk = conversation->trunk();
          trunk.turn = state.trunk;
          trunk.path = state.TrunkIds();
          // The image may stand on a turn that a side request came after.
          for (int64_t turn = state.trunk; conversation->saved.generation > 0 && turn >= 0; --turn) {
            const std::vector<int32_t> path = turn == state.trunk ? state.TrunkIds() : state.PathIds(turn);
            const auto n = static_cast<size_t>(conversation->saved.n_tokens);
            if (path.size() < n || DigestOfTokens(std::span(path).first(n)) != conversation->saved.prefix) continue;
            trunk.turn = turn;
            trunk.path = path;
            break;
          }
          trunk.fed = trunk.turn == kNoTurn ? 0 : std::min<int64_t>(state.HeldLength(trunk.turn), static_cast<int64_t>(trunk.path.size()));
        } else {
          // Damage is refused, not mended: the conversation goes on without its past, which stays on disk as it is.
          conversation->last_error = std::string(loaded.status.message());
          LogError("conversation {}: {}", conversation->folder, conversation->last_error);
          parts_.metrics->JournalError();
        }
        AdmitQueued();
        ContinueShutdown();
      });
}

bool Engine::TryAdmit(Turn& turn) {
  if (!stages_->up()) return false;
  if (turn.conversation == nullptr) {
    turn.conversation = ConversationFor(turn.request);
    ++turn.conversation->waiting_turns;
  }
  Conversation& conversation = *turn.conversation;
  if (!conversation.loaded) {
    LoadConversationFiles(turn.conversation);
    return false;
  }
  if (conversation.restoring || conversation.deleting) return false;

  const std::vector<int32_t> target = turn.Target();
  ReusePlan plan;
  if (turn.request.cache_prompt) {
    plan = PlanReuse(conversation, target, [this](const Branch& branch) -> std::span<const int32_t> {
      return pipeline_->tokens(branch.session);
    });
    if (turn.resumed) plan.fork = false;  // its own branch, which it never gave back
    if (turn.resumed) plan.branch = turn.branch;
  }
  if (!TakeSession(turn, plan, target)) return false;
  turn.admitted = Turn::Clock::now();
  if (turn.resumed) {
    turn.phase = TurnPhase::kJournalling;
    AfterJournal(turn);
    return true;
  }
  turn.timings.queue_ms = MsBetween(turn.arrived, turn.admitted);
  CountReuse(turn, plan, turn.restore_first ? plan.saved_n : static_cast<int64_t>(pipeline_->tokens(turn.session).size()));
  NoteDivergence(turn, plan, target);
  turn.phase = TurnPhase::kJournalling;
  JournalPrompt(turn, plan);
  return true;
}

// The live session of another conversation of the same owner that shares the longest head.
uint64_t Engine::SharedHeadSource(const Turn& turn, const std::vector<int32_t>& target, int64_t* length) const {
  uint64_t best = 0;
  const auto look = [&](const Conversation& conversation) {
    if (conversation.owner != turn.request.owner || &conversation == turn.conversation.get()) return;
    for (const auto& branch : conversation.branches) {
      if (branch->session == 0) continue;
      const int64_t common = std::min(CommonPrefix(pipeline_->tokens(branch->session), target), static_cast<int64_t>(target.size()) - 1);
      if (common > *length && common >= kLeastSharedHead) {
        best = branch->session;
        *length = common;
      }
    }
  };
  for (const auto& [key, conversation] : conversations_) look(*conversation);
  for (const ConversationPtr& conversation : anonymous_) look(*conversation);
  return best;
}

// Gives the turn a branch, and a session that holds what is reused of the target unless a restore comes first. False: no
// place now, nothing changed.
bool Engine::TakeSession(Turn& turn, const ReusePlan& plan, const std::vector<int32_t>& target) {
  Conversation& conversation = *turn.conversation;
  turn.restore_first = plan.saved_n > plan.live_n;
  int64_t length = std::max(plan.saved_n, plan.live_n);
  SessionId source = !turn.restore_first && plan.live_n > 0 && plan.fork ? plan.branch->session : 0;
  if (turn.request.cache_prompt && can_truncate_) {
    if (const SessionId other = SharedHeadSource(turn, target, &length); other != 0) {
      source = other;
      turn.restore_first = false;
    }
  }
  // The branch's own session is cut back and goes on, if it is free and nothing better is found.
  Branch* branch = plan.branch != nullptr && !plan.fork ? plan.branch : nullptr;
  if (turn.restore_first) {
    if (pipeline_->ledger().FreeSessions() == 0 && !EvictIdle(0)) return false;  // the restore will need a place
    turn.session = 0;
  } else if (source == 0 && branch != nullptr && branch->session != 0) {
    turn.session = branch->session;
    CutSession(turn.session, length);
  } else {
    absl::StatusOr<SessionId> session;
    do {
      session = source != 0 ? pipeline_->Fork(source, length) : pipeline_->Open();
    } while (!session.ok() && EvictIdle(source));
    if (!session.ok()) return false;
    turn.session = *session;
  }

  if (branch == nullptr && conversation.trunk().path.empty() && conversation.trunk().running == nullptr) branch = &conversation.trunk();
  if (branch == nullptr) {
    conversation.branches.push_back(std::make_unique<Branch>());
    branch = conversation.branches.back().get();
  }
  branch->running = &turn;
  branch->last_used_ms = SteadyMs();
  turn.branch = branch;
  if (turn.session != 0) GiveSession(turn, turn.session);
  return true;
}

// The turn's branch goes on with this session; what it had before is closed.
void Engine::GiveSession(Turn& turn, SessionId session) {
  if (turn.branch->session != 0 && turn.branch->session != session) pipeline_->Close(turn.branch->session);
  turn.branch->session = session;
  turn.session = session;
  turn_of_session_[session] = turn.id;
}

void Engine::CutSession(SessionId session, int64_t length) {
  if (length < static_cast<int64_t>(pipeline_->tokens(session).size())) LAYOVER_CHECK(pipeline_->Truncate(session, length).ok());
}

void Engine::CountReuse(Turn& turn, const ReusePlan& plan, int64_t reused) {
  const auto prompt = static_cast<int64_t>(turn.request.prompt.size());
  Timings& timings = turn.timings;
  timings.cache_n = reused;
  const int64_t fed_before = plan.branch == nullptr ? 0 : std::min({plan.common, plan.branch->fed, prompt - 1});
  timings.recomputed_n = std::max<int64_t>(0, fed_before - reused);
  timings.prompt_n = prompt - timings.cache_n - timings.recomputed_n;
}

void Engine::NoteDivergence(Turn& turn, const ReusePlan& plan, const std::vector<int32_t>& target) {
  if (plan.branch == nullptr || plan.branch != turn.branch) return;
  const std::vector<int32_t>& had = plan.branch->path;
  const int64_t at = plan.common;
  if (at >= static_cast<int64_t>(had.size()) || at >= static_cast<int64_t>(target.size())) return;
  const auto around = [at](const std::vector<int32_t>& ids) {
    const int64_t begin = std::max<int64_t>(0, at - kDivergenceContext);
    const int64_t end = std::min(static_cast<int64_t>(ids.size()), at + kDivergenceContext);
    return std::vector<int32_t>(ids.begin() + begin, ids.begin() + end);
  };
  turn.conversation->divergence = Divergence{at, around(had), around(target)};
  LogInfo("request {}: the prompt diverges at {} of {} held tokens: had {}, got {}", turn.id, at, had.size(),
          had[static_cast<size_t>(at)], target[static_cast<size_t>(at)]);
}

void Engine::CloseBranch(Conversation& conversation, Branch& branch) {
  if (branch.session != 0) pipeline_->Close(branch.session);
  branch.session = 0;
  if (conversation.anonymous()) {
    anonymous_.remove_if([&](const ConversationPtr& candidate) { return candidate.get() == &conversation && !candidate->Active(); });
  }
}

// Takes the place of the session that has been idle longest. With a policy that saves before it evicts, the place comes
// free only when the save is done: false then, and those who wait are looked at again.
bool Engine::EvictIdle(SessionId keep) {
  // Requests without an id give way first, then side branches: neither pushes a named conversation's main line out.
  ConversationPtr oldest;
  Branch* oldest_branch = nullptr;
  std::pair<int, int64_t> oldest_rank;
  const auto look = [&](const ConversationPtr& conversation) {
    if (conversation->saving || conversation->restoring) return;
    for (const auto& branch : conversation->branches) {
      if (branch->session == 0 || branch->session == keep || branch->running != nullptr) continue;
      const int kind = conversation->anonymous() ? 0 : branch.get() != &conversation->trunk() ? 1 : 2;
      const std::pair<int, int64_t> rank(kind, branch->last_used_ms);
      if (oldest_branch != nullptr && oldest_rank <= rank) continue;
      oldest = conversation;
      oldest_branch = branch.get();
      oldest_rank = rank;
    }
  };
  for (const auto& [key, conversation] : conversations_) look(conversation);
  for (const ConversationPtr& conversation : anonymous_) look(conversation);
  if (oldest_branch == nullptr) return false;

  const bool saves = store_ != nullptr && (store_->save == SavePolicy::kEvict || store_->save == SavePolicy::kTurn) &&
                     !oldest->anonymous() && oldest_branch == &oldest->trunk() &&
                     static_cast<int64_t>(pipeline_->tokens(oldest_branch->session).size()) != oldest->saved.n_tokens;
  if (!saves) {
    parts_.metrics->Evicted(StateTier::kDevice);
    CloseBranch(*oldest, *oldest_branch);
    return true;
  }
  BeginSave(oldest, nullptr, [this, oldest](absl::StatusOr<SaveResult> result) {
    if (!result.ok()) {
      LogWarning("conversation {} leaves its place unsaved: {}", oldest->folder, ToStd(result.status().message()));
    }
    Branch& trunk = oldest->trunk();
    if (trunk.session != 0 && trunk.running == nullptr) {
      parts_.metrics->Evicted(StateTier::kDevice);
      CloseBranch(*oldest, trunk);
    }
    AdmitQueued();
  });
  return false;
}

}  // namespace layover
