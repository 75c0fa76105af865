#include "coordinator/pipeline.h"

#include <algorithm>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

constexpr int kFull = static_cast<int>(PageClass::kFull);
constexpr int kWindow = static_cast<int>(PageClass::kWindow);

}  // namespace

Pipeline::Pipeline(StageGroup* stages, const LedgerConfig& ledger, const SchedulerConfig& scheduler, int max_step_tokens,
                   Listener* listener)
    : stages_(stages), listener_(listener), ledger_(ledger), scheduler_(scheduler) {
  LAYOVER_CHECK(scheduler.chunk_tokens + scheduler.max_slices <= max_step_tokens);
}

absl::StatusOr<SessionId> Pipeline::Open() {
  const SessionId session = next_session_;
  RETURN_IF_ERROR(ledger_.Open(session));
  ++next_session_;
  sessions_[session];
  stages_->SendOrdered(wire::OpenSession{session});
  return session;
}

absl::StatusOr<SessionId> Pipeline::Fork(SessionId source, int64_t length) {
  const SessionId session = next_session_;
  ASSIGN_OR_RETURN(const PageLedger::Fork fork, ledger_.ForkSession(source, session, length));
  ++next_session_;
  SendFork(source, session, fork);
  return session;
}

absl::StatusOr<SessionId> Pipeline::ForkCheckpoint(SessionId source, PageLedger::PinId pin) {
  const SessionId session = next_session_;
  ASSIGN_OR_RETURN(const PageLedger::Fork fork, ledger_.ForkPin(pin, session));
  ++next_session_;
  SendFork(source, session, fork);
  return session;
}

void Pipeline::SendFork(SessionId source, SessionId session, const PageLedger::Fork& fork) {
  const int64_t length = ledger_.Length(session);
  const std::vector<int32_t>& from = sessions_.at(source).tokens;
  sessions_[session].tokens.assign(from.begin(), from.begin() + length);
  stages_->SendOrdered(wire::ForkSession{source, session, length, fork.pages[kFull], fork.copies[kFull],
                                         ledger_.StateOf(session), fork.copies[kWindow]});
}

void Pipeline::RewindToCheckpoint(SessionId session, PageLedger::PinId pin) {
  LAYOVER_CHECK(!Running(session));
  ledger_.RewindToPin(session, pin);
  SendTruncate(session);
}

void Pipeline::SendTruncate(SessionId session) {
  const int64_t length = ledger_.Length(session);
  sessions_.at(session).tokens.resize(static_cast<size_t>(length));
  const auto n_pages = static_cast<int32_t>(ledger_.Pages(session, PageClass::kFull).size());
  stages_->SendOrdered(wire::TruncateSession{session, length, n_pages, ledger_.StateOf(session)});
}

absl::Status Pipeline::Truncate(SessionId session, int64_t length) {
  LAYOVER_CHECK(!Running(session));
  RETURN_IF_ERROR(ledger_.Truncate(session, length));
  SendTruncate(session);
  return absl::OkStatus();
}

void Pipeline::Close(SessionId session) {
  LAYOVER_CHECK(!Running(session));
  ledger_.Close(session);
  sessions_.erase(session);
  stages_->SendOrdered(wire::CloseSession{session});
}

absl::StatusOr<Pipeline::Shadow> Pipeline::OpenShadow(std::vector<int32_t> tokens) {
  const SessionId session = next_session_;
  RETURN_IF_ERROR(ledger_.OpenFilled(session, static_cast<int64_t>(tokens.size())));
  ++next_session_;
  sessions_[session].tokens = std::move(tokens);
  return Shadow{session, ledger_.Pages(session, PageClass::kFull), ledger_.StateOf(session)};
}

void Pipeline::Probe(uint64_t probe, SessionId id, int32_t token) {
  const SessionId scratch = next_session_++;
  const auto length = static_cast<int64_t>(sessions_.at(id).tokens.size());
  const int32_t rest = static_cast<int32_t>(length % limits::kPageTokens);
  wire::ForkSession fork{.source = id, .session = scratch, .length = length, .pages = ledger_.Pages(id, PageClass::kFull),
                         .state = ledger_.StateOf(id)};
  wire::StepSlice slice{.session = scratch, .begin = length, .tokens = {token}, .state_from = fork.state.slot,
                        .wish = wire::RowWish::kDigest};
  // Behind the ledger's own pages and slots.
  const LedgerConfig& ledger = ledger_.config();
  const auto grow = [rest](std::vector<int32_t>& table, int32_t scratch_page, std::vector<wire::PageCopy>* copies,
                           std::vector<int32_t>* new_pages) {
    if (rest == 0) {
      new_pages->push_back(scratch_page);
      return;
    }
    copies->push_back({table.back(), scratch_page, rest});
    table.back() = scratch_page;
  };
  grow(fork.pages, ledger.full_pages, &fork.copies, &slice.new_pages);
  if (ledger.window_pages > 0) {
    grow(fork.state.window_pages, ledger.window_pages, &fork.window_copies, &slice.new_window_pages);
  }
  if (ledger.state_slots > 0) slice.state_to = ledger.state_slots;
  SendProbe();  // the one before has the scratch page
  stages_->SendOrdered(fork);
  waiting_probe_ = WaitingProbe{probe, std::move(slice)};
  if (scheduler_.steps_in_flight() == 0) SendProbe();
}

// The probe's row on its own.
void Pipeline::SendProbe() {
  if (!waiting_probe_.has_value()) return;
  const SessionId scratch = waiting_probe_->slice.session;
  InFlight step{.probe = waiting_probe_->number};
  wire::Step message;
  message.slices.push_back(std::move(waiting_probe_->slice));
  waiting_probe_.reset();
  step.seq = stages_->SendOrdered(std::move(message));
  in_flight_.push_back(std::move(step));
  stages_->SendOrdered(wire::CloseSession{scratch});
}

void Pipeline::Run(SessionId id, std::span<const int32_t> tokens, const RunSpec& spec) {
  Session& session = sessions_.at(id);
  LAYOVER_CHECK(!tokens.empty());
  session.waiting.assign(tokens.begin(), tokens.end());
  session.spec = spec;
  session.stopping = false;
  const auto fed = static_cast<int64_t>(session.tokens.size());
  scheduler_.Add(id, fed, fed + static_cast<int64_t>(tokens.size()), spec.samples, spec.stops);
}

void Pipeline::Continue(SessionId id, int32_t token) {
  sessions_.at(id).waiting.push_back(token);
  scheduler_.Extend(id);
}

void Pipeline::EndRun(SessionId id) { scheduler_.Remove(id); }

void Pipeline::Stop(SessionId id) {
  scheduler_.Stop(id);
  sessions_.at(id).stopping = true;
  if (!scheduler_.Idle(id)) return;
  scheduler_.Remove(id);
  listener_->OnStopped(id);
}

void Pipeline::Pump() {
  while (stages_->up()) {
    std::optional<Scheduler::StepPlan> plan = scheduler_.Next();
    if (!plan.has_value()) {
      if (scheduler_.steps_in_flight() == 0) SendProbe();
      return;
    }
    InFlight step;
    wire::Step message;
    for (const Scheduler::PlannedSlice& planned : plan->slices) {
      if (std::optional<wire::StepSlice> slice = MakeSlice(planned)) {
        message.slices.push_back(std::move(*slice));
      } else {
        step.dropped.push_back(planned.session);
      }
    }
    ledger_.StepSent();
    step.plan = std::move(*plan);
    if (message.slices.empty()) {
      FinishStep(step, {});
      continue;
    }
    step.seq = stages_->SendOrdered(std::move(message));
    in_flight_.push_back(std::move(step));
    // Behind the step, not in it: a stage reads the probe's row while the next one has the others'.
    SendProbe();
  }
}

std::optional<wire::StepSlice> Pipeline::MakeSlice(const Scheduler::PlannedSlice& planned) {
  Session& session = sessions_.at(planned.session);
  if (session.stopping) return std::nullopt;
  auto growth = ledger_.Grow(planned.session, planned.end);
  while (!growth.ok() && listener_->OnStarved(planned.session)) growth = ledger_.Grow(planned.session, planned.end);
  if (!growth.ok()) {
    session.stopping = true;
    return std::nullopt;
  }
  const int64_t count = planned.end - planned.begin;
  wire::StepSlice slice;
  slice.session = planned.session;
  slice.begin = planned.begin;
  slice.tokens.assign(session.waiting.begin(), session.waiting.begin() + count);
  session.waiting.erase(session.waiting.begin(), session.waiting.begin() + count);
  session.tokens.insert(session.tokens.end(), slice.tokens.begin(), slice.tokens.end());
  slice.new_pages = std::move(growth->new_pages[kFull]);
  slice.copies = std::move(growth->copies[kFull]);
  slice.new_window_pages = std::move(growth->new_pages[kWindow]);
  slice.window_copies = std::move(growth->copies[kWindow]);
  slice.state_from = growth->state_from;
  slice.state_to = growth->state_to;
  if (planned.checkpoint) listener_->OnCheckpoint(planned.session, planned.end, ledger_.Pin(planned.session));
  const RunSpec& spec = session.spec;
  slice.top_logprobs = spec.top_logprobs;
  if (spec.report_rows) {
    slice.wish = wire::RowWish::kReport;
    slice.raw_rows = spec.raw_rows;
    if (!session.waiting.empty()) slice.next_token = session.waiting.front();
  } else if (planned.sample) {
    slice.wish = wire::RowWish::kSample;
    slice.sampler = spec.sampler;
    slice.output_begin = spec.output_begin;
    slice.row_digest = spec.row_digest;
  }
  return slice;
}

void Pipeline::OnStepDone(int stage, uint64_t seq, const wire::StepDone& done) {
  if (stage + 1 != stages_->n_stages()) return;  // progress only
  LAYOVER_CHECK(!in_flight_.empty() && in_flight_.front().seq == seq);
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (!step.plan.slices.empty()) FinishStep(step, done);
  if (step.probe != 0) {
    // Its slice was the last.
    const bool answered = !done.results.empty() && done.results.back().rows.size() == 1;
    listener_->OnProbed(step.probe, answered ? done.results.back().rows[0].digest : Digest());
  }
}

void Pipeline::FinishStep(const InFlight& step, const wire::StepDone& done) {
  scheduler_.StepDone(step.plan);
  size_t next_result = 0;
  for (const Scheduler::PlannedSlice& planned : step.plan.slices) {
    const SessionId id = planned.session;
    Session& session = sessions_.at(id);
    const bool dropped = std::find(step.dropped.begin(), step.dropped.end(), id) != step.dropped.end();
    const wire::SliceResult* result = nullptr;
    if (!dropped && next_result < done.results.size()) result = &done.results[next_result++];
    if (session.stopping || dropped) {
      if (!scheduler_.Idle(id)) continue;
      scheduler_.Remove(id);
      if (dropped) {
        listener_->OnRunFailed(id, ResourceExhausted("no page is free for the next tokens"));
      } else {
        listener_->OnStopped(id);
      }
      continue;
    }
    const bool reports = session.spec.report_rows;
    listener_->OnFed(id, planned.end);
    // The listener may have ended the run, or the session, on that.
    if (result == nullptr || !scheduler_.Has(id)) continue;
    if (reports) {
      listener_->OnRows(id, result->rows);
    } else if (planned.sample && !result->rows.empty()) {
      listener_->OnSampled(id, result->rows.front());
    }
  }
}

void Pipeline::Reset() {
  scheduler_.Clear();
  in_flight_.clear();
  waiting_probe_.reset();
  sessions_.clear();
  ledger_.CloseAll();
}

}  // namespace layover
