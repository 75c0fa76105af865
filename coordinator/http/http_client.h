// A small HTTP client that waits: what the command line and the tests talk to a server with. Plain http only.
#ifndef LAYOVER_COORDINATOR_HTTP_HTTP_CLIENT_H_
#define LAYOVER_COORDINATOR_HTTP_HTTP_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/http/http_message.h"

namespace layover {

struct ServerUrl {
  std::string host;
  std::string port;
};
// "http://HOST[:PORT][/]". InvalidArgument: another scheme, or not such a URL.
absl::StatusOr<ServerUrl> ParseServerUrl(std::string_view url);

// Cuts a text/event-stream, in whatever pieces it comes, into the payloads of its `data:` lines. Comments and other
// fields are dropped; the data lines of one event are joined with a newline.
class SseReader {
 public:
  // Calls `on_data` for each event completed by this piece; false from it ends the reading.
  bool Push(std::string_view piece, const std::function<bool(std::string_view)>& on_data);

 private:
  bool TakeLine(std::string_view line, const std::function<bool(std::string_view)>& on_data);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

struct HttpClientOptions {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key;  // empty: none
  std::chrono::milliseconds connect_timeout{5'000};
  // Longest silence while a reply is awaited or read; a save may take its time before the first byte.
  std::chrono::milliseconds read_timeout{3'600'000};
};

// One request at a time; each opens its own connection.
class HttpClient {
 public:
  static absl::StatusOr<HttpClient> Create(HttpClientOptions options);

  struct Request {
    std::string method;
    std::string target;  // "/v1/models"
    HttpHeaders headers;
    std::string body;  // sent as JSON unless the headers say otherwise
  };
  // Unavailable: not reachable, or the connection broke before the reply was whole. DeadlineExceeded: too slow.
  absl::StatusOr<HttpReply> Send(const Request& request) const;

  // Reads an event stream; `on_data` returning false ends it early. A reply that is no event stream (an error, say) has
  // its body in the result; a stream's body is left empty.
  absl::StatusOr<HttpReply> Stream(const Request& request, const std::function<bool(std::string_view)>& on_data) const;

 private:
  HttpClient(HttpClientOptions options, ServerUrl server) : options_(std::move(options)), server_(std::move(server)) {}

  HttpClientOptions options_;
  ServerUrl server_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_HTTP_CLIENT_H_
