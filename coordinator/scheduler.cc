#include "coordinator/scheduler.h"

#include <algorithm>

#include "common/check.h"
#include "common/limits.h"

namespace layover {

void Scheduler::Add(SessionId session, int64_t fed, int64_t known, bool samples, std::vector<int64_t> stops) {
  LAYOVER_CHECK(!sequences_.contains(session) && fed < known);
  LAYOVER_CHECK(std::is_sorted(stops.begin(), stops.end()));
  Sequence sequence;
  sequence.issued = fed;
  sequence.known = known;
  sequence.samples = samples;
  sequence.order = next_order_++;
  sequence.stops = std::move(stops);
  sequences_[session] = std::move(sequence);
}

void Scheduler::Extend(SessionId session) {
  Sequence& sequence = sequences_.at(session);
  LAYOVER_CHECK(sequence.issued == sequence.known && sequence.in_flight == 0);
  ++sequence.known;
}

void Scheduler::Stop(SessionId session) { sequences_.at(session).stopped = true; }

void Scheduler::Remove(SessionId session) {
  LAYOVER_CHECK(Idle(session));
  sequences_.erase(session);
}

void Scheduler::StepDone(const StepPlan& plan) {
  LAYOVER_CHECK(steps_in_flight_ > 0);
  --steps_in_flight_;
  for (const PlannedSlice& slice : plan.slices) --sequences_.at(slice.session).in_flight;
}

void Scheduler::Clear() {
  sequences_.clear();
  steps_in_flight_ = 0;
}

bool Scheduler::Idle(SessionId session) const { return sequences_.at(session).in_flight == 0; }

std::vector<Scheduler::SessionId> Scheduler::Ordered(bool decoding) const {
  std::vector<SessionId> ids;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.decoding == decoding && !sequence.stopped) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(),
            [this](SessionId a, SessionId b) { return sequences_.at(a).order < sequences_.at(b).order; });
  return ids;
}

Scheduler::PlannedSlice Scheduler::Issue(SessionId session, int64_t tokens) {
  Sequence& sequence = sequences_.at(session);
  PlannedSlice slice{.session = session, .begin = sequence.issued, .end = sequence.issued + tokens};
  sequence.issued = slice.end;
  ++sequence.in_flight;
  while (!sequence.stops.empty() && sequence.stops.front() <= slice.end) {
    slice.checkpoint = sequence.stops.front() == slice.end;
    sequence.stops.erase(sequence.stops.begin());
  }
  if (sequence.issued == sequence.known) {
    slice.sample = sequence.samples;
    sequence.decoding = true;
    sequence.order = next_order_++;
  }
  return slice;
}

void Scheduler::PlanDecode(StepPlan& plan) {
  const std::vector<SessionId> decoding = Ordered(true);
  const int share = (static_cast<int>(decoding.size()) + config_.stages - 1) / config_.stages;
  for (SessionId id : decoding) {
    if (static_cast<int>(plan.slices.size()) >= std::min(share, config_.max_slices)) break;
    const Sequence& sequence = sequences_.at(id);
    if (sequence.in_flight == 0 && sequence.issued < sequence.known) plan.slices.push_back(Issue(id, 1));
  }
}

void Scheduler::PlanPrefill(StepPlan& plan) {
  int64_t budget = config_.chunk_tokens;
  for (SessionId id : Ordered(false)) {
    if (budget <= 0 || static_cast<int>(plan.slices.size()) >= config_.max_slices) break;
    const Sequence& sequence = sequences_.at(id);
    int64_t end = std::min(sequence.known, sequence.issued + budget);
    if (!sequence.stops.empty()) end = std::min(end, sequence.stops.front());
    const bool at_own_end = end == sequence.known || (!sequence.stops.empty() && end == sequence.stops.front());
    if (!at_own_end) {
      end = end / limits::kPageTokens * limits::kPageTokens;
      if (end <= sequence.issued) break;  // what is left of the budget does not reach the grid
    }
    budget -= end - sequence.issued;
    plan.slices.push_back(Issue(id, end - sequence.issued));
  }
}

std::optional<Scheduler::StepPlan> Scheduler::Next() {
  if (steps_in_flight_ >= config_.stages) return std::nullopt;
  StepPlan plan;
  PlanDecode(plan);
  PlanPrefill(plan);
  if (plan.slices.empty()) return std::nullopt;
  ++steps_in_flight_;
  return plan;
}

}  // namespace layover
