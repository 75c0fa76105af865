// What the pipeline does next, as a pure function of the sequences' state: events in, step out. No I/O, clock, threads or
// model: its tests are tables (tests/engine/scheduler_test.cc).
//
// Policy:
//  - At most one step in flight per stage, so that every stage has work and none queues behind another.
//  - Decode rows first. The sequences that are decoding are split evenly into as many micro-batches as there are stages,
//    so that two conversations keep two stages busy. A decode row waits for its own previous step only.
//  - What is left of the chunk budget goes to prompts, oldest request first, in chunks that end on the grid of 64 (the
//    prompt's end excepted). A prompt may have several chunks in flight, one behind the other.
//  - A chunk never crosses a stop: a position at which a checkpoint is to be taken (recurrent state exists at step ends
//    only). The plan says where a checkpoint is due.
// On the CPU the bits of a row do not depend on any of this (invariant 1); only time does.
#ifndef LAYOVER_COORDINATOR_SCHEDULER_H_
#define LAYOVER_COORDINATOR_SCHEDULER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace layover {

struct SchedulerConfig {
  int stages = 1;
  int chunk_tokens = 512;        // most prompt tokens of one step
  int max_slices = 256;
};

class Scheduler {
 public:
  using SessionId = uint64_t;

  struct PlannedSlice {
    SessionId session = 0;
    int64_t begin = 0;           // tokens [begin, end) are fed
    int64_t end = 0;
    bool sample = false;         // end is all that is known: sample what comes next
    bool checkpoint = false;     // a checkpoint is due at `end`
    bool operator==(const PlannedSlice&) const = default;
  };
  struct StepPlan {
    std::vector<PlannedSlice> slices;
    bool operator==(const StepPlan&) const = default;
  };

  explicit Scheduler(const SchedulerConfig& config) : config_(config) {}

  // --- events
  // A request starts on a session that has fed `fed` of its `known` tokens (fed < known). Unless `samples`, nothing is
  // drawn at the end. `stops`: ascending positions in (fed, known].
  void Add(SessionId session, int64_t fed, int64_t known, bool samples, std::vector<int64_t> stops = {});
  // One more token is known (the sampled one). Sampling goes on after it is fed.
  void Extend(SessionId session);
  // Nothing more is issued for it; Idle() tells when its last step is done.
  void Stop(SessionId session);
  void Remove(SessionId session);           // must be idle
  void StepDone(const StepPlan& plan);      // steps finish in the order they were issued
  void Clear();                             // the pipeline was reset

  // --- the question
  // The next step, or nothing (nothing to do, or every stage has its step). Counts as issued.
  std::optional<StepPlan> Next();

  bool Idle(SessionId session) const;       // no step in flight
  bool Has(SessionId session) const { return sequences_.contains(session); }
  int64_t Issued(SessionId session) const { return sequences_.at(session).issued; }
  int steps_in_flight() const { return steps_in_flight_; }

 private:
  struct Sequence {
    int64_t issued = 0;          // tokens put into steps
    int64_t known = 0;
    bool samples = true;
    bool stopped = false;
    bool decoding = false;       // its prompt has been issued to the end
    int in_flight = 0;           // steps that hold a slice of it
    uint64_t order = 0;          // arrival; for decoding ones the last time they were served
    std::vector<int64_t> stops;
  };

  std::vector<SessionId> Ordered(bool decoding) const;
  void PlanDecode(StepPlan& plan);
  void PlanPrefill(StepPlan& plan);
  PlannedSlice Issue(SessionId session, int64_t tokens);

  const SchedulerConfig config_;
  std::map<SessionId, Sequence> sequences_;
  int steps_in_flight_ = 0;
  uint64_t next_order_ = 1;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_SCHEDULER_H_
