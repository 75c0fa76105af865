// Every bound of the product, in one place, with how they relate (invariant 10: bounded).
// Sizes are bytes unless the name says otherwise; times end in their unit.
#ifndef LAYOVER_COMMON_LIMITS_H_
#define LAYOVER_COMMON_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace layover::limits {

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;
inline constexpr size_t kGiB = 1024 * kMiB;

// --- The grid. One page holds the K/V of this many consecutive tokens; attention partials, chunk sizes and records all
// stand on the same grid, so it is part of the arithmetic and of the container, never a setting.
inline constexpr int kPageTokens = 64;
inline constexpr int kMaxContextTokens = 1 << 20;
inline constexpr int kMaxChunkTokens = 4096;
inline constexpr int kDefaultChunkTokens = 512;
inline constexpr int kMaxSessions = 256;
inline constexpr int kMaxStages = 64;
inline constexpr int kMaxThreadsPerStage = 256;
inline constexpr int kMaxDeviceNumber = 63;            // N of cuda:N and emu:N
inline constexpr int kMaxStepSlices = 256;      // sequences that share one step
inline constexpr int kMaxStepTokens = 8192;     // rows of one step, over all its slices
inline constexpr int kMaxStepsInFlight = kMaxStages + 1;

// --- Models (untrusted files).
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxVocab = 1 << 20;
inline constexpr int kMaxEmbedding = 1 << 16;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxFeedForward = 1 << 20;
inline constexpr int kMaxConvTaps = 16;
inline constexpr int kMaxHeadDim = 512;         // sizes the attention scratch of every thread
inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxTopK = 128;            // best logits that a device picks from a row; who wants more takes the row
inline constexpr uint64_t kMaxGgufTensors = 100'000;
inline constexpr uint64_t kMaxGgufKeys = 100'000;
inline constexpr uint64_t kMaxGgufStringBytes = 1ull << 30;
inline constexpr uint64_t kMaxGgufKeyBytes = 65'535;
inline constexpr uint64_t kMaxGgufArrayElements = 1ull << 30;
inline constexpr uint64_t kMaxGgufReadElements = 4ull << 20;  // of an array taken into memory: four vocabularies
inline constexpr uint64_t kMaxGgufTensorNameBytes = 63;
inline constexpr uint64_t kMaxGgufAlignment = kMiB;
inline constexpr int kMaxGgufSplits = 1000;
inline constexpr size_t kMaxChatTemplateBytes = kMiB;

// --- The topology file.
inline constexpr size_t kMaxTopologyBytes = kMiB;

// --- Requests.
inline constexpr size_t kMaxHttpBodyBytes = 64 * kMiB;
inline constexpr size_t kMaxHttpBodyBytesInFlight = 512 * kMiB;  // bodies of all connections together, else 503
inline constexpr size_t kMaxHttpHeaderBytes = 16 * kKiB;
inline constexpr size_t kMaxHttpPipelinedBytes = 64 * kKiB;  // of a next request, while this one is handled
inline constexpr int kMaxHttpConnections = 512;
inline constexpr int kMaxHttpConnectionsReserved = 16;  // kept free for /health and /metrics
inline constexpr int kHttpHeaderDeadlineMs = 10'000;
inline constexpr int kHttpBodyDeadlineMs = 120'000;
inline constexpr int kHttpIdleDeadlineMs = 60'000;
inline constexpr int kHttpWriteDeadlineMs = 30'000;     // a reader that takes nothing for so long is dropped
inline constexpr size_t kMaxHttpSendBufferBytes = 8 * kMiB;
inline constexpr int kPingIntervalMs = 5'000;
inline constexpr int kMaxJsonDepth = 64;
inline constexpr int kMaxQueuedRequests = 256;
inline constexpr int kMaxConversationIdBytes = 256;
inline constexpr size_t kMaxSlotFilenameBytes = 255;     // as llama-server has it, and file systems
inline constexpr size_t kMaxKeysFileBytes = kMiB;
inline constexpr int kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxLogitBias = 1024;
inline constexpr int kRepeatPenaltyWindow = 64;         // tokens of prompt and output that repeat_penalty looks at
inline constexpr int kMaxListedConversations = 1000;    // one page of GET /v1/kv/conversations

// --- Text.
inline constexpr uint32_t kPreTokenizerMatchLimit = 50'000'000;      // PCRE2's own count of its steps in one match
inline constexpr size_t kPreTokenizerJitStackBytes = 4 * kMiB;      // grown only by a pattern that backtracks deep

// --- The template helper (an untrusted program runs in it).
inline constexpr size_t kTemplateHelperMemoryBytes = 600 * kMiB;
inline constexpr int kTemplateDeadlineMs = 5'000;
inline constexpr int kTemplateStartDeadlineMs = 20'000;        // Python's start on a loaded machine
inline constexpr size_t kMaxTemplateContextBytes = 2 * kMaxHttpBodyBytes;  // a body may grow when its strings are guarded
inline constexpr size_t kMaxRenderedBytes = 16 * kMiB;

// --- Wire.
inline constexpr size_t kMaxWireMessageBytes = 512 * kMiB;
inline constexpr size_t kMaxWireStringBytes = 64 * kKiB;
inline constexpr int kHeartbeatIntervalMs = 500;
inline constexpr int kStageSilentMs = 30'000;           // no sign of progress for so long while work is due: the stage is hung
inline constexpr int kStageLoadDeadlineMs = 600'000;
inline constexpr int kMaxStageRestartsPerHour = 20;

// --- Links between stages.
// A hop's ring has a slot for every step in flight and one for the step that is being taken out.
inline constexpr uint32_t kMaxRingSlots = kMaxStepsInFlight + 1;
inline constexpr uint64_t kMaxHopBytes = sizeof(float) * uint64_t{kMaxStepTokens} * uint64_t{kMaxEmbedding};
inline constexpr int kRingSpins = 300;          // looks at a ring before its reader sleeps: what waking it costs, 10 us
inline constexpr int kPeerConnectMs = 120'000;  // for two GPUs to meet; loading NCCL's kernels took 52 s on one machine
inline constexpr int kPeerPollMs = 2;           // between looks at a connection that is being made
inline constexpr int kPeerBuffers = 2;          // hops of the largest size that a GPU keeps until they are received
inline constexpr int kPeerVerdictMs = 2'000;    // for the coordinator to notice a death that NCCL reports first

// --- Stages on other machines.
inline constexpr int kRemoteSilentMs = 10'000;   // twenty missed beats over TCP: the other machine is gone
inline constexpr int kRemoteAppearMs = 60'000;   // for a remote stage's first answer when the server starts
inline constexpr int kRemoteConnectMs = 2'000;   // for one attempt to connect, beside ZeroMQ's own waits between them
inline constexpr int kRemoteRetryMs = 500;       // between attempts to get a remote stage that another coordinator has
inline constexpr int kRemoteHandshakes = 3;      // failed in a row before anything worked: it is the keys
inline constexpr int kDataPeerMs = 5'000;        // a data link's other end is connecting again after a restart
inline constexpr int kRemotePorts = 5;           // of such a stage: control, activations in and out, segments out and in
inline constexpr int kSegmentAnswerMs = 10'000;  // for 2 MiB from a disk elsewhere, behind all else that is asked of it

// --- The store.
inline constexpr size_t kBlockBytes = 4096;             // alignment of runs, of direct I/O and of the segment's parts
inline constexpr size_t kIoBufferBytes = 2 * kMiB;      // one request to the disk and one huge page: 1 MiB is half as fast
inline constexpr int kIoBuffers = 8;                    // of one reader or writer
inline constexpr int kIoReadsInFlight = kIoBuffers / 2;  // the others are being verified and copied meanwhile
inline constexpr uint64_t kMaxSegmentBytes = 1ull << 42;
inline constexpr int64_t kMaxGeneration = (int64_t{1} << 53) - 1;  // exact also for JSON readers that know only doubles
inline constexpr uint64_t kMaxSegmentRecords = 64ull << 20;
inline constexpr size_t kMaxRecordBytes = 64 * kMiB;    // one payload: it is handed over in one piece
inline constexpr size_t kMinRunBytes = 256 * kKiB;      // shorter runs are joined: a block of padding stays below 2 %
inline constexpr size_t kMaxManifestBytes = 64 * kMiB;
inline constexpr size_t kMaxManifestSegments = 65'536;
inline constexpr int kMaxManifestDepth = 8;
inline constexpr int kMostSegmentsPerStage = 64;        // beyond, a conversation's image is written anew
inline constexpr int kMostPiecesWithStates = 8;         // the same where every piece holds recurrent state
inline constexpr int kCheckpointsPerSession = 3;        // room for so many on the stages, shared by all sessions
inline constexpr int kMostCheckpoints = 6;              // of one live session; thinned evenly beyond
inline constexpr int kCheckpointGridTokens = 4096;      // in a long prompt one is taken at each multiple
inline constexpr size_t kLeastCompactedBytes = kMiB;    // smaller segments are not worth it
inline constexpr int kMaxBranches = 8;                  // of a conversation; the side branch used least recently goes
inline constexpr size_t kMaxNumericsBytes = 4096;
inline constexpr size_t kMaxStoredNameBytes = 256;
inline constexpr size_t kMaxJournalFrameBytes = 64 * kMiB;
inline constexpr uint64_t kMaxJournalBytes = 1ull << 40;
inline constexpr size_t kMaxJournalPendingBytes = 256 * kMiB;  // frames kept in memory while the disk refuses them
inline constexpr size_t kMaxPortableChunkBytes = 256 * kKiB;  // of a portable file: encrypted and checked in one piece
inline constexpr size_t kMinPortableChunkBytes = 4096;
inline constexpr size_t kMaxSecretFileBytes = 4 * kKiB;  // a key or passphrase
inline constexpr int kExportAttempts = 8;               // beside a server that saves, and so replaces files, meanwhile
inline constexpr int kExpiryIntervalMs = 60'000;        // how often images that nobody came back to are looked for
inline constexpr int kSaveSilentMs = 60'000;            // a save that makes no progress for so long is aborted

// --- Devices.
// Rows that a card gathers before one copy takes them to the host, or that one copy brings. A copy costs some 10 us beside
// its bytes: at 57 GB/s (PCIe 5.0 x16) that is a tenth of 4 MiB, a third of 1 MiB.
inline constexpr size_t kKvLotBytes = 4 * kMiB;
// Buffers through which a stage's copies go: of as many requests as a save and a restore have between the disk and the
// device, so long that what is copied in one piece is seldom shorter than half of one.
inline constexpr size_t kCopyBufferBytes = kKvLotBytes;
inline constexpr size_t kCopyBuffers = 2 * kIoBuffers;
// Sets of a step's input buffers, used in turn: one is filled while the step before may still be read from the other.
inline constexpr int kStepSlots = 2;
// Decode steps of more rows run kernel by kernel: on a card they take longer than putting their kernels in the queue, and
// every number of rows is a graph of its own.
inline constexpr int kMostGraphRows = 16;
// Graphs that a stream keeps, the least recently used goes first. Every number of rows with every slot is half of it, so
// that a conversation's growing out of one rounded length into the next pushes nothing out that is still in use.
inline constexpr size_t kMostGraphs = 2 * kStepSlots * kMostGraphRows;

static_assert(kDefaultChunkTokens % kPageTokens == 0 && kMaxChunkTokens % kPageTokens == 0, "chunks end on the grid");
static_assert(kMaxChunkTokens <= kMaxStepTokens, "one chunk fits in a step");
static_assert(kMaxChunkTokens + kMaxSessions <= kMaxStepTokens, "a step holds a chunk and a row of every session");
static_assert(kMaxGgufReadElements >= 4ull * kMaxVocab, "the largest vocabulary's tokens and merges can be read");
static_assert(kMaxSessions <= kMaxStepSlices, "every live session can have a row in one step");
static_assert(kIoBufferBytes % kBlockBytes == 0, "direct I/O needs whole blocks");
static_assert(kCopyBufferBytes >= 2 * kIoBufferBytes && kCopyBufferBytes % kIoBufferBytes == 0, "a copy is of whole requests");
static_assert(kMaxContextTokens * sizeof(int32_t) <= kMaxRecordBytes, "a conversation's token ids fit into one record");
static_assert(kMaxJournalFrameBytes < kMaxJournalPendingBytes, "any one frame can wait");
static_assert(kMaxHttpBodyBytes <= kMaxWireMessageBytes && kMaxHttpBodyBytes <= kMaxJournalFrameBytes,
              "what a request may say fits into the messages and frames that carry it on");
static_assert(kMaxHttpConnectionsReserved < kMaxHttpConnections);
static_assert(kHeartbeatIntervalMs * 10 < kStageSilentMs, "ten missed beats, not one, make a hang");
static_assert(kHeartbeatIntervalMs * 10 < kRemoteSilentMs && kRemoteSilentMs < kStageSilentMs,
              "ten missed beats, as on one machine");
static_assert(kMaxStepsInFlight >= kMaxStages, "the scheduler lets one step per stage in flight");
static_assert(kPeerConnectMs < kStageLoadDeadlineMs, "the error that knows the reason comes first");

}  // namespace layover::limits

#endif  // LAYOVER_COMMON_LIMITS_H_
