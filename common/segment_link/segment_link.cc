#include "common/segment_link/segment_link.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/io_queue.h"

namespace layover {

absl::StatusOr<std::unique_ptr<wire::Socket>> OpenSegmentEnd(wire::SocketContext& context, const wire::FileEnd& end) {
  const wire::CurveKeys keys{
      .own_secret = end.end.own_secret, .peer_public = end.end.peer_public, .is_server = end.end.binds};
  const wire::SocketKind kind = end.serves ? wire::SocketKind::kRouter : wire::SocketKind::kDealer;
  ASSIGN_OR_RETURN(auto socket, wire::Socket::Open(context, kind, {.curve = keys}));
  RETURN_IF_ERROR(end.end.binds ? socket->Bind(end.end.endpoint) : socket->Connect(end.end.endpoint));
  return socket;
}

// Blocks over a link, several requests in flight.
class LinkedReader : public BlockReader {
 public:
  LinkedReader(SegmentLink* link, std::string name, uint64_t file_bytes, IoMemory* memory)
      : link_(link), name_(std::move(name)), file_bytes_(file_bytes) {
    room_.SetSource(memory);
  }

  uint64_t file_bytes() const override { return file_bytes_; }
  uint64_t bytes_read() const override { return bytes_read_; }

  using BlockReader::Read;
  absl::Status Read(std::span<const Extent> extents, const Use& use, const ReadHold* hold) override {
    const absl::Status status = ReadAll(extents, use, hold);
    room_.Release();  // others may want it: of many readers one is at work
    return status;
  }

 private:
  absl::Status ReadAll(std::span<const Extent> extents, const Use& use, const ReadHold* hold) {
    std::deque<Asked> asked;
    Place next;
    for (size_t i = 0; i < extents.size(); ++i) {
      if (extents[i].offset + extents[i].bytes > file_bytes_) {
        return DataLoss("{} has {} bytes, {} are needed", name_, file_bytes_, extents[i].offset + extents[i].bytes);
      }
    }
    for (size_t i = 0; i < extents.size(); ++i) {
      RETURN_IF_ERROR(room_.Grow(extents[i].bytes, 0));
      std::byte* const block = room_.data();
      for (uint64_t done = 0; done < extents[i].bytes;) {
        RETURN_IF_ERROR(AskMore(extents, &next, &asked));
        const Asked piece = asked.front();
        asked.pop_front();
        ASSIGN_OR_RETURN(const SegmentLink::Piece got, link_->Await(name_, piece.number));
        if (got.bytes.size() != piece.bytes || got.file_bytes != file_bytes_) {
          return DataLoss("{} changed while it was read", name_);
        }
        std::memcpy(block + done, got.bytes.data(), got.bytes.size());
        done += piece.bytes;
        bytes_read_ += piece.bytes;
      }
      const absl::Status status = use(i, {block, extents[i].bytes});
      // There is one buffer, as the network is slower than what reads it.
      if (hold != nullptr) {
        hold->used();
        hold->wait();
      }
      RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  struct Asked {
    uint64_t number;
    uint64_t bytes;
  };
  struct Place {  // what is asked for next
    size_t extent = 0;
    uint64_t done = 0;
  };

  // In the order of the extents, so that the answers come in that order too.
  absl::Status AskMore(std::span<const Extent> extents, Place* next, std::deque<Asked>* asked) {
    while (next->extent < extents.size() && asked->size() < static_cast<size_t>(limits::kIoReadsInFlight)) {
      const Extent& extent = extents[next->extent];
      const uint64_t bytes = std::min<uint64_t>(limits::kIoBufferBytes, extent.bytes - next->done);
      ASSIGN_OR_RETURN(const uint64_t number, link_->Ask(name_, extent.offset + next->done, bytes));
      asked->push_back({number, bytes});
      next->done += bytes;
      if (next->done == extent.bytes) *next = {next->extent + 1, 0};
    }
    return absl::OkStatus();
  }

  SegmentLink* const link_;
  const std::string name_;
  const uint64_t file_bytes_;
  uint64_t bytes_read_ = 0;
  IoBuffer room_;
};

SegmentLink::SegmentLink(std::unique_ptr<wire::Socket> socket, std::string host)
    : socket_(std::move(socket)), host_(std::move(host)) {}

absl::StatusOr<std::unique_ptr<BlockReader>> SegmentLink::Open(const std::string& folder, const std::string& file,
                                                               IoMemory* memory) {
  const std::string name = JoinPath(folder, file);
  ASSIGN_OR_RETURN(const uint64_t number, Ask(name, 0, 0));
  ASSIGN_OR_RETURN(const Piece piece, Await(name, number));
  return std::make_unique<LinkedReader>(this, name, piece.file_bytes, memory);
}

absl::StatusOr<uint64_t> SegmentLink::Ask(const std::string& name, uint64_t offset, uint64_t bytes) {
  const SegmentRequest request{.number = next_number_++, .offset = offset, .bytes = bytes};
  const std::string_view head(reinterpret_cast<const char*>(&request), sizeof(request));
  absl::Status sent = socket_->Send({head, name});
  if (absl::IsUnavailable(sent)) {
    socket_->WaitForPeer(limits::kSegmentAnswerMs);  // it is connecting
    sent = socket_->Send({head, name});
  }
  if (!sent.ok()) return Unavailable("{}: {} cannot be reached", name, host_);
  return request.number;
}

absl::StatusOr<SegmentLink::Piece> SegmentLink::Await(const std::string& name, uint64_t number) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(limits::kSegmentAnswerMs);
  while (true) {
    ASSIGN_OR_RETURN(auto parts, socket_->Receive());
    if (parts.has_value()) {
      SegmentAnswer answer;
      if (parts->size() != 2 || (*parts)[0].size() != sizeof(answer))
        return DataLoss("{}: {} answers badly", name, host_);
      std::memcpy(&answer, (*parts)[0].data(), sizeof(answer));
      if (answer.magic != SegmentAnswer().magic) return DataLoss("{}: {} answers badly", name, host_);
      if (answer.number != number) continue;  // of a read that was given up
      if (answer.code != 0) {
        return absl::Status(static_cast<absl::StatusCode>(answer.code), fmt::format("{}: {}", host_, (*parts)[1]));
      }
      return Piece{answer.file_bytes, std::move((*parts)[1])};
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Unavailable("{}: {} has not answered for {} ms", name, host_, limits::kSegmentAnswerMs);
    std::vector<wire::PollItem> items = {{.socket = socket_.get()}};
    RETURN_IF_ERROR(wire::Poll(items, static_cast<int>(left)));
  }
}

namespace {

absl::Status ReadPiece(const std::string& store, const SegmentRequest& request, std::string_view name,
                       SegmentPiece* piece) {
  const std::string folder(DirName(name)), file(BaseName(name));
  if (!ParseFolderName(folder).has_value() || !ParseSegmentFileName(file).has_value()) {
    return InvalidArgument("'{}' is no segment", name.substr(0, 128));
  }
  const std::string path = JoinPath(ConversationPath(store, folder), file);
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, OpenMode::kRead));
  ASSIGN_OR_RETURN(piece->answer.file_bytes, FileBytes(fd.get(), path));
  if (request.bytes > limits::kIoBufferBytes || request.offset > piece->answer.file_bytes ||
      request.bytes > piece->answer.file_bytes - request.offset) {
    return InvalidArgument("{} has {} bytes, not {} from {}", file, piece->answer.file_bytes, request.bytes,
                           request.offset);
  }
  piece->bytes.resize(request.bytes);
  for (size_t done = 0; done < piece->bytes.size();) {
    const ssize_t got = pread(fd.get(), piece->bytes.data() + done, piece->bytes.size() - done,
                              static_cast<off_t>(request.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read " + path);
    if (got == 0) return DataLoss("{} became shorter", file);
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

SegmentPiece ReadSegmentPiece(const std::string& store, const SegmentRequest& request, std::string_view name) {
  SegmentPiece piece;
  const absl::Status status = ReadPiece(store, request, name, &piece);
  piece.answer.number = request.number;
  piece.answer.code = static_cast<int32_t>(status.code());
  if (!status.ok()) piece.bytes = std::string(ToStd(status.message()));
  return piece;
}

}  // namespace layover
