#include "common/wire/socket.h"

#include <zmq.h>

#include <cerrno>

#include "common/check.h"
#include "common/limits.h"
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

absl::Status SetCurve(void* socket, const CurveKeys& keys) {
  if (keys.own_secret.empty()) return absl::OkStatus();
  if (keys.is_server) SetInt(socket, ZMQ_CURVE_SERVER, 1);
  const auto set = [socket](int option, const std::string& key) {
    return key.empty() || zmq_setsockopt(socket, option, key.data(), key.size()) == 0;
  };
  if (!set(ZMQ_CURVE_SECRETKEY, keys.own_secret) || !set(ZMQ_CURVE_PUBLICKEY, keys.own_public) ||
      (!keys.is_server && !set(ZMQ_CURVE_SERVERKEY, keys.server_public))) {
    return InvalidArgument("a CURVE key is not 40 characters of Z85");
  }
  return absl::OkStatus();
}

}  // namespace

SocketContext::SocketContext() : handle_(zmq_ctx_new()) { LAYOVER_CHECK(handle_ != nullptr); }
SocketContext::~SocketContext() { zmq_ctx_term(handle_); }

absl::StatusOr<std::unique_ptr<Socket>> Socket::Open(SocketContext& context, SocketKind kind, const SocketOptions& options) {
  void* handle = zmq_socket(context.handle(), ZmqKind(kind));
  if (handle == nullptr) return ZmqStatus("zmq_socket");
  std::unique_ptr<Socket> socket(new Socket(handle));
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
  if (absl::Status status = SetCurve(handle, options.curve); !status.ok()) return status;
  return socket;
}

Socket::~Socket() { zmq_close(handle_); }

absl::Status Socket::Bind(const std::string& endpoint) {
  if (zmq_bind(handle_, endpoint.c_str()) != 0) return ZmqStatus("bind " + endpoint);
  return absl::OkStatus();
}

absl::Status Socket::Connect(const std::string& endpoint) {
  if (zmq_connect(handle_, endpoint.c_str()) != 0) return ZmqStatus("connect " + endpoint);
  return absl::OkStatus();
}

std::string Socket::BoundEndpoint() const {
  char endpoint[256];
  size_t size = sizeof(endpoint);
  if (zmq_getsockopt(handle_, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0 || size == 0) return "";
  return std::string(endpoint, size - 1);
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
