// The journal of a conversation: every token and turn, in a chain of checksummed frames that is only appended to.
// docs/storage_format.md has the bytes and the exact rule for a torn tail.
//
// What must stay true: a prompt is on disk before AppendPrompt returns; a turn is on disk when AppendTurnEnd returns;
// nothing that could be damage is ever mended silently.
//
// If an append fails, its frame stays in memory and goes first when writing works again: the call returns the error so
// that it can be counted, and the chat goes on. Not thread-safe.
#ifndef LAYOVER_COMMON_STORAGE_JOURNAL_H_
#define LAYOVER_COMMON_STORAGE_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/storage/manifest.h"

namespace layover {

inline constexpr uint32_t kJournalVersion = 1;
inline constexpr int64_t kNoTurn = -1;

enum class TurnEnd : uint32_t {
  kStop = 1,  // the end token or a stop string
  kLength = 2,
  kCancelled = 3,  // the client went away
  kError = 4,
  kUnfinished = 5,  // the server was shut down
};

// A turn as the journal knows it. Its path is the parent's path cut at fork_position, then prompt, then generated.
struct JournalTurn {
  int64_t number = 0;  // position in JournalState::turns
  int64_t parent = kNoTurn;
  int32_t fork_position = 0;       // tokens [0, fork_position) are the parent's path
  int64_t time_ms = 0;             // Unix
  std::vector<int32_t> prompt;     // ids from fork_position on
  std::vector<int32_t> generated;  // sampled ids, the end token included
  std::string text;                // raw text of the prompt part
  Digest message_hash;             // of the canonical messages that the prompt ends with
  bool ended = false;
  TurnEnd end = TurnEnd::kUnfinished;
  int32_t fed = 0;  // tokens of the path whose state existed when the turn ended; see HeldLength
  std::string reply_text;
  Digest reply_hash;  // of the canonical reply message
  int32_t length() const { return fork_position + static_cast<int32_t>(prompt.size() + generated.size()); }
};

struct SavingFrame {
  int64_t generation = 0;
  Digest manifest;
};

// Everything that a journal says.
struct JournalState {
  std::string owner;
  std::string id;
  int64_t created_at_ms = 0;
  std::vector<JournalTurn> turns;
  int64_t trunk = kNoTurn;           // the turn extended last
  int32_t trunk_length = 0;          // its path's length, or where a rewind cut it
  std::optional<SavingFrame> saved;  // the last `saved`
  std::vector<SavingFrame> savings;  // every `saving` after it
  int64_t highest_generation = 0;    // of any frame
  bool deleted = false;

  std::vector<int32_t> PathIds(int64_t turn) const;  // all of the turn's path
  std::vector<int32_t> PathIds(int64_t turn, int32_t length) const;
  std::vector<int32_t> TrunkIds() const;
  // Tokens of the path that were fed when it was last worked on: a sampled token not yet fed is journalled, not held.
  // Where the turn never ended (a crash), all but a last generated one.
  int32_t HeldLength(int64_t turn) const;
  // A turn whose path has these first `length` tokens; kNoTurn if there is none. How a manifest's branch is found.
  int64_t FindTurn(int32_t length, const Digest& prefix) const;
  // Whether this manifest may be used: it is the last `saved`, or any `saving` after it.
  bool Accepts(int64_t generation, const Digest& manifest) const;
};

struct PromptFrame {
  int64_t parent = kNoTurn;
  int32_t fork_position = 0;
  int64_t time_ms = 0;
  std::span<const int32_t> ids;
  std::string_view text;
  Digest message_hash;
};

struct TurnEndFrame {
  int64_t turn = 0;
  TurnEnd end = TurnEnd::kStop;
  int32_t fed = 0;
  std::string_view text;
  Digest reply_hash;
};

class Journal {
 public:
  struct NewJournal {
    std::string owner;
    std::string id;
    int64_t time_ms = 0;
    uint64_t salt = 0;  // 0: drawn at random
  };
  // Makes STORE/c/FOLDER (if need be) and its journal, synced up to `c/`. A journal that ends with `deleted` is
  // replaced; any other is AlreadyExists.
  static absl::StatusOr<std::unique_ptr<Journal>> Create(const std::string& store, const NewJournal& fresh);
  // Replays `folder`/journal, mends a torn tail (and says so in torn_bytes()) and is ready to append. `bound`: what the
  // manifest says must be there. DataLoss for damage, NotFound if there is none.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& folder,
                                                       const std::optional<JournalBound>& bound);

  // The same without changing anything: for offline verbs and verify.
  struct Inspection {
    JournalState state;
    JournalBound end;         // of the good frames
    uint64_t torn_bytes = 0;  // that Open would cut off
  };
  static absl::StatusOr<Inspection> Inspect(const std::string& folder, const std::optional<JournalBound>& bound);

  virtual ~Journal() = default;
  virtual const JournalState& state() const = 0;
  // The end of what is written, and synced if the last frame is one of the synced kinds: what a manifest binds.
  virtual JournalBound bound() const = 0;
  virtual uint64_t torn_bytes() const = 0;
  virtual uint64_t pending_bytes() const = 0;  // of frames that could not be written yet; 0 is well

  // Each takes its frame into state() also when it returns an error of the disk: the frame waits in memory and will be
  // written later. Unavailable (too much is waiting) and InvalidArgument: the frame was not taken.
  virtual absl::Status AppendPrompt(const PromptFrame& prompt) = 0;  // synced; the turn is state().turns.back()
  virtual absl::Status AppendGenerated(int64_t turn, std::span<const int32_t> ids) = 0;  // not synced
  virtual absl::Status AppendTurnEnd(const TurnEndFrame& end) = 0;                       // synced
  virtual absl::Status AppendRewind(int64_t turn, int32_t length) = 0;                   // synced
  // Synced, after everything that waits; an error leaves no frame, and the save must be aborted.
  virtual absl::Status AppendSaving(int64_t generation, const Digest& manifest) = 0;
  virtual absl::Status AppendSaved(int64_t generation, const Digest& manifest) = 0;  // synced
  virtual absl::Status AppendDeleted() = 0;                                          // synced, or an error and no frame
  // Tries what waits, then syncs. For shutdown.
  virtual absl::Status Flush() = 0;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_JOURNAL_H_
