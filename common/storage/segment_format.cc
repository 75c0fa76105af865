#include "common/storage/segment_format.h"

#include <array>
#include <cstring>

#include "common/status.h"
#include "common/storage/on_disk.h"

namespace layover {
namespace {

constexpr size_t kBlock = limits::kBlockBytes;
constexpr uint32_t kNoLayerOnDisk = 0xFFFFFFFF;

struct HeaderBytes {
  char magic[8];
  uint32_t version;
  uint32_t block_bytes;
  DigestBytes digest;
  DigestBytes identity;
  uint8_t conversation[32];
  uint32_t stage;
  uint32_t layer_begin;
  uint32_t layer_end;
  uint32_t page_tokens;
  uint64_t generation;
  uint32_t n_tokens;
  uint32_t zero;
};
static_assert(sizeof(HeaderBytes) == 112);

struct EntryBytes {
  uint16_t kind;
  uint16_t element;
  uint32_t layer;
  uint32_t token_begin;
  uint32_t token_end;
  uint32_t branch;
  uint32_t zero;
  uint64_t offset;
  uint64_t bytes;
  DigestBytes prefix;
  DigestBytes payload;
};
static_assert(sizeof(EntryBytes) == 72);

struct FooterBytes {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  DigestBytes digest;
  uint64_t index_offset;
  uint64_t index_count;
  uint64_t file_bytes;
  DigestBytes index_digest;
};
static_assert(sizeof(FooterBytes) == 72);

struct CheckpointBytes {
  uint32_t position;
  uint32_t cause;
  uint32_t count;
  uint32_t zero;
};
static_assert(sizeof(CheckpointBytes) == 16);

struct ReferenceBytes {
  uint16_t kind;
  uint16_t zero;
  uint32_t layer;
  uint32_t token_begin;
  uint32_t token_end;
  DigestBytes payload;
};
static_assert(sizeof(ReferenceBytes) == 32);

uint64_t RoundUp(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// The block's digest, taken with its own field zero, is put into that field.
template <typename T>
std::string SealBlock(T fields) {
  fields.digest = DigestBytes{};
  std::string block;
  AppendBytes(&block, fields);
  block.resize(kBlock, '\0');
  const DigestBytes digest = DigestBytes::Of(DigestOf(block));
  std::memcpy(block.data() + offsetof(T, digest), &digest, sizeof(digest));
  return block;
}

template <typename T>
absl::StatusOr<T> OpenBlock(std::string_view name, std::string_view block, const char (&magic)[8]) {
  if (block.size() != kBlock) return DataLoss("the {} is cut short", name);
  T fields = LoadBytes<T>(block, 0);
  if (std::memcmp(fields.magic, magic, sizeof(magic)) != 0) return DataLoss("the {} has no magic number", name);
  std::string copy(block);
  std::memset(copy.data() + offsetof(T, digest), 0, sizeof(DigestBytes));
  if (DigestOf(copy) != fields.digest.Value()) return DataLoss("the {} is damaged: its digest differs", name);
  if (fields.version != kSegmentVersion) {
    return DataLoss("the {} has version {}, this program reads {}", name, fields.version, kSegmentVersion);
  }
  if (fields.zero != 0 || !AllZero(block.substr(sizeof(T))))
    return DataLoss("the {} is not zero where it must be", name);
  return fields;
}

bool IsRows(RecordKind kind) {
  return kind >= RecordKind::kKRows && kind <= RecordKind::kWindowVRows;
}
bool IsState(RecordKind kind) {
  return kind == RecordKind::kRecurrent || kind == RecordKind::kConv;
}

absl::Status CheckRange(const RecordKey& key) {
  if (key.token_begin < 0 || key.token_begin >= key.token_end || key.token_end > limits::kMaxContextTokens) {
    return InvalidArgument("token range [{}, {}) is not one", key.token_begin, key.token_end);
  }
  if (IsRows(key.kind) && key.token_begin / limits::kPageTokens != (key.token_end - 1) / limits::kPageTokens) {
    return InvalidArgument("rows [{}, {}) cross a multiple of {} tokens", key.token_begin, key.token_end,
                           limits::kPageTokens);
  }
  if (!IsRows(key.kind) && key.kind != RecordKind::kTokenIds && key.token_begin != 0) {
    return InvalidArgument("a {} record begins at token {}, not at 0", RecordKindName(key.kind), key.token_begin);
  }
  return absl::OkStatus();
}

absl::Status CheckElement(const RecordKey& key, uint64_t bytes) {
  const auto tokens = static_cast<uint64_t>(key.tokens());
  bool fits = false;
  if (IsRows(key.kind)) fits = key.element <= ElementType::kQ4_0 && bytes % tokens == 0;
  if (IsState(key.kind)) fits = key.element == ElementType::kF32 && bytes % 4 == 0;
  if (key.kind == RecordKind::kTokenIds) fits = key.element == ElementType::kInt32 && bytes == 4 * tokens;
  if (key.kind == RecordKind::kCheckpoint) fits = key.element == ElementType::kTable;
  if (fits) return absl::OkStatus();
  return InvalidArgument("a {} record of {} tokens cannot be {} bytes of type {}", RecordKindName(key.kind), tokens,
                         bytes, static_cast<int>(key.element));
}

EntryBytes ToBytes(const IndexEntry& entry) {
  EntryBytes out{};
  out.kind = static_cast<uint16_t>(entry.key.kind);
  out.element = static_cast<uint16_t>(entry.key.element);
  out.layer = entry.key.layer == kNoLayer ? kNoLayerOnDisk : static_cast<uint32_t>(entry.key.layer);
  out.token_begin = static_cast<uint32_t>(entry.key.token_begin);
  out.token_end = static_cast<uint32_t>(entry.key.token_end);
  out.branch = static_cast<uint32_t>(entry.key.branch);
  out.offset = entry.offset;
  out.bytes = entry.bytes;
  out.prefix = DigestBytes::Of(entry.key.prefix);
  out.payload = DigestBytes::Of(entry.payload);
  return out;
}

IndexEntry FromBytes(const EntryBytes& in) {
  IndexEntry entry;
  entry.key.kind = static_cast<RecordKind>(in.kind);
  entry.key.element = static_cast<ElementType>(in.element);
  entry.key.layer = in.layer == kNoLayerOnDisk ? kNoLayer : static_cast<int32_t>(in.layer & 0x7FFFFFFF);
  entry.key.token_begin = static_cast<int32_t>(in.token_begin);
  entry.key.token_end = static_cast<int32_t>(in.token_end);
  entry.key.branch = static_cast<int32_t>(in.branch);
  entry.offset = in.offset;
  entry.bytes = in.bytes;
  entry.key.prefix = in.prefix.Value();
  entry.payload = in.payload.Value();
  return entry;
}

#define LAYOVER_FIELD(Struct, field)                       \
  FieldSpec {                                              \
#field, offsetof(Struct, field), sizeof(Struct::field) \
  }

}  // namespace

std::string_view RecordKindName(RecordKind kind) {
  switch (kind) {
    case RecordKind::kKRows:
      return "K rows";
    case RecordKind::kVRows:
      return "V rows";
    case RecordKind::kWindowKRows:
      return "window K rows";
    case RecordKind::kWindowVRows:
      return "window V rows";
    case RecordKind::kRecurrent:
      return "recurrent state";
    case RecordKind::kConv:
      return "convolution state";
    case RecordKind::kCheckpoint:
      return "checkpoint";
    case RecordKind::kTokenIds:
      return "token ids";
  }
  return "unknown kind";
}

uint64_t NextInRun(uint64_t end) {
  return RoundUp(end, kRecordAlignment);
}
uint64_t NextRun(uint64_t end) {
  return RoundUp(end, kBlock);
}

absl::Status CheckRecord(const SegmentHeader& header, const RecordKey& key, uint64_t bytes) {
  if (key.kind < RecordKind::kKRows || key.kind > RecordKind::kTokenIds) {
    return InvalidArgument("{} is no kind of record", static_cast<int>(key.kind));
  }
  if (bytes == 0 || bytes > limits::kMaxRecordBytes) return InvalidArgument("a record cannot have {} bytes", bytes);
  if (key.branch < 0) return InvalidArgument("{} is no branch", key.branch);
  RETURN_IF_ERROR(CheckRange(key));
  RETURN_IF_ERROR(CheckElement(key, bytes));
  const bool has_layer = IsRows(key.kind) || IsState(key.kind);
  const bool layer_fits =
      has_layer ? key.layer >= header.layer_begin && key.layer < header.layer_end : key.layer == kNoLayer;
  if (layer_fits) return absl::OkStatus();
  return InvalidArgument("a {} record of layer {} does not belong into layers [{}, {})", RecordKindName(key.kind),
                         key.layer, header.layer_begin, header.layer_end);
}

std::string EncodeHeader(const SegmentHeader& header) {
  HeaderBytes out{};
  std::memcpy(out.magic, kSegmentMagic, sizeof(out.magic));
  out.version = kSegmentVersion;
  out.block_bytes = kBlock;
  out.identity = DigestBytes::Of(header.identity);
  std::memcpy(out.conversation, header.conversation.data(), sizeof(out.conversation));
  out.stage = static_cast<uint32_t>(header.stage);
  out.layer_begin = static_cast<uint32_t>(header.layer_begin);
  out.layer_end = static_cast<uint32_t>(header.layer_end);
  out.page_tokens = limits::kPageTokens;
  out.generation = static_cast<uint64_t>(header.generation);
  out.n_tokens = static_cast<uint32_t>(header.n_tokens);
  return SealBlock(out);
}

absl::StatusOr<SegmentHeader> DecodeHeader(std::span<const std::byte> block) {
  ASSIGN_OR_RETURN(const HeaderBytes in, OpenBlock<HeaderBytes>("header", AsText(block), kSegmentMagic));
  if (in.block_bytes != kBlock || in.page_tokens != limits::kPageTokens) {
    return DataLoss("the header says blocks of {} bytes and pages of {} tokens", in.block_bytes, in.page_tokens);
  }
  if (in.stage >= limits::kMaxStages || in.layer_begin > in.layer_end || in.layer_end > limits::kMaxLayers ||
      in.generation < 1 || in.generation > uint64_t{limits::kMaxGeneration} || in.n_tokens > limits::kMaxContextTokens) {
    return DataLoss("the header says stage {}, layers [{}, {}), generation {}, {} tokens", in.stage, in.layer_begin,
                    in.layer_end, in.generation, in.n_tokens);
  }
  SegmentHeader header;
  header.identity = in.identity.Value();
  std::memcpy(header.conversation.data(), in.conversation, sizeof(in.conversation));
  header.stage = static_cast<int32_t>(in.stage);
  header.layer_begin = static_cast<int32_t>(in.layer_begin);
  header.layer_end = static_cast<int32_t>(in.layer_end);
  header.generation = static_cast<int64_t>(in.generation);
  header.n_tokens = static_cast<int32_t>(in.n_tokens);
  return header;
}

std::string EncodeIndex(std::span<const IndexEntry> entries) {
  std::string index;
  index.reserve(RoundUp(entries.size() * sizeof(EntryBytes), kBlock));
  for (const IndexEntry& entry : entries) AppendBytes(&index, ToBytes(entry));
  index.resize(RoundUp(index.size(), kBlock), '\0');
  return index;
}

std::string EncodeFooter(const Footer& footer) {
  FooterBytes out{};
  std::memcpy(out.magic, kFooterMagic, sizeof(out.magic));
  out.version = kSegmentVersion;
  out.index_offset = footer.index_offset;
  out.index_count = footer.index_count;
  out.file_bytes = footer.file_bytes;
  out.index_digest = DigestBytes::Of(footer.index_digest);
  return SealBlock(out);
}

absl::StatusOr<Footer> DecodeFooter(std::span<const std::byte> block, uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const FooterBytes in, OpenBlock<FooterBytes>("footer", AsText(block), kFooterMagic));
  if (in.file_bytes != file_bytes)
    return DataLoss("the footer says {} bytes, the file has {}", in.file_bytes, file_bytes);
  const bool count_fits = in.index_count <= limits::kMaxSegmentRecords;
  const uint64_t index_bytes = count_fits ? RoundUp(in.index_count * sizeof(EntryBytes), kBlock) : 0;
  if (!count_fits || in.index_offset % kBlock != 0 || in.index_offset < kBlock || in.index_offset > file_bytes ||
      in.index_offset + index_bytes + kBlock != file_bytes) {
    return DataLoss("the footer says {} index entries at byte {} of {}", in.index_count, in.index_offset, file_bytes);
  }
  return Footer{in.index_offset, in.index_count, in.file_bytes, in.index_digest.Value()};
}

absl::StatusOr<std::vector<IndexEntry>> DecodeIndex(const SegmentHeader& header, const Footer& footer,
                                                    std::span<const std::byte> index) {
  const std::string_view text = AsText(index);
  const uint64_t used = footer.index_count * sizeof(EntryBytes);
  if (text.size() != RoundUp(used, kBlock)) return DataLoss("the index is cut short");
  if (!AllZero(text.substr(used))) return DataLoss("the padding of the index is not zero");
  std::vector<IndexEntry> entries;
  entries.reserve(footer.index_count);
  uint64_t end = kBlock;
  for (uint64_t i = 0; i < footer.index_count; ++i) {
    const auto in = LoadBytes<EntryBytes>(text, i * sizeof(EntryBytes));
    const IndexEntry entry = FromBytes(in);
    const absl::Status status = CheckRecord(header, entry.key, entry.bytes);
    const bool layer_fits = in.layer == kNoLayerOnDisk || in.layer <= INT32_MAX;
    if (!status.ok() || in.zero != 0 || !layer_fits) {
      return DataLoss("index entry {} is not valid: {}", i, ToStd(status.message()));
    }
    if (entry.offset != NextInRun(end) && entry.offset != NextRun(end)) {
      return DataLoss("index entry {} lies at byte {}, the one before ends at {}", i, entry.offset, end);
    }
    end = entry.offset + entry.bytes;
    if (end > footer.index_offset) return DataLoss("index entry {} runs into the index", i);
    entries.push_back(entry);
  }
  if (NextRun(end) != footer.index_offset)
    return DataLoss("the records end at byte {}, the index lies at {}", end, footer.index_offset);
  return entries;
}

Digest IndexDigest(std::string_view header_block, std::string_view index) {
  DigestStream stream;
  stream.Update(header_block.data(), header_block.size());
  stream.Update(index.data(), index.size());
  return stream.Value();
}

std::string EncodeCheckpoint(const Checkpoint& checkpoint) {
  std::string out;
  AppendBytes(&out, CheckpointBytes{static_cast<uint32_t>(checkpoint.position), static_cast<uint32_t>(checkpoint.cause),
                                    static_cast<uint32_t>(checkpoint.references.size()), 0});
  for (const CheckpointReference& reference : checkpoint.references) {
    AppendBytes(&out, ReferenceBytes{static_cast<uint16_t>(reference.kind), 0, static_cast<uint32_t>(reference.layer),
                                     static_cast<uint32_t>(reference.token_begin),
                                     static_cast<uint32_t>(reference.token_end), DigestBytes::Of(reference.payload)});
  }
  return out;
}

absl::StatusOr<Checkpoint> DecodeCheckpoint(std::span<const std::byte> payload) {
  const std::string_view text = AsText(payload);
  if (text.size() < sizeof(CheckpointBytes)) return DataLoss("a checkpoint of {} bytes", text.size());
  const auto in = LoadBytes<CheckpointBytes>(text, 0);
  if (text.size() != sizeof(CheckpointBytes) + uint64_t{in.count} * sizeof(ReferenceBytes)) {
    return DataLoss("a checkpoint with {} references has {} bytes", in.count, text.size());
  }
  if (in.zero != 0 || in.cause < 1 || in.cause > 4 || in.position < 1 || in.position > limits::kMaxContextTokens) {
    return DataLoss("a checkpoint at {} with cause {}", in.position, in.cause);
  }
  Checkpoint checkpoint{static_cast<int32_t>(in.position), static_cast<CheckpointCause>(in.cause), {}};
  for (uint32_t i = 0; i < in.count; ++i) {
    const auto reference = LoadBytes<ReferenceBytes>(text, sizeof(CheckpointBytes) + i * sizeof(ReferenceBytes));
    const auto kind = static_cast<RecordKind>(reference.kind);
    if (reference.zero != 0 || kind < RecordKind::kWindowKRows || kind > RecordKind::kConv ||
        reference.layer >= limits::kMaxLayers || reference.token_begin >= reference.token_end ||
        reference.token_end > in.position) {
      return DataLoss("reference {} of the checkpoint at {} is not valid", i, in.position);
    }
    checkpoint.references.push_back({kind, static_cast<int32_t>(reference.layer),
                                     static_cast<int32_t>(reference.token_begin),
                                     static_cast<int32_t>(reference.token_end), reference.payload.Value()});
  }
  return checkpoint;
}

std::span<const FieldSpec> SegmentHeaderFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(HeaderBytes, magic),       LAYOVER_FIELD(HeaderBytes, version),
      LAYOVER_FIELD(HeaderBytes, block_bytes), LAYOVER_FIELD(HeaderBytes, digest),
      LAYOVER_FIELD(HeaderBytes, identity),    LAYOVER_FIELD(HeaderBytes, conversation),
      LAYOVER_FIELD(HeaderBytes, stage),       LAYOVER_FIELD(HeaderBytes, layer_begin),
      LAYOVER_FIELD(HeaderBytes, layer_end),   LAYOVER_FIELD(HeaderBytes, page_tokens),
      LAYOVER_FIELD(HeaderBytes, generation),  LAYOVER_FIELD(HeaderBytes, n_tokens),
      LAYOVER_FIELD(HeaderBytes, zero)};
  return kFields;
}

std::span<const FieldSpec> IndexEntryFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(EntryBytes, kind),        LAYOVER_FIELD(EntryBytes, element),   LAYOVER_FIELD(EntryBytes, layer),
      LAYOVER_FIELD(EntryBytes, token_begin), LAYOVER_FIELD(EntryBytes, token_end), LAYOVER_FIELD(EntryBytes, branch),
      LAYOVER_FIELD(EntryBytes, zero),        LAYOVER_FIELD(EntryBytes, offset),    LAYOVER_FIELD(EntryBytes, bytes),
      LAYOVER_FIELD(EntryBytes, prefix),      LAYOVER_FIELD(EntryBytes, payload)};
  return kFields;
}

std::span<const FieldSpec> FooterFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(FooterBytes, magic),        LAYOVER_FIELD(FooterBytes, version),
      LAYOVER_FIELD(FooterBytes, zero),         LAYOVER_FIELD(FooterBytes, digest),
      LAYOVER_FIELD(FooterBytes, index_offset), LAYOVER_FIELD(FooterBytes, index_count),
      LAYOVER_FIELD(FooterBytes, file_bytes),   LAYOVER_FIELD(FooterBytes, index_digest)};
  return kFields;
}

std::span<const FieldSpec> CheckpointFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(CheckpointBytes, position),
                                         LAYOVER_FIELD(CheckpointBytes, cause), LAYOVER_FIELD(CheckpointBytes, count),
                                         LAYOVER_FIELD(CheckpointBytes, zero)};
  return kFields;
}

std::span<const FieldSpec> CheckpointReferenceFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(ReferenceBytes, kind),      LAYOVER_FIELD(ReferenceBytes, zero),
      LAYOVER_FIELD(ReferenceBytes, layer),     LAYOVER_FIELD(ReferenceBytes, token_begin),
      LAYOVER_FIELD(ReferenceBytes, token_end), LAYOVER_FIELD(ReferenceBytes, payload)};
  return kFields;
}

}  // namespace layover
