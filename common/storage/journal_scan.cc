#include "common/storage/journal_scan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/journal_format.h"
#include "common/storage/on_disk.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr size_t kWindowBytes = limits::kMiB;

absl::Status Named(const absl::Status& status) {
  if (status.ok()) return status;
  StatusPart part;
  part.file = std::string(kJournalName);
  return WithPart(absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", kJournalName, ToStd(status.message())))),
                  part);
}

// A file seen through a window that moves forward.
class Window {
 public:
  Window(UniqueFd fd, std::string path, uint64_t size) : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  uint64_t size() const { return size_; }

  // Bytes [offset, offset + bytes) of the file, valid until the next call. The range lies within the file.
  absl::StatusOr<std::string_view> At(uint64_t offset, size_t bytes) {
    if (offset < begin_ || offset + bytes > begin_ + buffer_.size()) RETURN_IF_ERROR(Fill(offset, bytes));
    return std::string_view(buffer_).substr(offset - begin_, bytes);
  }

 private:
  absl::Status Fill(uint64_t offset, size_t bytes) {
    begin_ = offset;
    buffer_.resize(std::min<uint64_t>(std::max(bytes, kWindowBytes), size_ - offset));
    for (size_t done = 0; done < buffer_.size();) {
      const ssize_t got =
          pread(fd_.get(), buffer_.data() + done, buffer_.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, fmt::format("read {}", path_));
      if (got == 0) return Internal("read {}: it became shorter", path_);
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

  UniqueFd fd_;
  const std::string path_;
  const uint64_t size_;
  std::string buffer_;
  uint64_t begin_ = 0;
};

class Scanner {
 public:
  Scanner(Window window, std::optional<JournalBound> bound) : window_(std::move(window)), bound_(std::move(bound)) {}

  absl::StatusOr<JournalScan> Run(const FolderDigest& folder) {
    RETURN_IF_ERROR(ReadOpen(folder));
    for (;;) {
      ASSIGN_OR_RETURN(const bool good, ReadFrame());
      if (!good) break;
    }
    RETURN_IF_ERROR(CheckBound());
    if (scan_.end.bytes < window_.size()) RETURN_IF_ERROR(CheckTorn());
    scan_.torn_bytes = window_.size() - scan_.end.bytes;
    return std::move(scan_);
  }

 private:
  absl::Status ReadOpen(const FolderDigest& folder) {
    ASSIGN_OR_RETURN(const std::optional<std::string_view> frame, WholeFrame(0, /*salt=*/0));
    Digest chain;
    if (!frame.has_value() || !CheckFramePayload(*frame, &chain)) return Damage("its first frame is not good");
    const std::optional<FrameHeader> header = DecodeFrameHeader(*frame, 0);
    if (header->kind != FrameKind::kOpen || header->sequence != 0 || !header->previous.IsZero()) {
      return Damage("its first frame is not an open frame");
    }
    const std::optional<OpenFrame> open = DecodeOpen(PayloadOf(*frame));
    if (!open.has_value()) return Damage("its open frame is not valid");
    if (ConversationDigest(open->owner, open->id) != folder) return DataLoss("it belongs to another conversation");
    scan_.state.owner = open->owner;
    scan_.state.id = open->id;
    scan_.state.created_at_ms = open->time_ms;
    scan_.salt = open->salt;
    Accept(frame->size(), chain);
    return absl::OkStatus();
  }

  // Reads the frame at the end of the good ones; false if there is none.
  absl::StatusOr<bool> ReadFrame() {
    ASSIGN_OR_RETURN(const std::optional<std::string_view> frame, WholeFrame(scan_.end.bytes, scan_.salt));
    Digest chain;
    if (!frame.has_value() || !Follows(*DecodeFrameHeader(*frame, scan_.salt)) || !CheckFramePayload(*frame, &chain)) {
      return false;
    }
    const absl::Status applied =
        ApplyFrame(DecodeFrameHeader(*frame, scan_.salt)->kind, PayloadOf(*frame), &scan_.state);
    if (!applied.ok()) {
      why_ = ToStd(applied.message());
      return false;
    }
    Accept(frame->size(), chain);
    return true;
  }

  // The frame at `offset` if its header is good by itself and all of it lies within the file.
  absl::StatusOr<std::optional<std::string_view>> WholeFrame(uint64_t offset, uint64_t salt) {
    if (window_.size() - offset < kFrameHeaderBytes) return std::nullopt;
    ASSIGN_OR_RETURN(const std::string_view bytes, window_.At(offset, kFrameHeaderBytes));
    const std::optional<FrameHeader> header = DecodeFrameHeader(bytes, salt);
    if (!header.has_value() || header->FrameBytes() > window_.size() - offset) return std::nullopt;
    ASSIGN_OR_RETURN(const std::string_view frame, window_.At(offset, header->FrameBytes()));
    return frame;
  }

  static std::string_view PayloadOf(std::string_view frame) {
    return frame.substr(kFrameHeaderBytes, frame.size() - kFrameHeaderBytes - kFrameTrailerBytes);
  }

  bool Follows(const FrameHeader& header) const {
    return header.sequence == scan_.next_sequence && header.previous == scan_.end.chain;
  }

  void Accept(size_t bytes, const Digest& chain) {
    scan_.end.bytes += bytes;
    scan_.end.chain = chain;
    ++scan_.next_sequence;
    if (bound_.has_value() && scan_.end == *bound_) reached_bound_ = true;
  }

  absl::Status CheckBound() const {
    if (!bound_.has_value() || reached_bound_) return absl::OkStatus();
    return Damage(fmt::format("the manifest binds it up to byte {}, which it does not reach", bound_->bytes));
  }

  // Whether what lies behind the good frames is what a crash leaves. Everything else is damage.
  absl::Status CheckTorn() {
    ASSIGN_OR_RETURN(const bool synced_behind, SyncedFrameBehind());
    if (synced_behind) return Damage("a good frame lies behind a damaged one");
    ASSIGN_OR_RETURN(const bool past_end, RunsPastEnd());
    if (past_end) return absl::OkStatus();
    ASSIGN_OR_RETURN(const bool zero, EndsInZeros());
    if (zero) return absl::OkStatus();
    return Damage(why_.empty() ? "the frame there is not good" : why_);
  }

  absl::StatusOr<bool> SyncedFrameBehind() {
    for (uint64_t offset = scan_.end.bytes; window_.size() - offset >= kFrameHeaderBytes;) {
      const size_t bytes = std::min<uint64_t>(kWindowBytes, window_.size() - offset);
      ASSIGN_OR_RETURN(const std::string_view piece, window_.At(offset, bytes));
      const size_t found = piece.find(std::string_view(kFrameMagic, sizeof(kFrameMagic)));
      if (found == std::string_view::npos) {
        offset += bytes - (sizeof(kFrameMagic) - 1);  // the magic may straddle the pieces
        continue;
      }
      offset += found;
      ASSIGN_OR_RETURN(const std::optional<std::string_view> frame, WholeFrame(offset, scan_.salt));
      Digest chain;
      if (frame.has_value() && CheckFramePayload(*frame, &chain)) {
        const FrameHeader header = *DecodeFrameHeader(*frame, scan_.salt);
        if (IsSyncedKind(header.kind) && header.sequence >= scan_.next_sequence) return true;
      }
      ++offset;
    }
    return false;
  }

  absl::StatusOr<bool> RunsPastEnd() {
    const uint64_t left = window_.size() - scan_.end.bytes;
    if (left < kFrameHeaderBytes) return true;
    ASSIGN_OR_RETURN(const std::string_view bytes, window_.At(scan_.end.bytes, kFrameHeaderBytes));
    const std::optional<FrameHeader> header = DecodeFrameHeader(bytes, scan_.salt);
    return header.has_value() && Follows(*header) && header->FrameBytes() > left;
  }

  // Zero from some multiple of 512, at or behind the good frames, to the end.
  absl::StatusOr<bool> EndsInZeros() {
    uint64_t zero_begin = scan_.end.bytes;
    for (uint64_t offset = scan_.end.bytes; offset < window_.size();) {
      const size_t bytes = std::min<uint64_t>(kWindowBytes, window_.size() - offset);
      ASSIGN_OR_RETURN(const std::string_view piece, window_.At(offset, bytes));
      const size_t last = piece.find_last_not_of('\0');
      if (last != std::string_view::npos) zero_begin = offset + last + 1;
      offset += bytes;
    }
    const uint64_t boundary = (zero_begin + kTornBoundaryBytes - 1) / kTornBoundaryBytes * kTornBoundaryBytes;
    return boundary < window_.size();
  }

  absl::Status Damage(std::string_view what) const {
    return DataLoss("damaged at byte {} of {}: {}", scan_.end.bytes, window_.size(), what);
  }

  Window window_;
  const std::optional<JournalBound> bound_;
  bool reached_bound_ = false;
  JournalScan scan_;
  std::string why_;
};

absl::StatusOr<JournalScan> Scan(const std::string& folder, const std::optional<JournalBound>& bound) {
  const std::optional<FolderDigest> digest = ParseFolderName(BaseName(folder));
  if (!digest.has_value()) return InvalidArgument("{} is no conversation's folder", folder);
  const std::string path = JoinPath(folder, kJournalName);
  ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, OpenMode::kRead));
  ASSIGN_OR_RETURN(const uint64_t size, FileBytes(fd.get(), path));
  if (size > limits::kMaxJournalBytes) return DataLoss("{} bytes are too many", size);
  return Scanner(Window(std::move(fd), path, size), bound).Run(*digest);
}

}  // namespace

absl::StatusOr<JournalScan> ScanJournal(const std::string& folder, const std::optional<JournalBound>& bound) {
  absl::StatusOr<JournalScan> scan = Scan(folder, bound);
  if (!scan.ok()) return Named(scan.status());
  return scan;
}

}  // namespace layover
