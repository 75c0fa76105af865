// What the coordinator knows of a conversation: its branches with their tokens, which of them are live on the stages,
// and what the store holds of it. Plain state, changed by the engine's thread only; the files behind it are touched by
// the store thread only.
#ifndef LAYOVER_COORDINATOR_CONVERSATION_CONVERSATION_H_
#define LAYOVER_COORDINATOR_CONVERSATION_CONVERSATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/digest.h"
#include "common/storage/journal.h"
#include "coordinator/service.h"

namespace layover {

struct Turn;

// The store thread's side of a conversation.
struct ConversationFiles {
  std::unique_ptr<Journal> journal;

  struct Written {
    absl::Status status;
    int64_t turn = kNoTurn;  // the new turn's number
  };
  // Appends a prompt, to a new journal if there is none yet. A frame that the disk refused still has its turn.
  Written AppendPrompt(const std::string& store, const Journal::NewJournal& fresh, const PromptFrame& prompt);
  // The same for tokens that are held already: the turn has ended, `fed` of its path are held.
  Written AppendHeld(const std::string& store, const Journal::NewJournal& fresh, const PromptFrame& prompt, int32_t fed);
};

// What the store's newest generation holds of a branch.
struct SavedBranch {
  int64_t n_tokens = 0;          // whose state is held; 0: nothing
  std::vector<int32_t> path;     // the n_tokens ids; empty while the journal has not been read
  std::vector<ChainLink> chain;  // which segments hold its rows
  std::vector<int32_t> checkpoints;  // positions below n_tokens that it can go back to, ascending
};

// A live session can go back to this position: the ledger's pin holds what its state was there.
struct PinnedCheckpoint {
  int64_t position = 0;
  uint64_t pin = 0;
};

// One line of a conversation. A side request (a title, a sub-agent) that shares little of the trunk gets a branch of its
// own, so that it does not push the trunk out.
struct Branch {
  std::vector<int32_t> path;     // all journalled tokens, prompt and output
  int64_t fed = 0;               // tokens of path whose state existed at some time: what recomputing is counted against
  int64_t turn = kNoTurn;        // the journal's number of its last turn
  uint64_t session = 0;          // live on the stages; 0: not
  std::vector<PinnedCheckpoint> checkpoints;  // of the session, ascending; models with recurrent or sliding-window layers
  uint64_t parked = 0;           // the number of its image in the stages' RAM; 0: none
  std::vector<int32_t> parked_path;  // tokens of that image
  std::vector<int32_t> parked_checkpoints;
  int64_t parked_bytes = 0;      // of host memory, over all stages
  std::optional<Digest> parked_proof;  // the probe row after that image
  uint64_t lent = 0;             // another branch's session with the same tokens, from which this one is to be saved
  bool moving = false;           // its session is being parked, or saved to make room
  uint64_t not_parked = 0;       // the session, if a park of it failed: not tried again before the next request for it
  Turn* running = nullptr;       // the turn that extends it now
  int64_t last_used_ms = 0;      // monotonic
  SavedBranch saved;
  std::string shared_with;       // folder of the conversation whose first shared_n rows this one shares
  int64_t shared_n = 0;
};

struct Conversation {
  std::string owner;
  std::string id;                // empty: anonymous, neither journalled nor saved
  std::string folder;            // 64 hex digits
  bool loaded = false;           // the journal has been read into `branches`
  bool loading = false;
  std::shared_ptr<ConversationFiles> files;

  std::vector<std::unique_ptr<Branch>> branches;  // [0] is the trunk; never empty
  std::shared_ptr<const Manifest> manifest;       // the newest generation; null: never saved
  bool refused = false;          // a restore failed: requests do not try it again before the next save
  int64_t next_generation = 1;
  bool saving = false;
  bool save_again = false;       // a turn ended meanwhile, and the policy saves every turn
  int restoring = 0;             // how many read its image
  bool switching = false;        // a restore that was asked for will replace the trunk's session
  bool deleting = false;
  bool stuck = false;            // its image could not be given up
  int waiting_turns = 0;         // admitted or queued, not ended

  int64_t journal_bytes = 0;     // on disk
  int64_t manifest_bytes = 0;
  int64_t journalled_n = 0;      // tokens of the trunk in the journal, also while not loaded
  Digest head;                   // of the saved trunk's first page of ids: who may share it, before the journal is read
  int64_t created_at = 0;        // Unix seconds
  int64_t last_used_at = 0;
  int64_t hits = 0;              // requests since the start that reused something of it
  std::string last_error;
  std::optional<std::pair<int64_t, int64_t>> last_save;
  std::optional<Divergence> divergence;

  bool anonymous() const { return id.empty(); }
  Branch& trunk() { return *branches.front(); }
  const Branch& trunk() const { return *branches.front(); }
  bool Active() const;           // a turn runs on some branch, or waits
  bool Busy() const { return saving || restoring > 0 || switching || deleting || loading; }
  // Whether the newest generation holds state (one whose image was given up holds none).
  bool HasImage() const { return manifest != nullptr && manifest->n_tokens > 0; }
  // The newest generation, and the ids that its trunk begins with.
  void TakeManifest(std::shared_ptr<const Manifest> newest, std::span<const int32_t> trunk_ids);
  int64_t MetaBytes() const;     // of journal, manifest and folder, in whole blocks
  int64_t OwnBytes() const;      // of the segments in its own folder that the manifest names
};

// What `show` lists.
std::vector<SegmentInfo> SegmentsOf(const Manifest& manifest);

// Tokens that two sequences share from their beginning.
int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b);

// A record is proved by all of its ids, and none crosses a page. So what a prompt shares with a saved branch is read up to
// the end of the last page that it touches (and cut afterwards) ...
int64_t RowsToRead(const SavedBranch& saved, std::span<const int32_t> prompt);
// ... and another image can name what it shares as a whole, or up to a page's beginning.
int64_t RowsToName(const SavedBranch& saved, std::span<const int32_t> path);

// At which positions a model can go on. Attention over everything can be cut anywhere; recurrent state and sliding
// windows exist where they were kept only.
enum class CutAt { kAnywhere, kCheckpoints };

// The deepest position <= `common` from which it is possible to go on, of what holds `length` tokens and checkpoints.
int64_t DeepestState(CutAt cut, int64_t common, int64_t length, std::span<const int32_t> checkpoints);
std::vector<int32_t> PositionsOf(const std::vector<PinnedCheckpoint>& checkpoints);

// How a prompt is served from what a conversation holds (invariant 9: an id is a hint; only equal tokens are reused).
// The deepest source wins; live before parked before saved where they are equal.
struct ReusePlan {
  enum class Source { kNone, kLive, kParked, kSaved };

  Branch* branch = nullptr;      // whose path the prompt follows furthest; null: none shares anything
  int64_t common = 0;            // tokens of branch->path that the prompt begins with
  Source source = Source::kNone;
  Branch* from = nullptr;        // whose state is used: usually `branch`
  int64_t n = 0;                 // tokens reused
  bool fork = false;             // the branch is running, or the prompt leaves it early: work on a session of its own
};

// `live_tokens(branch)`: tokens of the branch's live session. The last token of a prompt is always fed again, so that
// there are logits: reuse ends one before it.
// `live_only`: nothing parked or saved is looked at.
ReusePlan PlanReuse(const Conversation& conversation, std::span<const int32_t> prompt, CutAt cut, bool live_only,
                    const std::function<std::span<const int32_t>(const Branch&)>& live_tokens);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CONVERSATION_CONVERSATION_H_
