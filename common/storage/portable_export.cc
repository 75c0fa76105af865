#include "common/storage/portable_export.h"

#include <unistd.h>

#include <cerrno>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/on_disk.h"
#include "common/storage/store_layout.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr uint64_t kBlock = limits::kBlockBytes;

// What is exported: read once, then only copied. A server may append to the journal and save again meanwhile.
struct Source {
  ConversationImage image;
  std::string manifest_text;  // empty: never saved
  uint64_t body_bytes = 0;
};

absl::StatusOr<Source> LoadSource(const std::string& store, const std::string& folder) {
  Source source;
  ASSIGN_OR_RETURN(source.image, LoadConversation(store, folder));
  const ConversationImage& image = source.image;
  RETURN_IF_ERROR(image.journal_status);
  if (image.journal.state.deleted) return NotFound("conversation {} was deleted", image.id);
  source.body_bytes = image.journal.end.bytes;
  if (absl::IsNotFound(image.manifest_status)) return source;
  RETURN_IF_ERROR(image.manifest_status);
  // Its text is a function of its content, so this is what the file holds.
  ASSIGN_OR_RETURN(SerializedManifest text, SerializeManifest(*image.manifest));
  LAYOVER_CHECK(text.digest == image.manifest_digest);
  source.manifest_text = std::move(text.text);
  for (const ManifestSegment& segment : image.manifest->segments) {
    if (!segment.host.empty()) return Unavailable("{} is kept by {}", segment.Path(), segment.host);
    source.body_bytes += segment.bytes;
  }
  return source;
}

absl::Status AppendJournal(const std::string& store, const Source& source, PortableWriter* out) {
  const std::string path = JoinPath(ConversationPath(store, source.image.folder), kJournalName);
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, OpenMode::kRead));
  std::vector<char> buffer(limits::kMaxPortableChunkBytes);
  for (uint64_t at = 0; at < source.image.journal.end.bytes;) {
    const size_t wanted = std::min<uint64_t>(buffer.size(), source.image.journal.end.bytes - at);
    const ssize_t got = pread(fd.get(), buffer.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (got == 0) return DataLoss("{} became shorter", path);
    RETURN_IF_ERROR(out->Append({buffer.data(), static_cast<size_t>(got)}));
    at += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

// A segment's bytes, made again from its verified parts: all that is not one of them is zero by the format's rules.
class SegmentCopy {
 public:
  explicit SegmentCopy(PortableWriter* out) : out_(out) {}

  absl::Status Run(SegmentReader* reader) {
    RETURN_IF_ERROR(Append(EncodeHeader(reader->header())));
    std::vector<size_t> all(reader->index().size());
    std::iota(all.begin(), all.end(), size_t{0});
    RETURN_IF_ERROR(reader->ReadRecords(all, [this](const IndexEntry& entry, std::span<const std::byte> payload) {
      const absl::Status padded = PadTo(entry.offset);
      return padded.ok() ? Append(AsText(payload)) : padded;
    }));
    const uint64_t index_offset = NextRun(at_);
    RETURN_IF_ERROR(PadTo(index_offset));
    RETURN_IF_ERROR(Append(EncodeIndex(reader->index())));
    LAYOVER_CHECK(at_ + kBlock == reader->file_bytes());
    return Append(EncodeFooter({index_offset, reader->index().size(), reader->file_bytes(), reader->index_digest()}));
  }

 private:
  absl::Status Append(std::string_view bytes) {
    at_ += bytes.size();
    return out_->Append(bytes);
  }

  absl::Status PadTo(uint64_t offset) {
    static constexpr char kZeros[kBlock] = {};
    return Append({kZeros, offset - at_});
  }

  PortableWriter* const out_;
  uint64_t at_ = 0;
};

absl::Status AppendSegments(const std::string& store, const Source& source, PortableWriter* out) {
  if (source.manifest_text.empty()) return absl::OkStatus();
  const Manifest& manifest = *source.image.manifest;
  for (const ManifestSegment& segment : manifest.segments) {
    ASSIGN_OR_RETURN(const SegmentPlace place, PlaceOfSegment(store, source.image.folder, manifest, segment));
    ASSIGN_OR_RETURN(const std::unique_ptr<SegmentReader> reader, SegmentReader::Open(place.path, place.expected, {}));
    RETURN_IF_ERROR(SegmentCopy(out).Run(reader.get()));
  }
  return absl::OkStatus();
}

absl::StatusOr<PortableSummary> Export(const std::string& store, const Source& source, const std::string& file,
                                       const PortableSecret& secret, const PortableWriteOptions& options) {
  const ConversationImage& image = source.image;
  const PortableHead head{image.journal.end.bytes, image.owner, image.id, source.manifest_text};
  ASSIGN_OR_RETURN(const std::unique_ptr<PortableWriter> writer,
                   PortableWriter::Create(file, secret, head, source.body_bytes, options));
  RETURN_IF_ERROR(AppendJournal(store, source, writer.get()));
  RETURN_IF_ERROR(AppendSegments(store, source, writer.get()));
  PortableSummary summary;
  summary.owner = image.owner;
  summary.id = image.id;
  if (!source.manifest_text.empty()) {
    summary.generation = image.manifest->generation;
    summary.n_tokens = image.manifest->n_tokens;
    summary.n_segments = static_cast<int32_t>(image.manifest->segments.size());
  }
  ASSIGN_OR_RETURN(summary.bytes, writer->Finish());
  return summary;
}

// Which generation a reader finds now; nullopt: none, or one that cannot be read.
std::optional<Digest> CurrentManifest(const std::string& store, const std::string& folder) {
  const absl::StatusOr<ParsedManifest> now = ReadManifest(ConversationPath(store, folder));
  return now.ok() ? std::optional(now->digest) : std::nullopt;
}

}  // namespace

absl::StatusOr<PortableSummary> ExportConversation(const std::string& store, const std::string& folder,
                                                   const std::string& file, const PortableSecret& secret,
                                                   const PortableWriteOptions& options) {
  absl::Status status;
  for (int attempt = 0; attempt < limits::kExportAttempts; ++attempt) {
    const std::optional<Digest> before = CurrentManifest(store, folder);
    const absl::StatusOr<Source> source = LoadSource(store, folder);
    absl::StatusOr<PortableSummary> summary =
        source.ok() ? Export(store, *source, file, secret, options) : source.status();
    if (summary.ok()) return summary;
    status = summary.status();
    // A server that saved meanwhile has removed files and changed what fits together: that is no damage.
    if (CurrentManifest(store, folder) == before) break;
  }
  return status;
}

}  // namespace layover
