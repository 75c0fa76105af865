// The HTTP front door put together: listener, guard, routes. Start it with a Service and the text side, and it serves.
#ifndef LAYOVER_COORDINATOR_HTTP_SERVER_H_
#define LAYOVER_COORDINATOR_HTTP_SERVER_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/http/http_parts.h"
#include "coordinator/http/listener.h"

namespace layover {

struct HttpServerOptions {
  std::string listen = "127.0.0.1:8080";  // HOST:PORT, "[::1]:8080"; port 0: any free one
  std::string keys_file;                  // empty: no keys
  std::vector<std::string> allow_hosts;
  std::vector<std::string> allow_origins;
  ListenerOptions limits;  // host, port and the callbacks in it are set by Start
};

class HttpServer {
 public:
  // InvalidArgument: a bad address or keys file. FailedPrecondition: reachable from other machines without keys.
  // Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpParts parts);
  ~HttpServer();  // clients that are still there are cut off, their generations cancelled

  std::string url() const;  // "http://127.0.0.1:8080", with the real port

  // Drain, in this order: the engine refuses new work, StopAccepting, WaitIdle, destroy the server, then the engine.
  void StopAccepting();
  bool WaitIdle(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_SERVER_H_
