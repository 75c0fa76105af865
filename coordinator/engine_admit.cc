// How a request gets its place: queue, conversation, the deepest source, a session.
#include <algorithm>
#include <set>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {
namespace {

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
  if (!stages_down_.ok()) refused = stages_down_;
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
  ForgetAnonymous();
  for (const Task& task : std::exchange(waiting_for_place_, {})) task();
  const std::vector<GenerationId> waiting(queue_.begin(), queue_.end());
  for (GenerationId id : waiting) {
    const auto found = turns_.find(id);
    if (found == turns_.end() || found->second->phase != TurnPhase::kQueued) continue;
    if (!stages_down_.ok()) {
      StopTurn(*found->second, stages_down_);
      continue;
    }
    if (!TryAdmit(*found->second)) continue;
    // Perhaps it ended on the way, or what it was to be brought back from failed at once, and it waits again.
    const auto after = turns_.find(id);
    if (after == turns_.end() || after->second->phase != TurnPhase::kQueued) queue_.remove(id);
  }
}

Engine::ConversationPtr Engine::ConversationFor(const GenerationRequest& request) {
  if (request.cache_prompt && !request.conversation_id.empty()) {
    ConversationPtr conversation = Find(request.owner, request.conversation_id);
    if (conversation != nullptr) return conversation;
    conversation = NewConversation(request.owner, request.conversation_id);
    if (request.now_unix_s != 0) conversation->created_at = request.now_unix_s;
    Enlist(conversation);
    return conversation;
  }
  if (request.cache_prompt && request.id_slot >= 0 && request.id_slot < static_cast<int>(slots_held_.size())) {
    const Held held = InSlot(request.owner, request.id_slot);
    if (held.branch != nullptr && held.conversation->anonymous()) return held.conversation;
  }
  // Without an id: the idle one that is continued, else a new one (which may still share another's head).
  if (request.cache_prompt) {
    ConversationPtr best;
    int64_t best_common = 0;
    for (const ConversationPtr& candidate : anonymous_) {
      const Branch& branch = candidate->trunk();
      if (candidate->owner != request.owner || candidate->Active()) continue;
      const int64_t common = HeldOf(branch, request);
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

bool Engine::LoadIfNeeded(const ConversationPtr& conversation) {
  if (conversation->loaded) return true;
  if (conversation->loading) return false;
  conversation->loading = true;
  struct Loaded {
    absl::Status status;
    std::shared_ptr<ConversationImage> image;
    std::shared_ptr<ConversationFiles> files = std::make_shared<ConversationFiles>();
  };
  const std::string store = store_->dir, folder = conversation->folder;
  store_thread_->Do(
      [store, folder]() -> Loaded {
        Loaded loaded;
        auto open = LoadAndOpen(store, folder);
        if (!open.ok()) return {open.status()};
        loaded.image = std::make_shared<ConversationImage>(std::move(open->image));
        loaded.files->journal = std::move(open->journal);
        loaded.status = loaded.image->journal_status;
        return loaded;
      },
      [this, conversation](Loaded loaded) {
        conversation->loading = false;
        conversation->loaded = true;
        conversation->files = loaded.files;
        if (loaded.status.ok()) {
          TakeLoaded(*conversation, *loaded.image);
        } else {
          // Damage is refused, not mended: the conversation goes on without its past, which stays on disk as it is.
          conversation->last_error = std::string(loaded.status.message());
          LogError("conversation {}: {}", conversation->folder, conversation->last_error);
          parts_.metrics->JournalError();
        }
        const auto waiting = waiting_for_load_.extract({conversation->owner, conversation->id});
        if (!waiting.empty()) {
          for (const Task& task : waiting.mapped()) task();
        }
        AdmitQueued();
        ContinueShutdown();
      });
  return false;
}

// The journal's tokens and the manifest's branches become the conversation's branches.
void Engine::TakeLoaded(Conversation& conversation, const ConversationImage& image) {
  const JournalState& state = image.journal.state;
  const auto take_turn = [&](Branch& branch, int64_t turn) {
    branch.turn = turn;
    branch.path = turn == state.trunk ? state.TrunkIds() : state.PathIds(turn);
    branch.fed = std::min<int64_t>(state.HeldLength(turn), static_cast<int64_t>(branch.path.size()));
  };
  conversation.branches.clear();
  if (image.manifest_status.ok() && image.manifest->n_tokens > 0) {
    for (const ManifestBranch& saved : image.manifest->branches) {
      const int64_t turn = state.FindTurn(saved.n_tokens, saved.prefix);
      if (turn == kNoTurn) continue;  // its restore says so
      auto branch = std::make_unique<Branch>();
      take_turn(*branch, turn);
      branch->saved.n_tokens = saved.n_tokens;
      branch->saved.path = state.PathIds(turn, saved.n_tokens);  // the trunk's own path may have been rewound to less
      branch->saved.chain = saved.chain;
      branch->saved.checkpoints = saved.checkpoints;
      conversation.branches.push_back(std::move(branch));
    }
  }
  if (conversation.branches.empty()) conversation.branches.push_back(std::make_unique<Branch>());
  TakeUnsaved(conversation, state, take_turn);
}

// What was said after the last save: each of the newest lines continues a branch, or is one of its own.
void Engine::TakeUnsaved(Conversation& conversation, const JournalState& state,
                         const std::function<void(Branch&, int64_t)>& take_turn) {
  std::set<int64_t> parents;
  for (const JournalTurn& turn : state.turns) parents.insert(turn.parent);
  for (auto turn = static_cast<int64_t>(state.turns.size()) - 1; turn >= 0; --turn) {
    if (parents.contains(turn) && turn != state.trunk) continue;
    auto line = std::make_unique<Branch>();
    take_turn(*line, turn);
    Branch* nearest = nullptr;
    int64_t most = -1;
    for (const auto& branch : conversation.branches) {
      const int64_t common = CommonPrefix(branch->path, line->path);
      if (common > most) nearest = branch.get();
      most = std::max(most, common);
    }
    // The same rule as for a prompt that arrives: see PlanReuse.
    if (static_cast<int64_t>(nearest->path.size()) - most <= most || nearest->path.empty()) {
      if (nearest->path.empty() || (turn == state.trunk && line->path.size() >= nearest->path.size())) take_turn(*nearest, turn);
    } else if (static_cast<int>(conversation.branches.size()) < limits::kMaxBranches) {
      conversation.branches.push_back(std::move(line));
    }
  }
  for (const auto& branch : conversation.branches) {
    if (branch->turn != state.trunk) continue;
    MakeTrunk(conversation, branch.get());
    break;
  }
}

bool Engine::TryAdmit(Turn& turn) {
  if (!stages_->up()) return false;
  if (turn.conversation == nullptr) {
    turn.conversation = ConversationFor(turn.request);
    ++turn.conversation->waiting_turns;
  }
  Conversation& conversation = *turn.conversation;
  if (!LoadIfNeeded(turn.conversation) || conversation.switching || conversation.deleting) return false;

  if (turn.request.cache_prompt && turn.branch == nullptr && !turn.journalled) UseHeldIds(turn);
  const std::vector<int32_t> target = turn.Target();
  ReusePlan plan;
  ConversationPtr from = turn.conversation;
  if (turn.request.cache_prompt) {
    plan = PlanReuse(conversation, target, cut_, turn.live_only, [this](const Branch& branch) -> std::span<const int32_t> {
      return pipeline_->tokens(branch.session);
    });
    if (!OfferSharedHeads(turn, target, &plan, &from)) return false;
  }
  if (turn.branch != nullptr) {
    // It was here before, and never gave its branch back.
    plan.fork = false;
    plan.branch = turn.branch;
    plan.common = CommonPrefix(turn.branch->path, target);
  }
  if (!TakeSession(turn, plan, from)) return false;
  turn.phase = TurnPhase::kJournalling;
  if (plan.n > 0) ++from->hits;
  if (turn.resumed) {
    AfterJournal(turn);
    return true;
  }
  if (turn.journalled) {
    // What was counted on did not come back: what is reused instead.
    CountReuse(turn, plan);
    AfterJournal(turn);
    return true;
  }
  turn.admitted = Turn::Clock::now();
  turn.timings.queue_ms = MsBetween(turn.arrived, turn.admitted);
  CountReuse(turn, plan);
  NoteDivergence(turn, plan, target);
  JournalPrompt(turn, plan);
  return true;
}

// False: a conversation that may hold a head must be read first; its loading admits the queue again.
bool Engine::OfferSharedHeads(const Turn& turn, const std::vector<int32_t>& target, ReusePlan* plan, ConversationPtr* from) {
  const auto most = static_cast<int64_t>(target.size()) - 1;
  bool complete = true;
  const auto offer = [&](ReusePlan::Source source, const ConversationPtr& conversation, Branch* branch,
                         std::span<const int32_t> path, std::span<const int32_t> checkpoints) {
    const int64_t common = std::min(CommonPrefix(path, target), most);
    const int64_t n = DeepestState(cut_, common, static_cast<int64_t>(path.size()), checkpoints);
    if (n <= plan->n || n < kLeastSharedHead) return;
    plan->source = source;
    plan->from = branch;
    plan->n = n;
    *from = conversation;
  };
  const auto look = [&](const ConversationPtr& other) {
    if (other->owner != turn.request.owner || other == turn.conversation || other->deleting) return;
    for (const auto& branch : other->branches) {
      if (branch->session != 0) {
        offer(ReusePlan::Source::kLive, other, branch.get(), pipeline_->tokens(branch->session), PositionsOf(branch->checkpoints));
      }
      if (branch->parked != 0 && !turn.live_only) {
        offer(ReusePlan::Source::kParked, other, branch.get(), branch->parked_path, branch->parked_checkpoints);
      }
    }
    // The store: only whoever begins with the same page is read.
    if (!other->HasImage() || other->refused || turn.live_only || most < limits::kPageTokens) return;
    if (other->head != DigestOfTokens(std::span(target).first(limits::kPageTokens))) return;
    if (!LoadIfNeeded(other)) {
      complete = false;
      return;
    }
    for (const auto& branch : other->branches) {
      if (branch->saved.n_tokens == 0) continue;
      offer(ReusePlan::Source::kSaved, other, branch.get(), branch->saved.path, branch->saved.checkpoints);
    }
  };
  for (const auto& [key, conversation] : conversations_) look(conversation);
  for (const ConversationPtr& conversation : anonymous_) look(conversation);
  return complete;
}

// Gives the turn a branch, and a session that holds what is reused of the target unless that must be brought back first.
// False: no place now, nothing changed.
bool Engine::TakeSession(Turn& turn, const ReusePlan& plan, const ConversationPtr& from) {
  using Source = ReusePlan::Source;
  turn.source = plan.source;
  turn.source_conversation = from;
  turn.source_branch = plan.from;
  turn.source_n = plan.n;
  const bool brings_back = plan.source == Source::kSaved || plan.source == Source::kParked;
  if (brings_back) {
    while (FreePlaces() <= 0) {
      if (!EvictIdle(0, false)) return false;
    }
    turn.reserves_place = true;
    turn.session = 0;
  } else {
    const SessionId live = plan.source == Source::kLive ? plan.from->session : 0;
    // The branch's own session is cut back and goes on, if it is free.
    const bool own = plan.branch != nullptr && !plan.fork && plan.branch->session != 0 && (live == plan.branch->session || live == 0);
    if (own) {
      turn.session = plan.branch->session;
      CutBranch(*turn.conversation, *plan.branch, plan.n);
    } else {
      absl::StatusOr<SessionId> session = ResourceExhausted("no place");
      do {
        if (FreePlaces() > 0) session = live != 0 ? ForkBranch(*plan.from, plan.n) : pipeline_->Open();
      } while (!session.ok() && EvictIdle(live, false));
      if (!session.ok()) return false;
      turn.session = *session;
    }
  }
  turn.branch = TakeBranch(*turn.conversation, plan);
  turn.branch->running = &turn;
  turn.branch->last_used_ms = SteadyMs();
  if (from != turn.conversation && !from->anonymous() && plan.n > 0) {
    turn.branch->shared_with = from->folder;
    turn.branch->shared_n = plan.n;
  }
  if (turn.session != 0) GiveSession(turn, turn.session);
  return true;
}

Branch* Engine::TakeBranch(Conversation& conversation, const ReusePlan& plan) {
  if (plan.branch != nullptr && !plan.fork) return plan.branch;
  if (conversation.trunk().path.empty() && conversation.trunk().running == nullptr) return &conversation.trunk();
  if (static_cast<int>(conversation.branches.size()) >= limits::kMaxBranches) DropOldestSideBranch(conversation, plan);
  conversation.branches.push_back(std::make_unique<Branch>());
  return conversation.branches.back().get();
}

// The turn's branch goes on with this session; what it had before is closed.
void Engine::GiveSession(Turn& turn, SessionId session) {
  if (turn.branch->session != session) CloseBranch(*turn.conversation, *turn.branch);
  turn.branch->session = session;
  turn.branch->not_parked = 0;
  turn.session = session;
  turn_of_session_[session] = turn.id;
  if (Slot* const slot = HoldSlot(session, turn.request.id_slot); slot != nullptr) slot->task = static_cast<int64_t>(turn.id);
}

void Engine::CountReuse(Turn& turn, const ReusePlan& plan) {
  const auto prompt = static_cast<int64_t>(turn.request.prompt.size());
  Timings& timings = turn.timings;
  timings.cache_n = plan.n;
  const int64_t fed_before = plan.branch == nullptr ? 0 : std::min({plan.common, plan.branch->fed, prompt - 1});
  timings.recomputed_n = std::max<int64_t>(0, fed_before - plan.n);
  timings.prompt_n = prompt - timings.cache_n - timings.recomputed_n;
}

}  // namespace layover
