// The live sessions and the steps that feed them: ledger, scheduler and the stages' link under one roof, used by one
// thread. It knows tokens and pages, not conversations or requests.
//
// A session holds tokens that have been fed (its length) and, while it runs, tokens still to be fed. Run() feeds tokens
// and samples; each sampled token is told to the listener, who feeds it on with Continue() or ends with EndRun().
#ifndef LAYOVER_COORDINATOR_PIPELINE_H_
#define LAYOVER_COORDINATOR_PIPELINE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "coordinator/page_ledger.h"
#include "coordinator/scheduler.h"
#include "coordinator/stage_group.h"

namespace layover {

using SessionId = uint64_t;

struct RunSpec {
  SamplerSpec sampler;
  int64_t output_begin = 0;   // position of the first token that counts as output
  int top_logprobs = -1;
  bool row_digest = false;
  bool samples = true;        // false: only feed
  bool report_rows = false;   // `layover logits`: every row; with top_logprobs and raw_rows
  bool raw_rows = false;
  std::vector<int64_t> stops; // ascending positions of the run at which OnCheckpoint is called
};

class Pipeline {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // All of the run's tokens up to `length` have been through all stages.
    virtual void OnFed(SessionId session, int64_t length) = 0;
    // The token after everything that was fed. The session is at rest until Continue or EndRun.
    virtual void OnSampled(SessionId session, const wire::RowReport& row) = 0;
    virtual void OnRows(SessionId session, std::vector<wire::RowReport> rows) {}  // report_rows
    virtual void OnProbed(uint64_t probe, const Digest& row) {}
    // The step that ends at a stop is on its way. The pin holds what will be the state there, until the listener gives it
    // back to the ledger; it is lost when all stages forget everything (Reset).
    virtual void OnCheckpoint(SessionId session, int64_t position, PageLedger::PinId pin) {}
    // After Stop: nothing of the session is in flight any more.
    virtual void OnStopped(SessionId session) = 0;
    // No page can be had for the session's next tokens. True if the listener freed some.
    virtual bool OnStarved(SessionId session) = 0;
    virtual void OnRunFailed(SessionId session, const absl::Status& why) = 0;
  };

  Pipeline(StageGroup* stages, const LedgerConfig& ledger, const SchedulerConfig& scheduler, int max_step_tokens,
           Listener* listener);

  // --- sessions at rest
  absl::StatusOr<SessionId> Open();
  absl::StatusOr<SessionId> Fork(SessionId source, int64_t length);  // the source may be running
  absl::Status Truncate(SessionId session, int64_t length);
  // Back to a checkpoint: a new session of its tokens, or the session itself. The pin was taken of `source`, which has not
  // been cut below it since.
  absl::StatusOr<SessionId> ForkCheckpoint(SessionId source, PageLedger::PinId pin);
  void RewindToCheckpoint(SessionId source, PageLedger::PinId pin);
  void Close(SessionId session);
  // A session whose pages a restore fills; it holds `tokens` once the restore is done.
  struct Shadow {
    SessionId session = 0;
    std::vector<int32_t> pages;
    wire::StateAt state;                // of all its tokens
  };
  absl::StatusOr<Shadow> OpenShadow(std::vector<int32_t> tokens);
  void SettleShadow(SessionId session) { SendTruncate(session); }  // it is filled: exactly its tokens are held

  // What the model says after the session's tokens and one more: the digest of that logits row, to OnProbed. A scratch
  // session and page outside the capacity hold the one row; the session itself may run on. The row rides in the next step.
  void Probe(uint64_t probe, SessionId session, int32_t token);

  const std::vector<int32_t>& tokens(SessionId session) const { return sessions_.at(session).tokens; }  // fed ones
  bool Has(SessionId session) const { return sessions_.contains(session); }
  bool Running(SessionId session) const { return scheduler_.Has(session); }

  // --- running
  void Run(SessionId session, std::span<const int32_t> tokens, const RunSpec& spec);
  void Continue(SessionId session, int32_t token);
  void EndRun(SessionId session);       // at rest in OnSampled, or fed to the end without sampling
  void Stop(SessionId session);         // OnStopped follows, perhaps at once
  void Pump();                          // sends the steps that may be sent

  void OnStepDone(int stage, uint64_t seq, const wire::StepDone& done);
  void Reset();                         // the stages forgot everything: so does this

  PageLedger& ledger() { return ledger_; }
  const PageLedger& ledger() const { return ledger_; }
  int steps_in_flight() const { return scheduler_.steps_in_flight(); }

 private:
  struct Session {
    std::vector<int32_t> tokens;        // fed (issued)
    std::vector<int32_t> waiting;       // to be fed
    RunSpec spec;
    bool stopping = false;
  };
  struct InFlight {
    uint64_t seq = 0;
    Scheduler::StepPlan plan;
    std::vector<SessionId> dropped;     // slices that found no page
    uint64_t probe = 0;                 // a step of that probe's row alone; 0: none
  };
  struct WaitingProbe {
    uint64_t number = 0;
    wire::StepSlice slice;
  };

  // The new session has its place in the ledger.
  void SendFork(SessionId source, SessionId session, const PageLedger::Fork& fork);
  void SendTruncate(SessionId session);
  std::optional<wire::StepSlice> MakeSlice(const Scheduler::PlannedSlice& planned);
  void FinishStep(const InFlight& step, const wire::StepDone& done);
  void SendProbe();

  StageGroup* const stages_;
  Listener* const listener_;
  std::optional<WaitingProbe> waiting_probe_;
  PageLedger ledger_;
  Scheduler scheduler_;
  SessionId next_session_ = 1;
  std::map<SessionId, Session> sessions_;
  std::deque<InFlight> in_flight_;      // in the order sent
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_PIPELINE_H_
