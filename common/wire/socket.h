// ZeroMQ sockets with this project's rules built in: LINGER 0 (a closing process never waits for a dead peer), mandatory
// routing (a lost worker is an error, not silence), no high-water marks (our own credits bound what is in flight),
// message sizes capped, and errors as absl::Status. A socket belongs to one thread.
#ifndef LAYOVER_COMMON_WIRE_SOCKET_H_
#define LAYOVER_COMMON_WIRE_SOCKET_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layover::wire {

enum class SocketKind { kRouter, kDealer, kPush, kPull };

// CURVE keys (Z85, 40 characters) of a link to another machine: one's own secret and the public key of the one peer that
// is let in. Empty: no encryption (ipc, protected by file mode; loopback; a network that is trusted).
struct CurveKeys {
  std::string own_secret;
  std::string peer_public;
  bool is_server = false;  // the end that binds
  bool empty() const { return own_secret.empty(); }
};

// Two files of one line: the own secret key (mode 0600) and the peer's public key. Errors name the file, never its text.
absl::StatusOr<CurveKeys> ReadCurveKeys(const std::string& secret_file, const std::string& peer_public_file);

struct CurvePair {
  std::string public_key;
  std::string secret_key;
};
absl::StatusOr<CurvePair> NewCurvePair();
// A new pair in two new files; the secret one is the owner's alone. Existing files are an error.
absl::Status WriteCurvePair(const std::string& public_file, const std::string& secret_file);

// One ZeroMQ context for a process.
class SocketContext {
 public:
  SocketContext();
  ~SocketContext();
  void* handle() const { return handle_; }

 private:
  friend class Socket;
  // libzmq lets every client in that knows the server's public key, unless somebody answers its questions (ZAP). A
  // thread does, from the first server with keys on: the socket's domain is the one public key that may enter.
  absl::Status StartGate();

  void* handle_;
  std::thread gate_;
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

  // A socket that becomes readable when this one's connection changes; NextLinkEvent reads it. Before Connect.
  // It must outlive this one.
  absl::StatusOr<std::unique_ptr<Socket>> WatchLink();
  enum class LinkEvent { kNone, kUp, kLost, kHandshakeFailed, kKeyRefused, kOtherSecurity };
  LinkEvent NextLinkEvent();

  // All parts or nothing; never blocks: Unavailable if the peer is gone or its queue is full.
  absl::Status Send(const std::vector<std::string_view>& parts);
  // Until there is somebody to send to, or the time is over.
  void WaitForPeer(int timeout_ms);
  // The next whole message if one has come.
  absl::StatusOr<std::optional<std::vector<std::string>>> Receive();

  void* handle() const { return handle_; }  // for Poll

 private:
  Socket(void* context, void* handle) : context_(context), handle_(handle) {}
  void* context_;
  void* handle_;
  bool watched_ = false;
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
