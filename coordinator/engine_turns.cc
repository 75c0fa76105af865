// A request that has its place: journal, restore if need be, steps, end.
#include <algorithm>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {

void Engine::JournalPrompt(Turn& turn, const ReusePlan& plan) {
  Conversation& conversation = *turn.conversation;
  Branch& branch = *turn.branch;
  const int64_t parent = plan.branch == nullptr ? kNoTurn : plan.branch->turn;
  const int64_t fork = parent == kNoTurn ? 0 : plan.common;
  branch.fed = std::min(plan.branch == nullptr ? 0 : plan.branch->fed, fork);
  branch.path = turn.request.prompt;
  conversation.last_used_at = UnixMs() / 1000;
  if (store_ == nullptr || conversation.anonymous()) {
    AfterJournal(turn);
    return;
  }
  if (conversation.files == nullptr) conversation.files = std::make_shared<ConversationFiles>();
  struct Frame {
    std::vector<int32_t> ids;
    std::string text;
    Digest hash;
    int64_t parent;
    int32_t fork;
    int64_t time_ms;
    Journal::NewJournal fresh;
  };
  Frame frame{.ids = {turn.request.prompt.begin() + fork, turn.request.prompt.end()}, .text = turn.request.raw_text,
              .hash = turn.request.message_digest, .parent = parent, .fork = static_cast<int32_t>(fork),
              .time_ms = UnixMs(),
              .fresh = {.owner = conversation.owner, .id = conversation.id, .time_ms = conversation.created_at * 1000}};
  store_thread_->Do(
      [files = conversation.files, frame = std::move(frame), store = store_->dir] {
        return files->AppendPrompt(store, frame.fresh, {.parent = frame.parent, .fork_position = frame.fork,
                                                        .time_ms = frame.time_ms, .ids = frame.ids,
                                                        .text = frame.text, .message_hash = frame.hash});
      },
      [this, id = turn.id](ConversationFiles::Written written) {
        if (!written.status.ok()) {
          parts_.metrics->JournalError();
          LogError("request {}: journal: {}", id, ToStd(written.status.message()));
        }
        const auto found = turns_.find(id);
        if (found == turns_.end()) return;
        found->second->journal_turn = written.turn;
        found->second->branch->turn = written.turn;
        AfterJournal(*found->second);
      });
}

void Engine::AfterJournal(Turn& turn) {
  turn.journalled = true;
  if (turn.cancelled || !turn.failure.ok()) {
    EndTurn(turn, turn.cancelled ? TurnEnd::kCancelled : TurnEnd::kError);
    return;
  }
  if (turn.session != 0) {
    RunTurn(turn);
  } else if (turn.reserves_place) {
    BringBack(turn);
  } else {
    LookAgain(turn);  // a stage was lost meanwhile
  }
}

// It needs another source than it was given, or another place.
void Engine::LookAgain(Turn& turn) {
  turn.phase = TurnPhase::kQueued;
  turn.reserves_place = false;
  turn.source_branch = nullptr;
  queue_.remove(turn.id);  // it is still there if this is its admission
  queue_.push_front(turn.id);
  AdmitQueued();
}

void Engine::BringBack(Turn& turn) {
  turn.phase = TurnPhase::kRestoring;
  const RestoredCallback done = [this, id = turn.id, started = Clock::now()](absl::StatusOr<RestoreResult> result, SessionId session) {
    AfterRestore(id, started, result, session);
  };
  if (turn.source == ReusePlan::Source::kSaved) {
    BeginRestore({.conversation = turn.source_conversation, .ids = turn.Target(), .prove = store_->prove, .turn = turn.id}, nullptr, done);
    return;
  }
  turn.reserves_place = false;  // taken here
  const absl::Status begun = BeginUnpark(turn.source_conversation, *turn.source_branch, turn.source_n, done);
  if (!begun.ok()) done(begun, 0);
}

void Engine::AfterRestore(GenerationId id, Clock::time_point started, const absl::StatusOr<RestoreResult>& result,
                          SessionId session) {
  const auto found = turns_.find(id);
  if (found == turns_.end() || found->second->phase != TurnPhase::kRestoring) {
    // A stage was lost meanwhile, and the turn is in the queue again, or has been served by another restore.
    if (session != 0) pipeline_->Close(session);
    return;
  }
  Turn& turn = *found->second;
  turn.timings.restore_ms += MsBetween(started, Clock::now());
  if (!result.ok() && !turn.cancelled && turn.failure.ok()) {
    LogWarning("request {}: not brought back: {}", id, ToStd(result.status().message()));
    // A refused image is not looked at again; whatever else went wrong must not be tried for ever.
    turn.live_only = !(turn.source == ReusePlan::Source::kSaved && turn.source_conversation->refused);
    LookAgain(turn);
    return;
  }
  turn.reserves_place = false;
  if (session != 0) GiveSession(turn, session);
  // Its image in RAM has done its work, unless it can go back further; another conversation's stays.
  const bool done = turn.source == ReusePlan::Source::kParked && turn.source_branch == turn.branch;
  if (done && cut_ == CutAt::kAnywhere) DropParked(*turn.branch);
  if (turn.cancelled || !turn.failure.ok()) {
    EndTurn(turn, turn.cancelled ? TurnEnd::kCancelled : TurnEnd::kError);
    return;
  }
  const std::vector<int32_t> target = turn.Target();
  const int64_t reused = std::min(CommonPrefix(pipeline_->tokens(session), target), static_cast<int64_t>(target.size()) - 1);
  CutBranch(*turn.conversation, *turn.branch, reused);
  if (!turn.resumed) {
    // What was counted on and did not come is read again.
    turn.timings.recomputed_n += turn.timings.cache_n - reused;
    turn.timings.cache_n = reused;
    if (turn.source == ReusePlan::Source::kSaved) turn.timings.restored_n = reused;
  }
  RunTurn(turn);
}

void Engine::RunTurn(Turn& turn) {
  turn.phase = TurnPhase::kRunning;
  const GenerationRequest& request = turn.request;
  if (!turn.resumed && turn.observer != nullptr) turn.observer->OnStarted(turn.timings);
  const std::vector<int32_t> target = turn.Target();
  const size_t fed = pipeline_->tokens(turn.session).size();
  if (cut_ == CutAt::kCheckpoints && fed > 0) {
    // The end of what came before: an edit of what is new goes back to here.
    KeepCheckpoint(*turn.conversation, *turn.branch, {static_cast<int64_t>(fed), pipeline_->ledger().Pin(turn.session)});
  }
  pipeline_->Run(turn.session, std::span(target).subspan(fed),
                 {.sampler = request.sampler,
                  .output_begin = static_cast<int64_t>(request.prompt.size()),
                  .top_logprobs = request.top_logprobs,
                  .row_digest = request.row_digests,
                  .samples = request.max_tokens != 0,
                  .stops = StopsOf(turn)});
  // The loop pumps: this may be called while the pipeline is taking a step apart.
}

Turn* Engine::TurnOf(SessionId session) {
  const auto found = turn_of_session_.find(session);
  return found == turn_of_session_.end() ? nullptr : turns_.at(found->second).get();
}

void Engine::OnFed(SessionId session, int64_t length) {
  Turn* turn = TurnOf(session);
  if (turn == nullptr || turn->phase != TurnPhase::kRunning) return;
  turn->branch->fed = std::max(turn->branch->fed, length);
  const auto prompt = static_cast<int64_t>(turn->request.prompt.size());
  if (length > prompt) return;
  if (turn->observer != nullptr) turn->observer->OnProgress(length, prompt);
  if (length == prompt && turn->request.max_tokens == 0) {
    pipeline_->EndRun(session);
    turn->timings.prompt_ms = MsBetween(turn->admitted, Turn::Clock::now()) - turn->timings.restore_ms;
    turn->finish = FinishReason::kLength;
    EndTurn(*turn, TurnEnd::kLength);
  }
}

void Engine::OnSampled(SessionId session, const wire::RowReport& row) {
  Turn& turn = *TurnOf(session);
  const auto now = Turn::Clock::now();
  if (turn.output.empty()) {
    turn.first_token = now;
    turn.timings.prompt_ms = MsBetween(turn.admitted, now) - turn.timings.restore_ms;
    parts_.metrics->ObserveFirstToken(MsBetween(turn.arrived, now) / 1000);
  } else {
    parts_.metrics->ObserveInterToken(MsBetween(turn.last_token, now) / 1000);
  }
  turn.last_token = now;
  turn.output.push_back(row.token);
  turn.unjournalled.push_back(row.token);
  JournalOutput(turn);

  std::optional<FinishReason> finish;
  if (!turn.request.ignore_eos && parts_.tokenizer->IsEog(row.token)) {
    finish = FinishReason::kStop;
  } else {
    ++turn.timings.predicted_n;
    const GeneratedToken token{row.token, row.logprob, row.top, row.digest};
    if (turn.observer != nullptr && !turn.observer->OnToken(token)) finish = FinishReason::kStop;
    const auto total = static_cast<int64_t>(turn.request.prompt.size() + turn.output.size());
    if (!finish.has_value() && (turn.timings.predicted_n == turn.request.max_tokens || total >= parts_.plan->context)) {
      finish = FinishReason::kLength;
    }
  }
  turn.timings.predicted_ms = MsBetween(turn.first_token, now);
  if (!finish.has_value()) {
    pipeline_->Continue(session, row.token);
    return;
  }
  pipeline_->EndRun(session);
  turn.finish = *finish;
  EndTurn(turn, *finish == FinishReason::kStop ? TurnEnd::kStop : TurnEnd::kLength);
}

// Sampled ids go to the journal as they come, those of several steps together if the disk is slower than the model.
void Engine::JournalOutput(Turn& turn) {
  if (turn.journal_turn == kNoTurn || turn.journal_busy || turn.unjournalled.empty()) return;
  turn.journal_busy = true;
  store_thread_->Do(
      [files = turn.conversation->files, number = turn.journal_turn, ids = std::exchange(turn.unjournalled, {})] {
        return files->journal->AppendGenerated(number, ids);
      },
      [this, id = turn.id](absl::Status status) {
        if (!status.ok()) parts_.metrics->JournalError();
        const auto found = turns_.find(id);
        if (found == turns_.end()) return;
        found->second->journal_busy = false;
        if (found->second->phase == TurnPhase::kRunning) JournalOutput(*found->second);
      });
}

void Engine::OnStopped(SessionId session) {
  Turn* turn = TurnOf(session);
  if (turn == nullptr) return;
  if (!turn->cancelled && turn->failure.ok()) turn->failure = Unavailable("there was no room to go on");
  EndTurn(*turn, turn->cancelled ? TurnEnd::kCancelled : draining_ ? TurnEnd::kUnfinished : TurnEnd::kError);
}

void Engine::OnRunFailed(SessionId session, const absl::Status& why) {
  Turn* turn = TurnOf(session);
  if (turn == nullptr) return;
  if (turn->failure.ok()) turn->failure = Unavailable("{}", ToStd(why.message()));
  EndTurn(*turn, TurnEnd::kError);
}

bool Engine::OnStarved(SessionId session) { return DropLeastCheckpoint() || EvictIdle(session, true); }

void Engine::Probe(SessionId session, std::function<void(const Digest&)> then) {
  const int32_t bos = parts_.tokenizer->bos_id();
  const uint64_t probe = next_probe_++;
  probes_[probe] = std::move(then);
  pipeline_->Probe(probe, session, std::max(bos, 0));
}

void Engine::OnProbed(uint64_t probe, const Digest& row) {
  const auto waiting = probes_.extract(probe);
  if (!waiting.empty()) waiting.mapped()(row);
}

void Engine::StopTurn(Turn& turn, absl::Status why) {
  if (turn.failure.ok()) turn.failure = std::move(why);
  switch (turn.phase) {
    case TurnPhase::kQueued:
      queue_.remove(turn.id);
      EndTurn(turn, turn.cancelled ? TurnEnd::kCancelled : TurnEnd::kUnfinished);
      return;
    case TurnPhase::kRunning:
      turn.phase = TurnPhase::kStopping;
      pipeline_->Stop(turn.session);
      return;
    case TurnPhase::kJournalling:
    case TurnPhase::kRestoring:  // it is looked at when that is done
    case TurnPhase::kStopping:
    case TurnPhase::kEnding: return;
  }
}

void Engine::EndTurn(Turn& turn, TurnEnd end) {
  turn.phase = TurnPhase::kEnding;
  int64_t fed = 0;
  if (turn.branch != nullptr) {
    Branch& branch = *turn.branch;
    branch.path = turn.Target();
    if (turn.session != 0) {
      fed = static_cast<int64_t>(pipeline_->tokens(turn.session).size());
      branch.fed = std::max(branch.fed, fed);
      turn_of_session_.erase(turn.session);
    }
    branch.running = nullptr;
    branch.last_used_ms = SteadyMs();
    Conversation& conversation = *turn.conversation;
    conversation.last_used_at = UnixMs() / 1000;
    MakeTrunk(conversation, turn.branch);  // the branch extended last
    conversation.journalled_n = static_cast<int64_t>(conversation.trunk().path.size());
    if (!turn.request.cache_prompt && turn.session != 0) CloseBranch(conversation, branch);
  }
  if (turn.journal_turn == kNoTurn) {
    ForgetTurn(turn.id);
    return;
  }
  // The client hears of the end when the end is on disk: what it has seen finished is never lost.
  store_thread_->Do(
      [files = turn.conversation->files, number = turn.journal_turn, ids = std::exchange(turn.unjournalled, {}), end, fed] {
        absl::Status status;
        if (!ids.empty()) status = files->journal->AppendGenerated(number, ids);
        const absl::Status ended = files->journal->AppendTurnEnd({.turn = number, .end = end, .fed = static_cast<int32_t>(fed)});
        return std::pair(status.ok() ? ended : status, static_cast<int64_t>(files->journal->bound().bytes));
      },
      [this, id = turn.id](std::pair<absl::Status, int64_t> written) {
        const auto& [status, journal_bytes] = written;
        if (!status.ok()) {
          parts_.metrics->JournalError();
          LogError("request {}: journal: {}", id, ToStd(status.message()));
        }
        turns_.at(id)->conversation->journal_bytes = journal_bytes;
        ForgetTurn(id);
      });
}

void Engine::MakeTrunk(Conversation& conversation, const Branch* branch) {
  const auto place = std::find_if(conversation.branches.begin(), conversation.branches.end(),
                                  [&](const auto& candidate) { return candidate.get() == branch; });
  std::swap(conversation.branches.front(), *place);
}

void Engine::ForgetTurn(GenerationId id) {
  const std::unique_ptr<Turn> turn = std::move(turns_.at(id));
  turns_.erase(id);
  if (turn->conversation != nullptr) {
    Conversation& conversation = *turn->conversation;
    --conversation.waiting_turns;
    if (!turn->conversation->anonymous() && store_ != nullptr) {
      SaveCatalogRow(*turn->conversation);
      if (store_->save == SavePolicy::kTurn && turn->failure.ok()) SaveTurn(turn->conversation);
    }
  }
  if (turn->observer != nullptr) {
    if (turn->failure.ok()) {
      parts_.metrics->RequestFinished(turn->timings);
      turn->observer->OnFinished(turn->finish, turn->timings);
    } else {
      turn->observer->OnFailed(turn->failure);
    }
  }
  AdmitQueued();
  ContinueShutdown();
}

}  // namespace layover
