// The HTTP/1.1 server: sockets, parsing, limits, deadlines, streaming. It knows nothing of models or JSON.
//
// One I/O thread owns every socket. Handlers run on a few worker threads, urgent ones (/health, /metrics) on the I/O
// thread itself, so they are answered however busy the workers are. A handler answers through its Responder, at once or
// later, from any thread. While a request is handled its socket is still read, so a client that goes away is noticed in
// every phase.
#ifndef LAYOVER_COORDINATOR_HTTP_LISTENER_H_
#define LAYOVER_COORDINATOR_HTTP_LISTENER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/limits.h"
#include "coordinator/http/http_message.h"

namespace layover {

// The answer to one request. Thread-safe; the order of calls is the order on the wire. Either Respond once, or
// BeginStream, Write*, End. Calls after the client is gone, or after the end, do nothing. Destroyed without an answer:
// 500.
class Responder {
 public:
  virtual ~Responder() = default;

  virtual void Respond(HttpReply reply) = 0;

  virtual void BeginStream(int status, HttpHeaders headers) = 0;
  virtual void Write(std::string chunk) = 0;
  // Ends the stream; `close`: the connection too (after an error in mid-stream).
  virtual void End(bool close) = 0;
  // Writes `text` whenever the stream was silent for `interval`; zero: never.
  virtual void SetPing(std::chrono::milliseconds interval, std::string text) = 0;

  // Runs `action` once on the I/O thread after `delay`, unless the exchange has ended by then. It must not block.
  virtual void After(std::chrono::milliseconds delay, std::function<void()> action) = 0;
  // Called once, on the I/O thread, when the client goes away before the end; at once if it already has. Must not
  // block.
  virtual void OnGone(std::function<void()> callback) = 0;
  virtual bool gone() const = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder>)>;

// What is decided about a request once its head is there, before a byte of its body is read.
struct Admission {
  std::optional<HttpReply> refusal;            // sent instead of anything else
  HttpHandler handler;                         // else: runs when the body is there
  bool urgent = false;                         // the handler is quick: I/O thread, reserved connections
  HttpHeaders extra_headers;                   // on the reply, whatever it is (CORS)
  std::function<void(int status)> on_replied;  // once, with the status that went out; 0: none did
};

struct ListenerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int workers = 4;
  int max_connections = limits::kMaxHttpConnections;
  int reserved_connections = limits::kMaxHttpConnectionsReserved;
  size_t max_header_bytes = limits::kMaxHttpHeaderBytes;
  size_t max_body_bytes = limits::kMaxHttpBodyBytes;
  size_t max_body_bytes_in_flight = limits::kMaxHttpBodyBytesInFlight;
  size_t max_send_buffer_bytes = limits::kMaxHttpSendBufferBytes;
  size_t max_queued_requests = limits::kMaxQueuedRequests;
  std::chrono::milliseconds header_deadline{limits::kHttpHeaderDeadlineMs};
  std::chrono::milliseconds body_deadline{limits::kHttpBodyDeadlineMs};
  std::chrono::milliseconds idle_deadline{limits::kHttpIdleDeadlineMs};
  std::chrono::milliseconds write_deadline{limits::kHttpWriteDeadlineMs};
  int socket_send_buffer_bytes = 0;  // 0: the system's choice; tests make it small

  // Called on the I/O thread with the head of each request; must not block.
  std::function<Admission(const HttpRequest&)> admit;
  // The reply to what the listener refuses by itself (413, 431, 408, 503, ...).
  std::function<HttpReply(int status, std::string_view message)> refuse;
};

class Listener {
 public:
  // Binds, listens and starts the threads. An address that cannot be bound is Unavailable and named.
  static absl::StatusOr<std::unique_ptr<Listener>> Start(ListenerOptions options);
  virtual ~Listener() = default;  // closes every connection and joins the threads

  virtual uint16_t port() const = 0;
  virtual int active_requests() const = 0;  // being handled or answered
  virtual int connections() const = 0;

  // Drain: no new connection, and each one closes after the reply it is giving.
  virtual void StopAccepting() = 0;
  // True when no request was left before `timeout`.
  virtual bool WaitIdle(std::chrono::milliseconds timeout) = 0;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_LISTENER_H_
