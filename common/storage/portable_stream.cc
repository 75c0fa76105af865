#include "common/storage/portable_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "fmt/format.h"

namespace layover {
namespace {

// The nonce's counter has 32 bits.
bool CountFits(uint64_t bytes, uint32_t chunk_bytes) {
  return bytes >= 1 && (bytes - 1) / chunk_bytes < UINT32_MAX;
}

// ----------------------------------------------------------------------------------------------------------- writing

class PortableWriterImpl : public PortableWriter {
 public:
  PortableWriterImpl(std::string file, ChunkSeal seal) : file_(std::move(file)), seal_(std::move(seal)) {}
  ~PortableWriterImpl() override {
    fd_.reset();
    if (temporary_.empty()) return;
    // "/.": the user's folder may be reached through a link.
    RemoveFile(std::string(DirName(temporary_)) + "/.", BaseName(temporary_)).IgnoreError();
  }

  absl::Status Begin(const PortableHeader& header, const std::string& head, uint64_t body_bytes) {
    RETURN_IF_ERROR(OpenTemporary());
    const std::string header_text = EncodePortableHeader(header);
    RETURN_IF_ERROR(WriteAt(fd_.get(), path_, 0, header_text));
    written_ = header_text.size();
    chunk_.resize(header.chunk_bytes + kChunkTrailerBytes);
    seal_.Bind(PortableBinding(header_text, ""));
    BeginPart(PortablePart::kHead, head.size());
    RETURN_IF_ERROR(Append(head));
    LAYOVER_CHECK(left_ == 0);
    seal_.Bind(PortableBinding(header_text, head));
    BeginPart(PortablePart::kBody, body_bytes);
    return absl::OkStatus();
  }

  absl::Status Append(std::string_view bytes) override {
    LAYOVER_CHECK(bytes.size() <= left_);
    while (!bytes.empty()) {
      const size_t piece = std::min(bytes.size(), chunk_.size() - kChunkTrailerBytes - fill_);
      std::memcpy(chunk_.data() + fill_, bytes.data(), piece);
      bytes.remove_prefix(piece);
      fill_ += piece;
      left_ -= piece;
      if (fill_ == chunk_.size() - kChunkTrailerBytes || left_ == 0) RETURN_IF_ERROR(WriteChunk());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Finish() override {
    LAYOVER_CHECK(left_ == 0);
    RETURN_IF_ERROR(SyncFile(fd_.get(), path_));
    RETURN_IF_ERROR(temporary_.empty() ? PublishUnnamed(fd_.get(), file_) : PublishDurably(temporary_, file_));
    temporary_.clear();
    return written_;
  }

 private:
  // A file without a name, which no crash leaves behind; a temporary one where the file system has no such files.
  absl::Status OpenTemporary() {
    absl::StatusOr<UniqueFd> unnamed = OpenUnnamed(std::string(DirName(file_)));
    path_ = file_;
    if (unnamed.ok()) {
      fd_ = *std::move(unnamed);
      return absl::OkStatus();
    }
    if (!absl::IsFailedPrecondition(unnamed.status())) return unnamed.status();
    uint32_t number;
    const Bytes32 random = RandomSalt32();
    std::memcpy(&number, random.data(), sizeof(number));
    const std::string name = fmt::format("{}.{:08x}{}", file_, number, kTemporarySuffix);
    fd_ = UniqueFd(open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd_.valid()) return ErrnoStatus(errno, fmt::format("create {}", name));
    path_ = temporary_ = name;
    return absl::OkStatus();
  }

  void BeginPart(PortablePart part, uint64_t bytes) {
    part_ = part;
    left_ = bytes;
    counter_ = 0;
    fill_ = 0;
  }

  absl::Status WriteChunk() {
    const std::span<uint8_t> data(chunk_.data(), fill_);
    const std::span<uint8_t, kChunkTrailerBytes> trailer(chunk_.data() + fill_, kChunkTrailerBytes);
    RETURN_IF_ERROR(seal_.Seal(MakeChunkNonce(part_, counter_, left_ == 0), data, trailer));
    const std::string_view bytes(reinterpret_cast<const char*>(chunk_.data()), fill_ + kChunkTrailerBytes);
    RETURN_IF_ERROR(WriteAt(fd_.get(), path_, written_, bytes));
    written_ += bytes.size();
    fill_ = 0;
    ++counter_;
    return absl::OkStatus();
  }

  const std::string file_;
  ChunkSeal seal_;
  std::string path_;       // what errors name
  std::string temporary_;  // empty: there is none to remove
  UniqueFd fd_;
  uint64_t written_ = 0;
  std::vector<uint8_t> chunk_;  // a piece and its trailer
  size_t fill_ = 0;             // of the piece
  PortablePart part_ = PortablePart::kHead;
  uint64_t left_ = 0;  // of the part, that Append has not been given
  uint32_t counter_ = 0;
};

absl::Status CheckFree(const std::string& file) {
  struct stat info;
  if (lstat(file.c_str(), &info) != 0) return absl::OkStatus();
  return absl::AlreadyExistsError(ToAbsl(fmt::format("{} exists; it is not overwritten", file)));
}

// ----------------------------------------------------------------------------------------------------------- reading

class PortableReaderImpl : public PortableReader {
 public:
  PortableReaderImpl(std::string file, UniqueFd fd, uint64_t file_bytes)
      : file_(std::move(file)), fd_(std::move(fd)), file_bytes_(file_bytes) {}

  absl::Status Begin(const PortableSecret& secret) { return Named(ReadHeaderAndHead(secret)); }

  const PortableHeader& header() const override { return header_; }
  const PortableHead& head() const override { return head_; }
  uint64_t file_bytes() const override { return file_bytes_; }

  absl::Status ExpectBody(uint64_t body_bytes) override {
    const uint64_t there = file_bytes_ - at_;
    if (!CountFits(body_bytes, header_.chunk_bytes) || SealedBytes(body_bytes, header_.chunk_bytes) != there) {
      return Named(DataLoss("{} bytes follow the head, which promises {}: it is cut short or too long", there,
                            SealedBytes(body_bytes, header_.chunk_bytes)));
    }
    BeginPart(PortablePart::kBody, body_bytes);
    return absl::OkStatus();
  }

  absl::Status Read(std::span<std::byte> out) override { return Named(ReadPart(out)); }

 private:
  absl::Status ReadHeaderAndHead(const PortableSecret& secret) {
    if (file_bytes_ < kPortableHeaderBytes) return DataLoss("the header is cut short");
    std::string header_text(kPortableHeaderBytes, '\0');
    RETURN_IF_ERROR(ReadAt(header_text.data(), header_text.size()));
    ASSIGN_OR_RETURN(header_, DecodePortableHeader(header_text));
    // Before anything is allocated for it.
    if (SealedBytes(header_.head_bytes, header_.chunk_bytes) >= file_bytes_ - kPortableHeaderBytes) {
      return DataLoss("it is cut short: {} bytes, a head of {}", file_bytes_, header_.head_bytes);
    }
    RETURN_IF_ERROR(TakeKey(secret));
    chunk_.resize(header_.chunk_bytes + kChunkTrailerBytes);
    seal_->Bind(PortableBinding(header_text, ""));
    BeginPart(PortablePart::kHead, header_.head_bytes);
    std::string head_text(header_.head_bytes, '\0');
    RETURN_IF_ERROR(ReadPart(std::as_writable_bytes(std::span(head_text))));
    ASSIGN_OR_RETURN(head_, DecodePortableHead(head_text));
    seal_->Bind(PortableBinding(header_text, head_text));
    return absl::OkStatus();
  }

  absl::Status TakeKey(const PortableSecret& secret) {
    if (secret.source() != header_.key_source) {
      switch (header_.key_source) {
        case KeySource::kNone:
          return FailedPrecondition("it is not encrypted, so a key proves nothing about it; import it without one");
        case KeySource::kKeyFile:
          return FailedPrecondition("it is encrypted with a key file; --key-file is needed");
        case KeySource::kPassphrase:
          return FailedPrecondition("it is encrypted with a passphrase; --passphrase-file is needed");
      }
    }
    Bytes32 check;
    absl::StatusOr<ChunkSeal> seal = ChunkSeal::Create(secret, header_.salt, &check);
    RETURN_IF_ERROR(seal.status());
    if (check != header_.key_check) return DataLoss("it was encrypted with another key or passphrase");
    seal_.emplace(*std::move(seal));
    return absl::OkStatus();
  }

  void BeginPart(PortablePart part, uint64_t bytes) {
    part_ = part;
    left_ = bytes;
    counter_ = 0;
    held_ = {};
  }

  absl::Status ReadPart(std::span<std::byte> out) {
    while (!out.empty()) {
      if (held_.empty()) RETURN_IF_ERROR(ReadChunk());
      const size_t piece = std::min(out.size(), held_.size());
      std::memcpy(out.data(), held_.data(), piece);
      out = out.subspan(piece);
      held_ = held_.subspan(piece);
    }
    return absl::OkStatus();
  }

  absl::Status ReadChunk() {
    LAYOVER_CHECK(left_ > 0);  // nobody asks for more than ExpectBody was told
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(left_, header_.chunk_bytes));
    const uint64_t begin = at_;
    RETURN_IF_ERROR(ReadAt(chunk_.data(), bytes + kChunkTrailerBytes));
    left_ -= bytes;
    const std::span<uint8_t> data(chunk_.data(), bytes);
    const std::span<const uint8_t, kChunkTrailerBytes> trailer(chunk_.data() + bytes, kChunkTrailerBytes);
    if (!seal_->Open(MakeChunkNonce(part_, counter_, left_ == 0), data, trailer)) {
      return DataLoss("damaged, or put together from several files: bytes [{}, {}) are not what was written there",
                      begin, at_);
    }
    held_ = data;
    ++counter_;
    return absl::OkStatus();
  }

  // The next bytes of the file.
  absl::Status ReadAt(void* out, size_t bytes) {
    auto* to = static_cast<char*>(out);
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = pread(fd_.get(), to + done, bytes - done, static_cast<off_t>(at_ + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, "read");
      if (got == 0) return DataLoss("it became shorter while it was read");
      done += static_cast<size_t>(got);
    }
    at_ += bytes;
    return absl::OkStatus();
  }

  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    StatusPart part = PartOf(status).value_or(StatusPart{});
    part.file = file_;
    return WithPart(absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", file_, ToStd(status.message())))), part);
  }

  const std::string file_;
  const UniqueFd fd_;
  const uint64_t file_bytes_;
  uint64_t at_ = 0;
  PortableHeader header_;
  PortableHead head_;
  std::optional<ChunkSeal> seal_;
  std::vector<uint8_t> chunk_;
  std::span<const uint8_t> held_;  // of chunk_, verified and not yet handed out
  PortablePart part_ = PortablePart::kHead;
  uint64_t left_ = 0;  // of the part, in chunks not yet read
  uint32_t counter_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PortableWriter>> PortableWriter::Create(const std::string& file,
                                                                       const PortableSecret& secret,
                                                                       const PortableHead& head, uint64_t body_bytes,
                                                                       const PortableWriteOptions& options) {
  RETURN_IF_ERROR(CheckFree(file));
  if (!CountFits(body_bytes, options.chunk_bytes)) {
    return ResourceExhausted("{} bytes do not fit into one portable file", body_bytes);
  }
  const std::string head_text = EncodePortableHead(head);
  PortableHeader header;
  header.cipher = secret.source() == KeySource::kNone ? PortableCipher::kNone : PortableCipher::kAes256Gcm;
  header.key_source = secret.source();
  header.chunk_bytes = options.chunk_bytes;
  header.head_bytes = head_text.size();
  header.salt = options.salt.has_value() ? *options.salt : RandomSalt32();
  absl::StatusOr<ChunkSeal> seal = ChunkSeal::Create(secret, header.salt, &header.key_check);
  RETURN_IF_ERROR(seal.status());
  auto writer = std::make_unique<PortableWriterImpl>(file, *std::move(seal));
  RETURN_IF_ERROR(writer->Begin(header, head_text, body_bytes));
  return writer;
}

absl::StatusOr<std::unique_ptr<PortableReader>> PortableReader::Open(const std::string& file,
                                                                     const PortableSecret& secret) {
  UniqueFd fd(open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", file));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", file));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{} is not a regular file", file);
  static_cast<void>(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL));
  auto reader = std::make_unique<PortableReaderImpl>(file, std::move(fd), static_cast<uint64_t>(info.st_size));
  RETURN_IF_ERROR(reader->Begin(secret));
  return reader;
}

}  // namespace layover
