#include "common/wire/socket.h"

#include <fcntl.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

// libzmq is not instrumented, so ThreadSanitizer does not see that a message's bytes were handed from thread to thread.
#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#define LAYOVER_TSAN_ACQUIRE(address) __tsan_acquire(address)
#define LAYOVER_TSAN_RELEASE(address) __tsan_release(address)
#else
#define LAYOVER_TSAN_ACQUIRE(address) ((void)(address))
#define LAYOVER_TSAN_RELEASE(address) ((void)(address))
#endif

namespace layover::wire {
namespace {

char g_tsan_link;  // one tag for all links: what was sent before happens before what is received after

absl::Status ZmqStatus(std::string_view what) {
  const int error_number = zmq_errno();
  if (error_number == EHOSTUNREACH || error_number == EAGAIN) return Unavailable("{}: {}", what, zmq_strerror(error_number));
  return Internal("{}: {}", what, zmq_strerror(error_number));
}

int ZmqKind(SocketKind kind) {
  switch (kind) {
    case SocketKind::kRouter: return ZMQ_ROUTER;
    case SocketKind::kDealer: return ZMQ_DEALER;
    case SocketKind::kPush: return ZMQ_PUSH;
    case SocketKind::kPull: return ZMQ_PULL;
  }
  return -1;
}

void SetInt(void* socket, int option, int value) { LAYOVER_CHECK(zmq_setsockopt(socket, option, &value, sizeof(value)) == 0); }

constexpr size_t kKeyChars = 40;  // of a key in Z85

absl::Status SetCurve(void* socket, const CurveKeys& keys) {
  char own_public[kKeyChars + 1];
  if (keys.own_secret.size() != kKeyChars || keys.peer_public.size() != kKeyChars ||
      zmq_curve_public(own_public, keys.own_secret.c_str()) != 0) {
    return InvalidArgument("a CURVE key is not 40 characters of Z85");
  }
  const auto set = [socket](int option, const char* key) { return zmq_setsockopt(socket, option, key, kKeyChars) == 0; };
  bool done = set(ZMQ_CURVE_SECRETKEY, keys.own_secret.c_str()) && set(ZMQ_CURVE_PUBLICKEY, own_public);
  if (keys.is_server) {
    SetInt(socket, ZMQ_CURVE_SERVER, 1);
    done = done && set(ZMQ_ZAP_DOMAIN, keys.peer_public.c_str());
  } else {
    done = done && set(ZMQ_CURVE_SERVERKEY, keys.peer_public.c_str());
  }
  return done ? absl::OkStatus() : InvalidArgument("a CURVE key is not 40 characters of Z85");
}

// One request of libzmq's: version, request id, domain, address, routing id, mechanism, the client's public key.
void AnswerGateRequest(void* gate, const std::vector<std::string>& request) {
  char key[kKeyChars + 1] = {};
  const bool is_curve = request.size() == 7 && request[5] == "CURVE" && request[6].size() == 32;
  if (is_curve) zmq_z85_encode(key, reinterpret_cast<const uint8_t*>(request[6].data()), 32);
  const bool may_enter = is_curve && request[2] == key;
  if (!may_enter) {
    LogWarning("a connection from {} was refused: its key is not the one that is let in", request.size() > 3 ? request[3] : "?");
  }
  const std::vector<std::string> answer = {"1.0",  request.size() > 1 ? request[1] : "", may_enter ? "200" : "400",
                                           may_enter ? "OK" : "unknown key", "", ""};
  for (size_t i = 0; i < answer.size(); ++i) {
    zmq_send(gate, answer[i].data(), answer[i].size(), i + 1 < answer.size() ? ZMQ_SNDMORE : 0);
  }
}

void GateLoop(void* gate) {
  while (true) {
    std::vector<std::string> request;
    bool more = true;
    while (more) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, gate, 0) < 0) {
        const bool interrupted = zmq_errno() == EINTR;
        zmq_msg_close(&part);
        if (interrupted) continue;
        zmq_close(gate);  // the context ends
        return;
      }
      request.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part) != 0;
      zmq_msg_close(&part);
    }
    AnswerGateRequest(gate, request);
  }
}

void PrepareEndpoint(void* socket, const std::string& endpoint) {
  if (endpoint.starts_with("tcp://[")) SetInt(socket, ZMQ_IPV6, 1);
  if (!endpoint.starts_with("tcp://")) return;
  // A machine that is gone without a word is noticed, so that nothing is sent into a dead connection.
  SetInt(socket, ZMQ_HEARTBEAT_IVL, limits::kHeartbeatIntervalMs);
  SetInt(socket, ZMQ_HEARTBEAT_TIMEOUT, limits::kRemoteSilentMs);
  // The system would wait for minutes on a machine that was off when it was called, and is back.
  SetInt(socket, ZMQ_CONNECT_TIMEOUT, limits::kRemoteConnectMs);
}

// The first line of a small file.
absl::StatusOr<std::string> ReadKeyFile(const std::string& path, bool is_secret) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error || status.type() != std::filesystem::file_type::regular) return InvalidArgument("{}: there is no such file", path);
  if (is_secret && (status.permissions() & (std::filesystem::perms::group_all | std::filesystem::perms::others_all)) !=
                       std::filesystem::perms::none) {
    return InvalidArgument("{}: others can read the secret key; its mode must be 0600", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::string key(kKeyChars + 2, '\0');
  file.read(key.data(), static_cast<std::streamsize>(key.size()));
  key.resize(static_cast<size_t>(file.gcount()));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  uint8_t raw[32];
  if (key.size() != kKeyChars || zmq_z85_decode(raw, key.c_str()) == nullptr) {
    return InvalidArgument("{}: not a CURVE key: 40 characters of Z85 on one line", path);
  }
  return key;
}

absl::Status WriteKeyFile(const std::string& path, const std::string& key, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(errno, path);
  const std::string line = key + "\n";
  const bool written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  close(fd);
  return written ? absl::OkStatus() : ErrnoStatus(error, path);
}

}  // namespace

absl::StatusOr<CurveKeys> ReadCurveKeys(const std::string& secret_file, const std::string& peer_public_file) {
  CurveKeys keys;
  ASSIGN_OR_RETURN(keys.own_secret, ReadKeyFile(secret_file, true));
  ASSIGN_OR_RETURN(keys.peer_public, ReadKeyFile(peer_public_file, false));
  return keys;
}

absl::StatusOr<CurvePair> NewCurvePair() {
  char public_key[kKeyChars + 1], secret_key[kKeyChars + 1];
  if (zmq_curve_keypair(public_key, secret_key) != 0) return ZmqStatus("zmq_curve_keypair");
  return CurvePair{public_key, secret_key};
}

absl::Status WriteCurvePair(const std::string& public_file, const std::string& secret_file) {
  ASSIGN_OR_RETURN(const CurvePair pair, NewCurvePair());
  RETURN_IF_ERROR(WriteKeyFile(secret_file, pair.secret_key, 0600));
  return WriteKeyFile(public_file, pair.public_key, 0644);
}

SocketContext::SocketContext() : handle_(zmq_ctx_new()) { LAYOVER_CHECK(handle_ != nullptr); }

SocketContext::~SocketContext() {
  zmq_ctx_shutdown(handle_);
  if (gate_.joinable()) gate_.join();
  zmq_ctx_term(handle_);
}

absl::Status SocketContext::StartGate() {
  if (gate_.joinable()) return absl::OkStatus();
  void* gate = zmq_socket(handle_, ZMQ_REP);
  if (gate == nullptr) return ZmqStatus("zmq_socket");
  SetInt(gate, ZMQ_LINGER, 0);
  if (zmq_bind(gate, "inproc://zeromq.zap.01") != 0) {
    const absl::Status status = ZmqStatus("bind inproc://zeromq.zap.01");
    zmq_close(gate);
    return status;
  }
  gate_ = std::thread(GateLoop, gate);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Socket>> Socket::Open(SocketContext& context, SocketKind kind, const SocketOptions& options) {
  void* handle = zmq_socket(context.handle(), ZmqKind(kind));
  if (handle == nullptr) return ZmqStatus("zmq_socket");
  std::unique_ptr<Socket> socket(new Socket(context.handle(), handle));
  SetInt(handle, ZMQ_LINGER, 0);
  SetInt(handle, ZMQ_SNDHWM, 0);
  SetInt(handle, ZMQ_RCVHWM, 0);
  SetInt(handle, ZMQ_HANDSHAKE_IVL, 2000);
  SetInt(handle, ZMQ_RECONNECT_IVL, 20);
  SetInt(handle, ZMQ_RECONNECT_IVL_MAX, 1000);
  const int64_t max_bytes = static_cast<int64_t>(limits::kMaxWireMessageBytes);
  LAYOVER_CHECK(zmq_setsockopt(handle, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes)) == 0);
  if (kind == SocketKind::kRouter) {
    SetInt(handle, ZMQ_ROUTER_MANDATORY, 1);
    SetInt(handle, ZMQ_ROUTER_HANDOVER, 1);  // a restarted worker takes its predecessor's name over
  }
  if (!options.routing_id.empty()) {
    LAYOVER_CHECK(zmq_setsockopt(handle, ZMQ_ROUTING_ID, options.routing_id.data(), options.routing_id.size()) == 0);
  }
  if (!options.curve.empty()) {
    if (options.curve.is_server) RETURN_IF_ERROR(context.StartGate());
    RETURN_IF_ERROR(SetCurve(handle, options.curve));
  }
  return socket;
}

Socket::~Socket() {
  // ZeroMQ's own thread would wait for ever to tell a watch that is gone.
  if (watched_) (void)zmq_socket_monitor(handle_, nullptr, 0);
  zmq_close(handle_);
}

absl::Status Socket::Bind(const std::string& endpoint) {
  PrepareEndpoint(handle_, endpoint);
  if (zmq_bind(handle_, endpoint.c_str()) != 0) return ZmqStatus("bind " + endpoint);
  return absl::OkStatus();
}

absl::Status Socket::Connect(const std::string& endpoint) {
  PrepareEndpoint(handle_, endpoint);
  if (zmq_connect(handle_, endpoint.c_str()) != 0) return ZmqStatus("connect " + endpoint);
  return absl::OkStatus();
}

std::string Socket::BoundEndpoint() const {
  char endpoint[256];
  size_t size = sizeof(endpoint);
  if (zmq_getsockopt(handle_, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0 || size == 0) return "";
  return std::string(endpoint, size - 1);
}

absl::StatusOr<std::unique_ptr<Socket>> Socket::WatchLink() {
  static std::atomic<uint64_t> next_name = 0;
  const std::string name = fmt::format("inproc://link-{}", next_name++);
  constexpr int kEvents = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor(handle_, name.c_str(), kEvents) != 0) return ZmqStatus("zmq_socket_monitor");
  watched_ = true;
  void* handle = zmq_socket(context_, ZMQ_PAIR);
  if (handle == nullptr) return ZmqStatus("zmq_socket");
  std::unique_ptr<Socket> watch(new Socket(context_, handle));
  SetInt(handle, ZMQ_LINGER, 0);
  if (zmq_connect(handle, name.c_str()) != 0) return ZmqStatus("connect " + name);
  return watch;
}

Socket::LinkEvent Socket::NextLinkEvent() {
  while (true) {
    const auto parts = Receive();
    if (!parts.ok() || !parts->has_value()) return LinkEvent::kNone;
    uint16_t event = 0;
    if ((**parts)[0].size() >= sizeof(event)) std::memcpy(&event, (**parts)[0].data(), sizeof(event));
    switch (event) {
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: return LinkEvent::kUp;
      case ZMQ_EVENT_DISCONNECTED: return LinkEvent::kLost;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL: return LinkEvent::kHandshakeFailed;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: return LinkEvent::kKeyRefused;
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL: return LinkEvent::kOtherSecurity;
      default: break;  // the end of the watch
    }
  }
}

void Socket::WaitForPeer(int timeout_ms) {
  zmq_pollitem_t item{handle_, 0, ZMQ_POLLOUT, 0};
  zmq_poll(&item, 1, timeout_ms);
}

absl::Status Socket::Send(const std::vector<std::string_view>& parts) {
  LAYOVER_TSAN_RELEASE(&g_tsan_link);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    int sent;
    do {
      sent = zmq_send(handle_, parts[i].data(), parts[i].size(), flags);
    } while (sent < 0 && zmq_errno() == EINTR);
    if (sent < 0) return ZmqStatus("send");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::vector<std::string>>> Socket::Receive() {
  std::vector<std::string> parts;
  bool more = true;
  while (more) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    int received;
    do {
      received = zmq_msg_recv(&message, handle_, ZMQ_DONTWAIT);
    } while (received < 0 && zmq_errno() == EINTR);
    if (received < 0) {
      zmq_msg_close(&message);
      if (zmq_errno() == EAGAIN && parts.empty()) return std::nullopt;
      return ZmqStatus("receive");
    }
    parts.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
  }
  LAYOVER_TSAN_ACQUIRE(&g_tsan_link);
  return parts;
}

absl::Status Poll(std::vector<PollItem>& items, int timeout_ms) {
  std::vector<zmq_pollitem_t> raw;
  raw.reserve(items.size());
  for (PollItem& item : items) {
    item.ready = false;
    raw.push_back({item.socket != nullptr ? item.socket->handle() : nullptr, item.fd, ZMQ_POLLIN, 0});
  }
  if (zmq_poll(raw.data(), static_cast<int>(raw.size()), timeout_ms) < 0) {
    if (zmq_errno() == EINTR) return absl::OkStatus();
    return ZmqStatus("poll");
  }
  for (size_t i = 0; i < items.size(); ++i) items[i].ready = (raw[i].revents & ZMQ_POLLIN) != 0;
  return absl::OkStatus();
}

}  // namespace layover::wire
