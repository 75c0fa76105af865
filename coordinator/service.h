// What the HTTP side may ask of the engine: the one seam between them. HTTP threads call it; the engine answers through
// callbacks on its own thread, so a callback must not block and must not call back into the service synchronously,
// except CancelGeneration.
//
// Ownership: `owner` is the name of the API key ("" without keys); another owner's conversations do not exist for it.
#ifndef LAYOVER_COORDINATOR_SERVICE_H_
#define LAYOVER_COORDINATOR_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/storage/store_layout.h"
#include "common/wire/sampler_spec.h"

namespace layover {

// ------------------------------------------------------------------------------------------------------ generation

struct GenerationRequest {
  std::string owner;
  std::string conversation_id;       // empty: anonymous, found again by its longest prefix
  std::vector<int32_t> prompt;       // at least one id, fewer than the context
  // The ids are those of a rendered chat: where the conversation holds others that say the same, those are used.
  bool is_rendered = false;
  // What the chat's template took for now, Unix seconds: a conversation that begins here began then. 0: the clock.
  int64_t now_unix_s = 0;
  SamplerSpec sampler;               // seed already drawn
  int64_t max_tokens = -1;           // -1: to the end of the context; 0: read the prompt only
  bool ignore_eos = false;
  bool cache_prompt = true;          // false: read everything anew and keep nothing
  int top_logprobs = -1;             // -1: none; 0..20
  bool row_digests = false;
  // -1: any. Without a conversation id: the turn works in this slot (SlotInfo), reuses what the slot holds as far as
  // the prompt agrees with it, and waits while another turn runs there. With an id: only where a new session is put.
  int id_slot = -1;
  // For the journal: what the user typed last, and a digest of the canonical messages.
  std::string raw_text;
  Digest message_digest;
  // Length of the common prefix of the renders with and without the generation prompt; -1: unknown.
  int64_t history_n = -1;
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;                                        // when top_logprobs >= 0
  std::vector<std::pair<int32_t, float>> top_logprobs;      // highest first
  Digest row;                                               // when row_digests
};

enum class FinishReason { kStop, kLength };

struct Timings {
  int64_t cache_n = 0;       // reused from any tier
  int64_t restored_n = 0;    // the part of cache_n read from disk for this request
  int64_t recomputed_n = 0;  // journalled tokens fed again
  int64_t prompt_n = 0;      // the rest: cache_n + recomputed_n + prompt_n are the tokens of the prompt as it was read
  int64_t predicted_n = 0;
  double prompt_ms = 0;
  double predicted_ms = 0;
  double restore_ms = 0;
  double queue_ms = 0;
};

// Told of one generation, in this order: OnStarted, OnProgress*, OnToken*, then one of OnFinished and OnFailed.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void OnStarted(const Timings& timings) {}                    // the reuse is decided
  virtual void OnProgress(int64_t prompt_done, int64_t prompt_total) {}
  // False: a stop string was met with this token; the generation ends as kStop.
  virtual bool OnToken(const GeneratedToken& token) = 0;
  virtual void OnFinished(FinishReason reason, const Timings& timings) = 0;
  virtual void OnFailed(const absl::Status& status) = 0;               // before or after tokens
};

using GenerationId = uint64_t;

// --------------------------------------------------------------------------------------------------- conversations

struct StageBytes {
  int stage = 0;
  int layer_begin = 0;
  int layer_end = 0;
  int64_t bytes_written = 0;
  int64_t bytes_kept = 0;
  int64_t bytes_read = 0;
  int64_t ms = 0;
};

struct SegmentInfo {
  std::string file;
  int stage = 0;
  int64_t generation = 0;
  int layer_begin = 0;
  int layer_end = 0;
  int64_t bytes = 0;
  int64_t live_bytes = 0;
};

struct Divergence {
  int64_t position = 0;
  std::vector<int32_t> had;  // ids around the position, as held
  std::vector<int32_t> got;  // and as asked
};

enum class ConversationState { kActive, kIdle, kParked, kSaved, kSaving, kRestoring };

struct BranchInfo {
  int64_t n_tokens = 0;              // journalled
  int64_t fork_position = 0;         // tokens shared with the branch that it left; 0: the trunk
  int64_t saved_n_tokens = 0;
  ConversationState state = ConversationState::kIdle;
  std::vector<int64_t> checkpoints;  // positions it can go back to besides its end, ascending, in whatever tier
};

struct ConversationInfo {
  std::string id;
  ConversationState state = ConversationState::kIdle;
  int64_t n_tokens = 0;        // journalled
  int64_t saved_n_tokens = 0;
  int64_t generation = 0;      // 0: never saved
  int64_t bytes_device = 0;
  int64_t bytes_host = 0;
  int64_t bytes_disk = 0;
  int branches = 1;
  bool pinned = false;
  int64_t created_at = 0;      // Unix seconds
  int64_t last_used_at = 0;
  std::string identity;        // hex of the combined identity digest
  std::string last_error;
  // Only in `show`:
  std::vector<BranchInfo> branch_list;  // the trunk first
  std::vector<SegmentInfo> segments;
  std::optional<std::pair<int64_t, int64_t>> last_save;  // bytes written, bytes kept
  std::optional<Divergence> divergence;
};

struct ConversationPage {
  std::vector<ConversationInfo> data;
  std::string next;            // id to go on after; empty at the end
};

struct SaveResult {
  std::string id;
  int64_t generation = 0;
  int64_t n_tokens = 0;
  int64_t bytes_written = 0;
  int64_t bytes_kept = 0;
  int64_t ms = 0;
  std::vector<StageBytes> stages;
};

struct RestoreResult {
  std::string id;
  int64_t generation = 0;
  int64_t n_tokens = 0;
  int64_t bytes_read = 0;
  int64_t ms = 0;
  std::optional<std::string> proof;      // "bit-exact" | "state exact, arithmetic differs"
  std::vector<std::string> warnings;
  std::vector<StageBytes> stages;
};

struct ParkResult {
  std::string id;
  int64_t bytes_host = 0;
};

struct RewindResult {
  std::string id;
  int64_t n_tokens = 0;
};

struct VerifyResult {
  std::string id;
  bool ok = true;
  int64_t generation = 0;
  int64_t n_records = 0;
  int64_t bytes = 0;
  std::vector<VerifyProblem> problems;
};

struct TransferProgress {
  std::string verb;            // "save" | "restore"
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  struct Stage {
    int stage = 0;
    int64_t bytes_done = 0;
    int64_t bytes_total = 0;
  };
  std::vector<Stage> stages;
};
using ProgressCallback = std::function<void(const TransferProgress&)>;  // may be empty

// ---------------------------------------------------------------------------------------------------------- health

struct StageHealth {
  int stage = 0;
  int pid = 0;
  std::string device;
  int layer_begin = 0;
  int layer_end = 0;
  std::string state;           // "up" | "restarting" | "down"
  int64_t last_step = 0;
};

struct HealthReport {
  std::string status;          // "ok" | "loading" | "degraded" | "draining"
  std::vector<StageHealth> stages;
};

// A slot is a place for one live session. A session keeps its slot until it is parked, evicted or dropped.
struct SlotInfo {
  int id = 0;                  // [0, ServedModel::sessions)
  bool is_processing = false;  // a turn runs in it
  int64_t n_tokens = 0;        // whose state is held here, idle or not; 0: empty
  int64_t task = -1;           // GenerationId of the turn that runs or ran last in it; -1: none
  int64_t n_decoded = 0;       // generated by that turn
  int64_t n_remain = -1;       // that it may still generate; -1: to the end of the context
};

// What does not change while serving.
struct ServedModel {
  std::string id;              // file name without folder and ".gguf": what /v1/models calls it
  std::string path_leaf;
  int64_t context = 0;         // per conversation
  int64_t context_train = 0;
  int64_t n_vocab = 0;
  int64_t n_params = 0;
  int64_t bytes = 0;
  int sessions = 0;
  int stages = 0;
  std::string kv_type;
  int64_t created_at = 0;      // Unix seconds, the process's start
};

// ---------------------------------------------------------------------------------------------------------- service

template <typename T>
using Callback = std::function<void(absl::StatusOr<T>)>;
using DoneCallback = std::function<void(absl::Status)>;

class Service {
 public:
  virtual ~Service() = default;

  virtual const ServedModel& model() const = 0;
  // Snapshots behind a lock; never queued behind work.
  virtual HealthReport Health() const = 0;
  virtual std::vector<SlotInfo> Slots() const = 0;
  // When the conversation began, Unix seconds, for templates that write the date: a date that moved on would change the
  // beginning of everything that is held. 0: there is no such conversation.
  virtual int64_t BeganAt(const std::string& owner, const std::string& id) const = 0;

  // Unavailable (loading, draining, queue full) comes through OnFailed. The observer is released after its last call.
  virtual GenerationId Generate(GenerationRequest request, std::shared_ptr<GenerationObserver> observer) = 0;
  // The client is gone: nothing more is issued for it; what was read stays with its conversation.
  virtual void CancelGeneration(GenerationId id) = 0;

  virtual void List(std::string owner, std::string after, int limit, Callback<ConversationPage> done) = 0;
  virtual void Show(std::string owner, std::string id, Callback<ConversationInfo> done) = 0;
  virtual void Delete(std::string owner, std::string id, DoneCallback done) = 0;
  virtual void Save(std::string owner, std::string id, ProgressCallback progress, Callback<SaveResult> done) = 0;
  virtual void Restore(std::string owner, std::string id, bool prove, ProgressCallback progress,
                       Callback<RestoreResult> done) = 0;
  virtual void Verify(std::string owner, std::string id, Callback<VerifyResult> done) = 0;
  // Aborted: active. ResourceExhausted: it is larger than the RAM budget.
  virtual void Park(std::string owner, std::string id, Callback<ParkResult> done) = 0;
  // `new_id` shares everything of `id` by reference. AlreadyExists: `new_id` does. Aborted: `id` is in a transfer.
  virtual void Fork(std::string owner, std::string id, std::string new_id, Callback<ConversationInfo> done) = 0;
  // The trunk is cut to its first `to` tokens. InvalidArgument (param "to"): past the end. Aborted: active.
  virtual void Rewind(std::string owner, std::string id, int64_t to, Callback<RewindResult> done) = 0;

  // llama-server's slot actions; `slot` is in [0, model().sessions). What another owner holds in a slot is treated as
  // if the slot were empty.

  // Saves what the slot holds as conversation `id`, which is made if there is none. One that exists takes the slot's
  // tokens in as a prompt with them would be: they become its trunk, what it held stays as a branch, its journal loses
  // nothing, and only what is new is written. If the slot's session is a branch of `id` itself, this is Save. The slot
  // keeps its session; `id` is left on disk without one. May run while a turn runs in the slot: it is a cut.
  // n_tokens: those held in the slot at the cut. After any failure `id` is as it was; one just made is gone again.
  // InvalidArgument: the slot is empty. Aborted: `id` is active or in a transfer. Unimplemented: no store. Otherwise as
  // Save.
  virtual void SaveSlot(std::string owner, int slot, std::string id, Callback<SaveResult> done) = 0;
  // Reads the saved trunk of `id` into the slot as an anonymous session, so that nothing done there later changes `id`.
  // The slot's old session goes when all stages have verified, as an eviction would take it; on failure it stays.
  // NotFound: nothing is saved as `id`. Aborted: a turn runs in the slot. Unimplemented: no store. Otherwise as
  // Restore.
  virtual void RestoreSlot(std::string owner, int slot, std::string id, Callback<RestoreResult> done) = 0;
  // Lets the slot's session go; the value is the tokens it held, 0 if it was empty. Only live state is lost: journal,
  // parked and saved images stay. Aborted: a turn runs in the slot.
  virtual void EraseSlot(std::string owner, int slot, Callback<int64_t> done) = 0;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_SERVICE_H_
