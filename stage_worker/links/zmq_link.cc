// Activations over ZeroMQ: one PUSH to PULL socket a hop, frames of two parts (docs/wire_protocol.md).
#include <cstring>

#include "common/remote_limits.h"
#include "common/status.h"
#include "stage_worker/links/data_link.h"

namespace layover {
namespace {

class ZmqSender : public DataSender {
 public:
  explicit ZmqSender(std::unique_ptr<wire::Socket> socket) : socket_(std::move(socket)) {}

  absl::Status Send(const wire::FrameHeader& header, const float* rows) override {
    const std::vector<std::string_view> parts = {
        std::string_view(reinterpret_cast<const char*>(&header), sizeof(header)),
        std::string_view(reinterpret_cast<const char*>(rows), sizeof(float) * header.n_rows * header.dim)};
    absl::Status sent = socket_->Send(parts);
    if (!absl::IsUnavailable(sent)) return sent;
    // This end is bound, and the other one connects again after its restart.
    socket_->WaitForPeer(limits::kDataPeerMs);
    return socket_->Send(parts);
  }

 private:
  std::unique_ptr<wire::Socket> socket_;
};

class ZmqReceiver : public DataReceiver {
 public:
  explicit ZmqReceiver(std::unique_ptr<wire::Socket> socket) : socket_(std::move(socket)) {}

  wire::Socket* socket() override { return socket_.get(); }

  absl::Status Drain(uint32_t epoch) override {
    while (true) {
      ASSIGN_OR_RETURN(auto message, socket_->Receive());
      if (!message.has_value()) return absl::OkStatus();
      wire::FrameHeader header;
      if (message->size() != 2 || (*message)[0].size() != sizeof(header))
        return DataLoss("activation frame: bad shape");
      std::memcpy(&header, (*message)[0].data(), sizeof(header));
      if (header.magic != wire::FrameHeader().magic) return DataLoss("activation frame: bad magic");
      if (header.epoch == epoch) frames_[header.seq] = {header, std::move((*message)[1])};
    }
  }

  bool Has(uint64_t seq) const override { return frames_.contains(seq); }

  absl::Status Take(uint64_t seq, int n_rows, int dim, float* rows) override {
    const auto found = frames_.find(seq);
    if (found == frames_.end()) return Internal("activation frame {} has not come", seq);
    const Frame frame = std::move(found->second);
    frames_.erase(found);
    const size_t bytes = sizeof(float) * static_cast<size_t>(n_rows) * static_cast<size_t>(dim);
    if (frame.header.n_rows != static_cast<uint32_t>(n_rows) || frame.header.dim != static_cast<uint32_t>(dim) ||
        frame.payload.size() != bytes) {
      return DataLoss("activation frame {} is [{}, {}], not [{}, {}]", seq, frame.header.n_rows, frame.header.dim,
                      n_rows, dim);
    }
    std::memcpy(rows, frame.payload.data(), bytes);
    return absl::OkStatus();
  }

  void Clear() override { frames_.clear(); }

 private:
  struct Frame {
    wire::FrameHeader header;
    std::string payload;
  };
  std::unique_ptr<wire::Socket> socket_;
  std::map<uint64_t, Frame> frames_;  // by seq; bounded by the steps in flight
};

absl::StatusOr<std::unique_ptr<wire::Socket>> OpenEnd(wire::SocketContext& context, wire::SocketKind kind,
                                                      const wire::DataEnd& end) {
  const wire::CurveKeys keys{.own_secret = end.own_secret, .peer_public = end.peer_public, .is_server = end.binds};
  ASSIGN_OR_RETURN(auto socket, wire::Socket::Open(context, kind, {.curve = keys}));
  RETURN_IF_ERROR(end.binds ? socket->Bind(end.endpoint) : socket->Connect(end.endpoint));
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSender>> OpenZmqSender(wire::SocketContext& context, const wire::DataEnd& end) {
  ASSIGN_OR_RETURN(auto socket, OpenEnd(context, wire::SocketKind::kPush, end));
  return std::make_unique<ZmqSender>(std::move(socket));
}

absl::StatusOr<std::unique_ptr<DataReceiver>> OpenZmqReceiver(wire::SocketContext& context, const wire::DataEnd& end) {
  ASSIGN_OR_RETURN(auto socket, OpenEnd(context, wire::SocketKind::kPull, end));
  return std::make_unique<ZmqReceiver>(std::move(socket));
}

}  // namespace layover
