// Reading a segment that lies on another machine: whole blocks of it, asked for by name over a link of its own. The
// format's own rules prove what comes (SegmentReader on top of it), and only what a reader needs travels.
//
// A request and its answer are two parts each (docs/wire_protocol.md). The side that keeps the files answers with a
// ROUTER socket, the side that reads asks with a DEALER; either may be the end that binds.
#ifndef LAYOVER_COMMON_SEGMENT_LINK_SEGMENT_LINK_H_
#define LAYOVER_COMMON_SEGMENT_LINK_SEGMENT_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/block_io.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"

namespace layover {

struct SegmentRequest {
  uint32_t magic = 0x5152464c;  // "LFRQ"
  uint32_t zero = 0;
  uint64_t number = 0;  // of the request, for its answer
  uint64_t offset = 0;
  uint64_t bytes = 0;  // at most limits::kIoBufferBytes; 0: only the file's length is asked for
};
static_assert(sizeof(SegmentRequest) == 32);

struct SegmentAnswer {
  uint32_t magic = 0x5052464c;  // "LFRP"
  int32_t code = 0;             // absl::StatusCode; the second part is the bytes, or what is wrong
  uint64_t number = 0;
  uint64_t file_bytes = 0;
};
static_assert(sizeof(SegmentAnswer) == 24);

// PUSH and PULL have one in stage_worker/links; this opens the ends of segment links. An end without keys is not
// encrypted.
absl::StatusOr<std::unique_ptr<wire::Socket>> OpenSegmentEnd(wire::SocketContext& context, const wire::FileEnd& end);

// The reading side of one link. One thread uses it and what it opens.
class SegmentLink {
 public:
  // `host` stands in messages.
  SegmentLink(std::unique_ptr<wire::Socket> socket, std::string host);

  // Of FOLDER/FILE. NotFound if the other side does not have it; Unavailable, naming the host, if it does not answer.
  // The link outlives the reader; `memory` is as in BlockIoOptions.
  absl::StatusOr<std::unique_ptr<BlockReader>> Open(const std::string& folder, const std::string& file,
                                                    IoMemory* memory = nullptr);

 private:
  friend class LinkedReader;
  struct Piece {
    uint64_t file_bytes = 0;
    std::string bytes;
  };
  absl::StatusOr<uint64_t> Ask(const std::string& name, uint64_t offset, uint64_t bytes);  // the request's number
  absl::StatusOr<Piece> Await(const std::string& name, uint64_t number);

  const std::unique_ptr<wire::Socket> socket_;
  const std::string host_;
  uint64_t next_number_ = 1;
};

// Answers one request: `name` is FOLDER/FILE, looked up below STORE/c. Nothing else of the machine can be read.
struct SegmentPiece {
  SegmentAnswer answer;
  std::string bytes;
};
SegmentPiece ReadSegmentPiece(const std::string& store, const SegmentRequest& request, std::string_view name);

}  // namespace layover

#endif  // LAYOVER_COMMON_SEGMENT_LINK_SEGMENT_LINK_H_
