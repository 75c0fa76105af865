#include "common/segment_link/segment_server.h"

#include <cstring>

#include "common/limits.h"
#include "common/log.h"
#include "common/segment_link/segment_link.h"
#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<SegmentServer>> SegmentServer::Start(wire::SocketContext& context,
                                                                    const std::vector<wire::FileEnd>& ends,
                                                                    const std::string& store) {
  std::unique_ptr<SegmentServer> server(new SegmentServer(store));
  for (const wire::FileEnd& end : ends) {
    ASSIGN_OR_RETURN(auto socket, OpenSegmentEnd(context, end));
    server->sockets_.push_back(std::move(socket));
  }
  server->thread_ = std::thread([raw = server.get()] { raw->Loop(); });
  return server;
}

SegmentServer::~SegmentServer() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void SegmentServer::Loop() {
  while (!stop_) {
    std::vector<wire::PollItem> items;
    for (const auto& socket : sockets_) items.push_back({.socket = socket.get()});
    if (!wire::Poll(items, limits::kHeartbeatIntervalMs).ok()) return;
    for (const auto& socket : sockets_) {
      const absl::Status answered = AnswerAll(*socket);
      if (!answered.ok()) LogWarning("segment link: {}", ToStd(answered.message()));
    }
  }
}

absl::Status SegmentServer::AnswerAll(wire::Socket& socket) const {
  while (!stop_) {
    ASSIGN_OR_RETURN(const auto parts, socket.Receive());
    if (!parts.has_value()) return absl::OkStatus();
    SegmentRequest request;
    if (parts->size() != 3 || (*parts)[1].size() != sizeof(request)) continue;
    std::memcpy(&request, (*parts)[1].data(), sizeof(request));
    if (request.magic != SegmentRequest().magic) continue;
    const SegmentPiece piece = ReadSegmentPiece(store_, request, (*parts)[2]);
    // A reader that is gone needs no answer.
    (void)socket.Send({(*parts)[0], {reinterpret_cast<const char*>(&piece.answer), sizeof(piece.answer)}, piece.bytes});
  }
  return absl::OkStatus();
}

}  // namespace layover
