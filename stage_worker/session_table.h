// The sessions of one stage: the tokens that each has been fed, the pages and the slot that hold them. A mirror of the
// coordinator's ledger, changed only by ordered messages, so that every stage agrees at every cut.
#ifndef LAYOVER_STAGE_WORKER_SESSION_TABLE_H_
#define LAYOVER_STAGE_WORKER_SESSION_TABLE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/messages.h"
#include "stage_worker/kv_pages.h"
#include "stage_worker/recurrent_state.h"

namespace layover {

struct StageSession {
  std::vector<int32_t> tokens;  // all that have been fed; its size is the session's length
  std::vector<int32_t> pages;   // page table: tokens [64 j, 64 j + 64) lie in pages[j]
  // The same of sliding windows; models that have them. Entries out of the window stay behind and mean nothing.
  std::vector<int32_t> window_pages;
  int32_t state_slot = -1;      // recurrent state after all tokens; -1: none yet, or no such model
};

// Errors are Internal: the coordinator and this stage disagree, which no request can cause; the worker faults.
class SessionTable {
 public:
  SessionTable(const KvPages& pages, const RecurrentState& states, Stream& stream)
      : pages_(pages), states_(states), stream_(stream) {}

  absl::Status Open(uint64_t id);
  absl::Status Fork(const wire::ForkSession& fork);
  absl::Status Truncate(const wire::TruncateSession& cut);
  absl::Status Close(uint64_t id);
  // A restored session enters whole.
  absl::Status Adopt(uint64_t id, StageSession session);
  // Takes a slice's pages, slot and tokens in; the rows and the state themselves are written by the step.
  absl::Status Extend(const wire::StepSlice& slice);

  const StageSession* Find(uint64_t id) const;
  void Clear() { sessions_.clear(); }

 private:
  absl::Status CheckPages(LayerKind kind, const std::vector<int32_t>& pages) const;
  absl::Status CheckState(const wire::StateAt& state, int64_t length) const;
  // Zeroes new pages and makes the copies of one class; the table names the copies from then on.
  absl::Status Grow(LayerKind kind, const std::vector<int32_t>& new_pages, const std::vector<wire::PageCopy>& copies,
                    std::vector<int32_t>* table);

  const KvPages& pages_;
  const RecurrentState& states_;
  Stream& stream_;
  std::map<uint64_t, StageSession> sessions_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_SESSION_TABLE_H_
