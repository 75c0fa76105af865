#include "common/storage/rebind.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/journal_format.h"
#include "common/storage/on_disk.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr uint64_t kBlock = limits::kBlockBytes;

// An open file and its path, for messages.
struct OpenedFile {
  std::string path;
  UniqueFd fd;
  uint64_t bytes = 0;

  static absl::StatusOr<OpenedFile> Open(const std::string& path, OpenMode mode) {
    OpenedFile file{path, {}, 0};
    ASSIGN_OR_RETURN(file.fd, OpenFile(path, mode));
    ASSIGN_OR_RETURN(file.bytes, FileBytes(file.fd.get(), path));
    return file;
  }

  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const {
    if (offset > bytes || count > bytes - offset) return DataLoss("{} ends before byte {}", path, offset + count);
    std::string out(count, '\0');
    for (size_t done = 0; done < count;) {
      const ssize_t got = pread(fd.get(), out.data() + done, count - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
      if (got == 0) return DataLoss("{} became shorter", path);
      done += static_cast<size_t>(got);
    }
    return out;
  }
};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Of a segment's index, after one header and after another.
struct IndexDigests {
  Digest before;
  Digest after;
};

absl::StatusOr<IndexDigests> DigestIndex(const OpenedFile& file, const Footer& footer, std::string_view old_header,
                                         std::string_view new_header) {
  DigestStream before;
  DigestStream after;
  before.Update(old_header.data(), old_header.size());
  after.Update(new_header.data(), new_header.size());
  const uint64_t end = file.bytes - kBlock;
  for (uint64_t at = footer.index_offset; at < end;) {
    const size_t count = std::min<uint64_t>(limits::kIoBufferBytes, end - at);
    ASSIGN_OR_RETURN(const std::string piece, file.Read(at, count));
    before.Update(piece.data(), piece.size());
    after.Update(piece.data(), piece.size());
    at += count;
  }
  return IndexDigests{before.Value(), after.Value()};
}

// Appends to a file in large pieces.
class Appender {
 public:
  explicit Appender(const OpenedFile& file) : file_(file) {}

  absl::Status Append(std::string_view bytes) {
    waiting_ += bytes;
    return waiting_.size() < limits::kIoBufferBytes ? absl::OkStatus() : Flush();
  }

  absl::Status Flush() {
    if (waiting_.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(WriteAt(file_.fd.get(), file_.path, written_, waiting_));
    written_ += waiting_.size();
    waiting_.clear();
    return absl::OkStatus();
  }

 private:
  const OpenedFile& file_;
  std::string waiting_;
  uint64_t written_ = 0;
};

}  // namespace

absl::StatusOr<Digest> RebindSegment(const std::string& path, const SegmentHeader& was, const Digest& index_digest,
                                     const FolderDigest& conversation, int64_t generation) {
  ASSIGN_OR_RETURN(const OpenedFile file, OpenedFile::Open(path, OpenMode::kReadWrite));
  if (file.bytes < 2 * kBlock || file.bytes % kBlock != 0) return DataLoss("it is cut short: {} bytes", file.bytes);
  ASSIGN_OR_RETURN(const std::string old_header, file.Read(0, kBlock));
  ASSIGN_OR_RETURN(SegmentHeader header, DecodeHeader(Bytes(old_header)));
  header.n_tokens = was.n_tokens;  // no manifest says it
  if (header != was) return DataLoss("its header is not what the manifest says");
  ASSIGN_OR_RETURN(const std::string old_footer, file.Read(file.bytes - kBlock, kBlock));
  ASSIGN_OR_RETURN(Footer footer, DecodeFooter(Bytes(old_footer), file.bytes));
  ASSIGN_OR_RETURN(header, DecodeHeader(Bytes(old_header)));
  header.conversation = conversation;
  header.generation = generation;
  const std::string new_header = EncodeHeader(header);
  ASSIGN_OR_RETURN(const IndexDigests digests, DigestIndex(file, footer, old_header, new_header));
  if (digests.before != footer.index_digest || digests.before != index_digest) {
    return DataLoss("its index is damaged: its digest differs");
  }
  footer.index_digest = digests.after;
  RETURN_IF_ERROR(WriteAt(file.fd.get(), path, 0, new_header));
  RETURN_IF_ERROR(WriteAt(file.fd.get(), path, file.bytes - kBlock, EncodeFooter(footer)));
  RETURN_IF_ERROR(SyncFile(file.fd.get(), path));
  return digests.after;
}

absl::Status RebindJournal(const std::string& from, const std::string& to, const std::string& owner,
                           const std::string& id) {
  ASSIGN_OR_RETURN(const OpenedFile in, OpenedFile::Open(JoinPath(from, kJournalName), OpenMode::kRead));
  ASSIGN_OR_RETURN(const OpenedFile out, OpenedFile::Open(JoinPath(to, kJournalName), OpenMode::kCreate));
  Appender appender(out);
  uint64_t salt = 0;
  Digest chain;
  for (uint64_t at = 0; at < in.bytes;) {
    ASSIGN_OR_RETURN(const std::string header_text, in.Read(at, kFrameHeaderBytes));
    std::optional<FrameHeader> header = DecodeFrameHeader(header_text, salt);
    if (!header.has_value()) return DataLoss("{}: no frame at byte {}", in.path, at);
    ASSIGN_OR_RETURN(std::string payload, in.Read(at + kFrameHeaderBytes, header->payload_bytes));
    at += header->FrameBytes();
    header->previous = chain;
    uint64_t next_salt = salt;
    if (header->kind == FrameKind::kOpen) {
      std::optional<OpenFrame> open = DecodeOpen(payload);
      if (!open.has_value()) return DataLoss("{}: its open frame is not valid", in.path);
      next_salt = open->salt;
      open->owner = owner;
      open->id = id;
      payload = EncodeOpen(*open);
    }
    RETURN_IF_ERROR(appender.Append(EncodeFrame(*header, salt, payload, &chain)));
    salt = next_salt;
  }
  RETURN_IF_ERROR(appender.Flush());
  return SyncFile(out.fd.get(), out.path);
}

}  // namespace layover
