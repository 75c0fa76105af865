// The coordinator's connection to a stage that somebody started on another machine (`layover-stage --listen`). There is
// no process to watch: a stage is there while its connection stands and says something every few beats, and any break
// of it is a loss, since messages may be gone with it. One thread uses it.
#ifndef LAYOVER_COORDINATOR_REMOTE_STAGE_H_
#define LAYOVER_COORDINATOR_REMOTE_STAGE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/topology.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"

namespace layover {

class RemoteStage {
 public:
  // Reads the stage's key files, connects to nothing yet. Errors name the topology's line.
  static absl::StatusOr<std::unique_ptr<RemoteStage>> Create(wire::SocketContext& context, const Topology& topology,
                                                             int stage, uint64_t coordinator);

  // Leaves what there was and asks the machine for a fresh worker of this epoch: as soon as somebody listens there.
  // What Receive returns first is that worker's Hello, Occupied or WorkerEnded.
  absl::Status Attach(uint32_t epoch);
  void Detach();  // the machine's worker is no longer needed; it notices the closed connection, too

  absl::Status Send(std::string_view bytes);
  // The next message. An error: the stage is lost, or was never got; `permanent` if trying again would be no use.
  absl::StatusOr<std::optional<std::string>> Receive(bool* permanent);
  // Says that the coordinator lives. An error: the machine has been silent.
  absl::Status Tick();

  bool attached() const { return link_ != nullptr; }  // or about to be
  // Another coordinator has the machine: it is asked again after limits::kRemoteRetryMs.
  void AskAgain() { asks_again_ = true; }
  void AddPollItems(std::vector<wire::PollItem>* items) const;
  const std::string& host() const { return host_; }
  bool has_keys() const { return !keys_.empty(); }
  // Where its data ends are: bound there on any address, reached from elsewhere at the host's name.
  std::string DataInPort() const { return std::to_string(port_ + 1); }
  std::string DataOutPort() const { return std::to_string(port_ + 2); }
  std::string SegmentsOutPort() const { return std::to_string(port_ + 3); }  // what it keeps
  std::string SegmentsInPort() const { return std::to_string(port_ + 4); }   // what the coordinator's machine keeps
  std::string Reach(const std::string& port) const { return address_ + ":" + port; }

 private:
  using Clock = std::chrono::steady_clock;

  RemoteStage(wire::SocketContext& context, int stage, uint64_t coordinator)
      : context_(context), stage_(stage), coordinator_(coordinator) {}
  absl::Status Connect();
  absl::Status LookAtLink(bool* permanent);
  absl::Status HandshakeFailed(wire::Socket::LinkEvent event, bool* permanent);

  wire::SocketContext& context_;
  const int stage_;
  const uint64_t coordinator_;
  std::string host_;     // "tcp://10.0.0.7:7001"
  std::string address_;  // "tcp://10.0.0.7"
  int port_ = 0;
  wire::CurveKeys keys_;
  uint32_t epoch_ = 0;
  std::unique_ptr<wire::Socket> watch_;  // of the link's connection; outlives it
  std::unique_ptr<wire::Socket> link_;   // DEALER; none while it is not attached
  bool connected_ = false;               // the handshake is done
  bool asks_again_ = false;
  bool ever_connected_ = false;
  int failed_handshakes_ = 0;  // in a row, before anything worked
  bool told_waiting_ = false;  // once a wait
  Clock::time_point attach_begin_, last_beat_, last_heard_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_REMOTE_STAGE_H_
