// Activations over ZeroMQ: one PUSH to PULL socket a hop, frames of two parts (docs/wire_protocol.md).
#include <cstring>
#include <map>
#include <string>

#include "common/limits.h"
#include "common/status.h"
#include "stage_worker/links/data_link.h"

namespace layover {
namespace {

class ZmqSender : public DataSender {
 public:
  explicit ZmqSender(std::unique_ptr<wire::Socket> socket) : socket_(std::move(socket)) {}

  void Renew(uint32_t, const wire::RingAddress&) override {}

  absl::Status Send(const wire::FrameHeader& header, const float* rows, Stream& stream) override {
    const size_t bytes = sizeof(float) * size_t{header.n_rows} * size_t{header.dim};
    staged_.resize(bytes);
    stream.CopyToHost(staged_.data(), rows, bytes);
    RETURN_IF_ERROR(stream.Synchronize());
    const std::vector<std::string_view> parts = {
        std::string_view(reinterpret_cast<const char*>(&header), sizeof(header)), staged_};
    absl::Status sent = socket_->Send(parts);
    if (!absl::IsUnavailable(sent)) return sent;
    // This end is bound, and the other one connects again after its restart.
    socket_->WaitForPeer(limits::kDataPeerMs);
    return socket_->Send(parts);
  }

 private:
  std::unique_ptr<wire::Socket> socket_;
  std::string staged_;  // bounded by the largest step
};

class ZmqReceiver : public DataReceiver {
 public:
  explicit ZmqReceiver(std::unique_ptr<wire::Socket> socket) : socket_(std::move(socket)) {}

  void Renew(uint32_t epoch, const wire::RingAddress&) override {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    frames_.clear();
  }

  bool BeginWait(std::vector<wire::PollItem>* items) override {
    items->push_back({.socket = socket_.get()});
    return true;
  }

  absl::Status Drain() override {
    while (true) {
      ASSIGN_OR_RETURN(auto message, socket_->Receive());
      if (!message.has_value()) return absl::OkStatus();
      wire::FrameHeader header;
      if (message->size() != 2 || (*message)[0].size() != sizeof(header))
        return DataLoss("activation frame: bad shape");
      std::memcpy(&header, (*message)[0].data(), sizeof(header));
      if (header.magic != wire::FrameHeader().magic) return DataLoss("activation frame: bad magic");
      if (header.epoch == epoch_) frames_[header.seq] = {header, std::move((*message)[1])};
    }
  }

  bool Has(uint64_t seq) const override { return frames_.contains(seq); }

  absl::Status Take(const Wanted& wanted, float* rows, Stream& stream) override {
    const auto found = frames_.find(wanted.seq);
    if (found == frames_.end()) return Internal("activation frame {} has not come", wanted.seq);
    taken_ = std::move(found->second);
    frames_.erase(found);
    RETURN_IF_ERROR(CheckFrame(taken_.header, wanted));
    const size_t bytes = sizeof(float) * size_t{taken_.header.n_rows} * size_t{taken_.header.dim};
    if (taken_.payload.size() != bytes)
      return DataLoss("activation frame {} has {} bytes", wanted.seq, taken_.payload.size());
    stream.CopyToDevice(rows, taken_.payload.data(), bytes);
    return absl::OkStatus();
  }

 private:
  struct Frame {
    wire::FrameHeader header;
    std::string payload;
  };
  std::unique_ptr<wire::Socket> socket_;
  uint32_t epoch_ = 0;
  std::map<uint64_t, Frame> frames_;  // by seq; bounded by the steps in flight
  Frame taken_;                       // its rows may still be on their way to the device
};

absl::StatusOr<std::unique_ptr<wire::Socket>> OpenEnd(wire::SocketContext& context, wire::SocketKind kind,
                                                      const wire::DataEnd& end) {
  const wire::CurveKeys keys{.own_secret = end.own_secret, .peer_public = end.peer_public, .is_server = end.binds};
  ASSIGN_OR_RETURN(auto socket, wire::Socket::Open(context, kind, {.curve = keys}));
  RETURN_IF_ERROR(end.binds ? socket->Bind(end.endpoint) : socket->Connect(end.endpoint));
  return socket;
}

}  // namespace

absl::Status CheckFrame(const wire::FrameHeader& header, const DataReceiver::Wanted& wanted) {
  if (header.seq == wanted.seq && header.n_rows == static_cast<uint32_t>(wanted.n_rows) &&
      header.dim == static_cast<uint32_t>(wanted.dim)) {
    return absl::OkStatus();
  }
  return DataLoss("activation frame {} is [{}, {}]; wanted is {}, [{}, {}]", header.seq, header.n_rows, header.dim,
                  wanted.seq, wanted.n_rows, wanted.dim);
}

absl::StatusOr<std::unique_ptr<DataSender>> OpenZmqSender(wire::SocketContext& context, const wire::DataEnd& end) {
  ASSIGN_OR_RETURN(auto socket, OpenEnd(context, wire::SocketKind::kPush, end));
  return std::make_unique<ZmqSender>(std::move(socket));
}

absl::StatusOr<std::unique_ptr<DataReceiver>> OpenZmqReceiver(wire::SocketContext& context, const wire::DataEnd& end) {
  ASSIGN_OR_RETURN(auto socket, OpenEnd(context, wire::SocketKind::kPull, end));
  return std::make_unique<ZmqReceiver>(std::move(socket));
}

}  // namespace layover
