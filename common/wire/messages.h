// Everything that a stage worker can be told and everything that it can say: one struct a message, plain data.
//
// Order: the coordinator numbers what it sends (Envelope::seq) in one sequence for all stages. Messages marked ORDERED
// are acted upon strictly in that order, each after the one before it; the others act at once. An activation frame on
// the data link carries the seq of the step it belongs to. `epoch` rises whenever any stage was restarted: whoever
// receives another epoch's message drops it. docs/wire_protocol.md has the byte layout.
#ifndef LAYOVER_COMMON_WIRE_MESSAGES_H_
#define LAYOVER_COMMON_WIRE_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/topology.h"
#include "common/wire/link_end.h"
#include "common/wire/sampler_spec.h"

namespace layover::wire {

// Raised when a message changes shape; a worker of another version is refused at Hello.
inline constexpr uint32_t kProtocolVersion = 3;

// ------------------------------------------------------------------------------------------- coordinator -> worker

// The first message: what this worker is. Answered by Ready or Fault.
struct Configure {
  int32_t stage = 0;
  int32_t n_stages = 1;
  std::string model;               // path of the first GGUF file
  int32_t layer_begin = 0;         // [begin, end)
  int32_t layer_end = 0;
  std::string device;              // "cpu", "cuda:N", "emu:N"
  int32_t threads = 1;
  std::string kv_type;
  int32_t context = 0;             // tokens
  int32_t n_pages = 0;             // of the full-attention class
  int32_t n_window_pages = 0;
  int32_t n_slots = 0;             // recurrent state slots
  int32_t max_step_tokens = 0;     // most rows of a step
  LinkKind link_in = LinkKind::kAuto;   // of the hop from the stage before, and to the stage after; kAuto: there is none
  LinkKind link_out = LinkKind::kAuto;
  DataEnd data_in;                 // activations from the stage before; only of zmq
  DataEnd data_out;                // to the stage after
  std::string host;                // as the topology says; empty: the coordinator's machine
  std::string store_id;            // a remote stage keeps this store's segments in a folder of that name; empty: no store
  std::string store;               // the coordinator's own folder
  std::vector<FileEnd> file_ends;
};

// A new epoch: forget every session, every pending message and every frame of older epochs. Told again in the same epoch
// it only forgets sessions and messages.
struct Reset {
  RingAddress ring_in;             // of this epoch; the hop from the stage before, and the one to the stage after
  RingAddress ring_out;
};

struct Shutdown {};

// dst becomes a copy of src's rows [0, rows), zero from there.
struct PageCopy {
  int32_t src = 0;
  int32_t dst = 0;
  int32_t rows = 0;
};

// What a session, a save or a checkpoint holds beside full-attention pages: enough to go on at `position` without the
// tokens before it. Models without recurrent and sliding-window layers leave slot and pages empty.
struct StateAt {
  int64_t position = 0;
  int32_t slot = -1;                    // recurrent and convolution state after `position` tokens; -1: none
  std::vector<int32_t> window_pages;    // the sliding-window page table; entries out of the window may be -1
};

// ORDERED. A new, empty session.
struct OpenSession {
  uint64_t session = 0;
};

// ORDERED. `session` becomes `source` cut at `length` tokens; its page tables are given, `copies` fill pages of its own.
// The state is what source had at `length`: its own, or a checkpoint's.
struct ForkSession {
  uint64_t source = 0;
  uint64_t session = 0;
  int64_t length = 0;
  std::vector<int32_t> pages;
  std::vector<PageCopy> copies;
  StateAt state;
  std::vector<PageCopy> window_copies;
};

// ORDERED. Tokens from `length` on are forgotten; the page table keeps its first `n_pages` entries, the state becomes
// the one given.
struct TruncateSession {
  uint64_t session = 0;
  int64_t length = 0;
  int32_t n_pages = 0;
  StateAt state;
};

// ORDERED.
struct CloseSession {
  uint64_t session = 0;
};

// What the last stage does with a slice's rows.
enum class RowWish : uint8_t {
  kNone,    // a chunk whose end is not the prompt's end
  kSample,  // sample after the last row
  kReport,  // report every row (`layover logits`)
  kDigest,  // the digest of the last row only (a probe)
};

// Tokens [begin, begin + tokens.size()) of one session.
struct StepSlice {
  uint64_t session = 0;
  int64_t begin = 0;                    // equals the session's length so far
  std::vector<int32_t> tokens;
  std::vector<int32_t> new_pages;       // appended to the page table first
  std::vector<PageCopy> copies;         // pages of the table replaced by copies of their own: copy on write
  std::vector<int32_t> new_window_pages;  // the same of the sliding-window class
  std::vector<PageCopy> window_copies;
  int32_t state_from = -1;              // slot of the session's state at `begin`; -1: the zero state, at 0 only
  int32_t state_to = -1;                // slot that takes the state after the slice; -1: no recurrent layer
  RowWish wish = RowWish::kNone;
  SamplerSpec sampler;                  // kSample
  int64_t output_begin = 0;             // kSample: position of the first output token, for the penalties
  int32_t top_logprobs = -1;            // kSample: -1 none; kReport: how many
  bool row_digest = false;
  bool raw_rows = false;                // kReport: send the float32 rows too
  int32_t next_token = -1;              // kReport: what follows the slice; -1 at the text's end
};

// ORDERED. One micro-batch.
struct Step {
  std::vector<StepSlice> slices;
};

// Which segment files hold what a restore needs, in the manifest's words.
struct SegmentRef {
  std::string path;
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  int64_t generation = 0;
  int64_t bytes = 0;
  Digest index_digest;
  std::string folder;                   // 64 hex digits: the conversation folder it was written for
  std::string host;                     // of the remote stage that keeps it; empty: the coordinator's store
};

// One branch of a save: rows [base, n_tokens) of the session are written, those below are in older segments already.
// base is a multiple of 64 or where an older save ended. The state at n_tokens and the checkpoints are written too, each
// with the window rows from `window_base` on that it stands on. Where the model has recurrent or sliding-window layers,
// n_tokens is the session's length, or the position of a state that the image holds.
struct BranchCut {
  int32_t branch = 0;
  uint64_t session = 0;                 // live; 0: the parked image `park`
  uint64_t park = 0;
  int64_t n_tokens = 0;
  int64_t base = 0;
  int64_t window_base = 0;
  std::vector<StateAt> checkpoints;     // ascending, below n_tokens; of an image the positions alone count
};

// ORDERED: the cut. The worker notes the sessions' pages, tokens and state at this point, goes on with its steps, and
// writes in the background. Answered by SaveReceipt. The pages may be appended to but not changed below n_tokens until
// the coordinator has that answer.
struct SaveSession {
  uint64_t save = 0;                    // number of this save
  std::vector<BranchCut> branches;      // the trunk first
  std::string directory;                // STORE/c/FOLDER; the stage names its own file in it
  std::string folder;                   // 64 hex digits
  int64_t generation = 0;
  Digest identity;
};

// The save came to nothing: the worker unlinks what it wrote. Answered by SaveReceipt{cancelled} if none was sent yet.
struct AbortSave {
  uint64_t save = 0;
  std::string path;
};

// ORDERED. A new session filled from segments in the background, into pages nobody else uses. Answered by
// RestoreReceipt; only then may steps name the session.
struct RestoreSession {
  uint64_t restore = 0;
  uint64_t session = 0;
  std::vector<int32_t> tokens;          // [n_tokens]; the records must carry their digests
  std::vector<int32_t> pages;
  StateAt state;                        // where the state goes; below n_tokens: the session is cut to it before it is fed
  std::vector<StateAt> checkpoints;     // to be filled as well; where two tables name one page, its rows agree
  std::vector<SegmentRef> segments;
  std::string folder;
  Digest identity;
};

// ORDERED: a cut. The session's state is copied to host memory in the background, as one image of that number. Answered by
// ParkReceipt; until then its pages may not change below its length.
struct ParkSession {
  uint64_t park = 0;
  uint64_t session = 0;
  std::vector<StateAt> checkpoints;     // of the session, kept with it
};

// ORDERED. A new session of the image's first n_tokens, filled in the background into pages nobody else uses. The image
// stays. Answered by RestoreReceipt, like a restore.
struct UnparkSession {
  uint64_t restore = 0;
  uint64_t park = 0;
  uint64_t session = 0;
  int64_t n_tokens = 0;
  std::vector<int32_t> pages;
  StateAt state;                        // where the image's state at n_tokens goes
  std::vector<StateAt> checkpoints;     // below n_tokens, to be filled as well
};

// ORDERED. The image is no longer needed; a save that reads it may finish.
struct DropPark {
  uint64_t park = 0;
};

// To a remote stage: segments of its own store, FOLDER/FILE, that nothing needs any more.
struct RemoveSegments {
  std::vector<std::string> files;
};

// To a remote stage whose worker is new: what was there before it and is not named here goes. FOLDER/FILE.
struct SweepSegments {
  std::vector<std::string> keep;
};

// To a listening machine (`layover-stage --listen`), which starts a worker of this epoch and passes everything else on to
// it. Answered by that worker's Hello, by Occupied, or by WorkerEnded.
struct Attach {
  uint32_t protocol = kProtocolVersion;
  int32_t stage = 0;
  uint64_t coordinator = 0;        // a number of its own: after a broken connection the same one takes its place again
};

// To a listening machine: the coordinator lives. Sent every limits::kHeartbeatIntervalMs.
struct KeepAlive {};

using ToStage = std::variant<Configure, Reset, Shutdown, OpenSession, ForkSession, TruncateSession, CloseSession, Step,
                             SaveSession, AbortSave, RestoreSession, ParkSession, UnparkSession, DropPark, Attach,
                             KeepAlive, RemoveSegments, SweepSegments, JoinHop>;

// ------------------------------------------------------------------------------------------- worker -> coordinator

struct Hello {
  uint32_t protocol = kProtocolVersion;
  int32_t stage = 0;
  int32_t pid = 0;
};

struct Ready {
  int32_t stage = 0;
  std::vector<std::pair<int32_t, Digest>> layer_digests;  // layer -> weights; -1 embedding, -2 head
  std::string numerics;                                   // the device's fingerprint
  int64_t weight_bytes = 0;
  int64_t load_ms = 0;
  Digest arch;                                            // of the model file that was opened (model_identity.h)
  Digest rope;
};

// A failed load, or a failure that leaves the worker unusable; it exits after it.
struct Fault {
  int32_t stage = 0;
  int32_t code = 0;                     // absl::StatusCode
  std::string message;
};

struct RowReport {
  int64_t position = 0;                 // of the row; the sampled token stands at position + 1
  int32_t token = -1;                   // kSample: the sampled id
  float logprob = 0;                    // kSample: of it; kReport: of the token that follows in the input
  std::vector<std::pair<int32_t, float>> top;
  Digest digest;                        // of the float32 row, when asked
  std::string raw;                      // the float32 row, when asked
};

struct SliceResult {
  uint64_t session = 0;
  std::vector<RowReport> rows;
};

// From every stage for every step; `results` only from the last.
struct StepDone {
  int32_t stage = 0;
  std::vector<SliceResult> results;
  int64_t compute_us = 0;
};

struct WireStatus {
  int32_t code = 0;                     // absl::StatusCode; 0 is well
  std::string message;
  std::string file;
  std::string field;
};

struct SaveReceipt {
  int32_t stage = 0;
  uint64_t save = 0;
  WireStatus status;
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  int64_t n_tokens = 0;                 // of the trunk
  Digest prefix;                        // of its token ids [0, n_tokens)
  int64_t bytes = 0;                    // of the segment file
  int64_t payload_bytes = 0;
  int64_t n_records = 0;
  Digest index_digest;
  int64_t ms = 0;
};

struct RestoreReceipt {
  int32_t stage = 0;
  uint64_t restore = 0;
  WireStatus status;
  int64_t n_tokens = 0;
  Digest prefix;
  int64_t bytes_read = 0;
  int64_t ms = 0;
};

struct ParkReceipt {
  int32_t stage = 0;
  uint64_t park = 0;
  WireStatus status;
  int64_t bytes = 0;                    // of host memory
  int64_t ms = 0;
};

// While a save or restore runs, every few megabytes.
struct TransferTick {
  int32_t stage = 0;
  uint64_t number = 0;                  // save or restore
  bool restore = false;
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};

// Every limits::kHeartbeatIntervalMs from a thread of its own; `progress` rises whenever a layer of a step is computed.
struct Heartbeat {
  int32_t stage = 0;
  uint64_t last_seq = 0;
  uint64_t progress = 0;
};

// From a listening machine: its worker is no more, or could not be started.
struct WorkerEnded {
  int32_t stage = 0;
  std::string message;
};

// From a listening machine: another coordinator has it. It may be asked again.
struct Occupied {
  int32_t stage = 0;
};

using FromStage = std::variant<Hello, Ready, Fault, StepDone, SaveReceipt, RestoreReceipt, ParkReceipt, TransferTick,
                               Heartbeat, WorkerEnded, Occupied, HopOffered, HopJoined>;

// ------------------------------------------------------------------------------------------------------------ codec

struct Envelope {
  uint32_t epoch = 0;
  uint64_t seq = 0;                     // 0 where a message has none
};

std::string Encode(const Envelope& envelope, const ToStage& message);
std::string Encode(const Envelope& envelope, const FromStage& message);

// DataLoss for anything that is not exactly one well-formed message within the limits.
absl::Status Decode(std::string_view bytes, Envelope* envelope, ToStage* message);
absl::Status Decode(std::string_view bytes, Envelope* envelope, FromStage* message);

WireStatus ToWire(const absl::Status& status);
absl::Status FromWire(const WireStatus& status, int stage);

}  // namespace layover::wire

#endif  // LAYOVER_COMMON_WIRE_MESSAGES_H_
