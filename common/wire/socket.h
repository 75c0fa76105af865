// ZeroMQ sockets with this project's rules built in: LINGER 0 (a closing process never waits for a dead peer), mandatory
// routing (a lost worker is an error, not silence), no high-water marks (our own credits bound what is in flight),
// message sizes capped, and errors as absl::Status. A socket belongs to one thread.
#ifndef LAYOVER_COMMON_WIRE_SOCKET_H_
#define LAYOVER_COMMON_WIRE_SOCKET_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layover::wire {

enum class SocketKind { kRouter, kDealer, kPush, kPull };

// One ZeroMQ context for a process.
class SocketContext {
 public:
  SocketContext();
  ~SocketContext();
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// CURVE keys (Z85, 40 characters) of a link to another machine; empty fields: no encryption (ipc, protected by file mode).
struct CurveKeys {
  std::string server_public;
  std::string own_public;
  std::string own_secret;
  bool is_server = false;
};

struct SocketOptions {
  std::string routing_id;  // DEALER: how the ROUTER knows it
  CurveKeys curve;
};

class Socket {
 public:
  static absl::StatusOr<std::unique_ptr<Socket>> Open(SocketContext& context, SocketKind kind, const SocketOptions& options);
  ~Socket();

  absl::Status Bind(const std::string& endpoint);
  absl::Status Connect(const std::string& endpoint);
  // tcp://host:* after Bind.
  std::string BoundEndpoint() const;

  // All parts or nothing; never blocks: Unavailable if the peer is gone or its queue is full.
  absl::Status Send(const std::vector<std::string_view>& parts);
  // The next whole message if one has come.
  absl::StatusOr<std::optional<std::vector<std::string>>> Receive();

  void* handle() const { return handle_; }  // for Poll

 private:
  explicit Socket(void* handle) : handle_(handle) {}
  void* handle_;
};

// What Poll waits for: a socket or a file descriptor becoming readable.
struct PollItem {
  Socket* socket = nullptr;
  int fd = -1;
  bool ready = false;
};

// Waits until one is ready or timeout_ms is over (-1: for ever). Interrupted by a signal: returns with nothing ready.
absl::Status Poll(std::vector<PollItem>& items, int timeout_ms);

}  // namespace layover::wire

#endif  // LAYOVER_COMMON_WIRE_SOCKET_H_
