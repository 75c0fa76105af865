// The bytes of a segment file: docs/storage_format.md in code (a test holds the two together). Pure functions on
// memory; reading and writing files is segment_reader's and segment_writer's job.
//
//   header block | runs of records | index | footer block        every part starts on a multiple of 4096
//
// What must stay true: every byte of a file is under a digest or is padding that is checked to be zero.
#ifndef LAYOVER_COMMON_STORAGE_SEGMENT_FORMAT_H_
#define LAYOVER_COMMON_STORAGE_SEGMENT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/limits.h"
#include "common/storage/file_names.h"

namespace layover {

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr char kSegmentMagic[8] = {'L', 'A', 'Y', 'O', 'S', 'E', 'G', '1'};
inline constexpr char kFooterMagic[8] = {'L', 'A', 'Y', 'O', 'E', 'N', 'D', '1'};
inline constexpr size_t kRecordAlignment = 64;  // of payloads within a run, so that rows can be used where they lie

enum class RecordKind : uint16_t {
  kKRows = 1,        // K of a full-attention layer: rows [begin, end), [tokens, kv_heads, head_dim]
  kVRows = 2,        // V of the same
  kWindowKRows = 3,  // K of a sliding-window layer: only what some window needs is there
  kWindowVRows = 4,
  kRecurrent = 5,   // recurrent state of a layer after tokens [0, end); begin is 0
  kConv = 6,        // convolution state of a layer after tokens [0, end); begin is 0
  kCheckpoint = 7,  // which records make it possible to go on at `end`; begin is 0, no layer
  kTokenIds = 8,    // the ids [begin, end) themselves, no layer
};
std::string_view RecordKindName(RecordKind kind);  // "K rows"

enum class ElementType : uint16_t {
  kF32 = 0,
  kF16 = 1,
  kQ8_0 = 2,
  kQ4_0 = 3,    // the values of KvType in kernels/ops.h
  kInt32 = 16,  // token ids
  kTable = 17,  // a checkpoint's list
};

inline constexpr int32_t kNoLayer = -1;

struct SegmentHeader {
  Digest identity;              // ModelIdentity::Combined
  FolderDigest conversation{};  // of the folder it is written for
  int32_t stage = 0;            // who wrote it; restoring does not look at it
  int32_t layer_begin = 0;      // [begin, end) of the records
  int32_t layer_end = 0;
  int64_t generation = 0;
  int32_t n_tokens = 0;  // the trunk's length at the save
  bool operator==(const SegmentHeader&) const = default;
};

// What a record holds. Two records with equal keys hold the same state.
struct RecordKey {
  RecordKind kind = RecordKind::kKRows;
  ElementType element = ElementType::kF32;
  int32_t layer = kNoLayer;
  int32_t token_begin = 0;
  int32_t token_end = 0;
  int32_t branch = 0;  // the manifest's number of the branch it was written for; not part of the key's identity
  Digest prefix;       // of the token ids [0, token_end)
  bool operator==(const RecordKey&) const = default;
  int32_t tokens() const { return token_end - token_begin; }
};

struct IndexEntry {
  RecordKey key;
  uint64_t offset = 0;  // of the payload, in the file
  uint64_t bytes = 0;
  Digest payload;  // XXH3-128 of it
  bool operator==(const IndexEntry&) const = default;
};

// A checkpoint's payload: where it is, why it was taken, which records (of any segment of the manifest) it stands on.
enum class CheckpointCause : uint32_t { kBeforeReply = 1, kPromptEnd = 2, kTurnEnd = 3, kGrid = 4 };
struct CheckpointReference {
  RecordKind kind = RecordKind::kRecurrent;
  int32_t layer = 0;
  int32_t token_begin = 0;
  int32_t token_end = 0;
  Digest payload;
  bool operator==(const CheckpointReference&) const = default;
};
struct Checkpoint {
  int32_t position = 0;
  CheckpointCause cause = CheckpointCause::kGrid;
  std::vector<CheckpointReference> references;
  bool operator==(const Checkpoint&) const = default;
};
std::string EncodeCheckpoint(const Checkpoint& checkpoint);
absl::StatusOr<Checkpoint> DecodeCheckpoint(std::span<const std::byte> payload);

// InvalidArgument if a record may not be written so: kind and element, layer in the segment's range, no K/V record
// across a multiple of 64 tokens, K/V bytes a multiple of the rows.
absl::Status CheckRecord(const SegmentHeader& header, const RecordKey& key, uint64_t bytes);

// The parts of a file. Decoders check everything that the part alone can tell, DataLoss says what is wrong (the caller
// adds the file's name).
std::string EncodeHeader(const SegmentHeader& header);  // one block
absl::StatusOr<SegmentHeader> DecodeHeader(std::span<const std::byte> block);
std::string EncodeIndex(std::span<const IndexEntry> entries);  // whole blocks
struct Footer {
  uint64_t index_offset = 0;
  uint64_t index_count = 0;
  uint64_t file_bytes = 0;
  Digest index_digest;  // of the header block followed by the index with its padding: it binds the whole file
};
std::string EncodeFooter(const Footer& footer);  // one block
absl::StatusOr<Footer> DecodeFooter(std::span<const std::byte> block, uint64_t file_bytes);
absl::StatusOr<std::vector<IndexEntry>> DecodeIndex(const SegmentHeader& header, const Footer& footer,
                                                    std::span<const std::byte> index);
Digest IndexDigest(std::string_view header_block, std::string_view index);

// Where the record after `end` may begin: in the same run, or in a new one.
uint64_t NextInRun(uint64_t end);
uint64_t NextRun(uint64_t end);

// A field of an on-disk layout, as docs/storage_format.md lists it.
struct FieldSpec {
  std::string_view name;
  size_t offset;
  size_t bytes;
};
std::span<const FieldSpec> SegmentHeaderFields();
std::span<const FieldSpec> IndexEntryFields();
std::span<const FieldSpec> FooterFields();
std::span<const FieldSpec> CheckpointFields();
std::span<const FieldSpec> CheckpointReferenceFields();

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_SEGMENT_FORMAT_H_
