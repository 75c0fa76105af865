// One request on its way through the engine.
#ifndef LAYOVER_COORDINATOR_TURN_H_
#define LAYOVER_COORDINATOR_TURN_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/storage/journal.h"
#include "coordinator/conversation/conversation.h"
#include "coordinator/service.h"

namespace layover {

enum class TurnPhase {
  kQueued,       // waits for its conversation to load, for a place, or for the stages
  kJournalling,  // its prompt is being synced
  kRestoring,    // its conversation is being read from the store
  kRunning,      // its tokens go through the stages
  kStopping,     // cancelled; steps are still in flight
  kEnding,       // the end is being synced
};

struct Turn {
  using Clock = std::chrono::steady_clock;

  // What was asked; constant.
  GenerationId id = 0;
  GenerationRequest request;
  std::shared_ptr<GenerationObserver> observer;  // null: nobody listens (any more)

  // Where it is.
  TurnPhase phase = TurnPhase::kQueued;
  std::shared_ptr<Conversation> conversation;    // set when first looked at
  Branch* branch = nullptr;                      // while it holds one
  uint64_t session = 0;                          // while it has one
  // The deepest source of its state; parked and saved ones are brought back before it runs.
  ReusePlan::Source source = ReusePlan::Source::kNone;
  std::shared_ptr<Conversation> source_conversation;
  Branch* source_branch = nullptr;
  int64_t source_n = 0;
  bool reserves_place = false;                   // what is brought back will need a session
  bool live_only = false;                        // something could not be brought back: it is not tried again
  bool journalled = false;                       // its prompt is in the journal
  bool resumed = false;                          // a stage was lost on the way; already started
  bool cancelled = false;
  absl::Status failure;                          // why it stops, if not by itself

  // What has come of it.
  std::vector<int32_t> output;                   // sampled ids, the end token included
  int64_t journal_turn = kNoTurn;
  std::vector<int32_t> unjournalled;             // sampled, not yet handed to the journal
  bool journal_busy = false;                     // an append is on its way
  FinishReason finish = FinishReason::kStop;
  Timings timings;
  Clock::time_point arrived = Clock::now();
  Clock::time_point admitted;
  Clock::time_point first_token;
  Clock::time_point last_token;

  // The tokens that must have been fed before the next one is drawn.
  std::vector<int32_t> Target() const {
    std::vector<int32_t> target = request.prompt;
    target.insert(target.end(), output.begin(), output.end());
    return target;
  }
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TURN_H_
