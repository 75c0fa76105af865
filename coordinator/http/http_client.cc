#include "coordinator/http/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <utility>

#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kPieceBytes = 16 * 1024;

// One connection, used from one thread: every step is started, and the context run until it has ended.
class Link {
 public:
  explicit Link(const HttpClientOptions& options) : options_(options), stream_(io_) {}

  absl::Status Connect(const ServerUrl& server) {
    error_code error;
    const auto found = asio::ip::tcp::resolver(io_).resolve(server.host, server.port, error);
    if (!error) {
      stream_.expires_after(options_.connect_timeout);
      stream_.async_connect(found, [&error](const error_code& result, const auto&) { error = result; });
      Run();
    }
    return error ? Failure("cannot reach", error) : absl::OkStatus();
  }

  absl::Status Write(const http::request<http::string_body>& request) {
    error_code error;
    stream_.expires_after(options_.read_timeout);
    http::async_write(stream_, request, [&error](const error_code& result, size_t) { error = result; });
    Run();
    return error ? Failure("cannot send to", error) : absl::OkStatus();
  }

  // Reads the head, then the body piece by piece; `on_piece` returning false ends it.
  // `bodiless`: the reply to a HEAD, whose Content-Length speaks of what is not sent.
  absl::StatusOr<HttpReply> Read(bool bodiless,
                                 const std::function<bool(const HttpReply& head, std::string_view piece)>& on_piece) {
    http::response_parser<http::buffer_body> parser;
    parser.skip(bodiless);
    parser.header_limit(static_cast<uint32_t>(limits::kMaxHttpHeaderBytes));
    parser.body_limit(boost::none);
    error_code error;
    stream_.expires_after(options_.read_timeout);
    http::async_read_header(stream_, buffer_, parser, [&error](const error_code& result, size_t) { error = result; });
    Run();
    if (error) return Failure("no reply from", error);
    HttpReply reply;
    reply.status = parser.get().result_int();
    for (const auto& field : parser.get()) {
      reply.headers.emplace_back(AsciiLower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
    }
    while (!parser.is_done()) {
      char piece[kPieceBytes];
      parser.get().body().data = piece;
      parser.get().body().size = sizeof(piece);
      stream_.expires_after(options_.read_timeout);
      http::async_read_some(stream_, buffer_, parser, [&error](const error_code& result, size_t) { error = result; });
      Run();
      if (error == http::error::need_buffer) error = {};
      if (error) return Failure("the reply broke off, from", error);
      if (!on_piece(reply, {piece, sizeof(piece) - parser.get().body().size})) break;
    }
    return reply;
  }

 private:
  void Run() {
    io_.restart();
    io_.run();
  }

  absl::Status Failure(const char* what, const error_code& error) const {
    if (error == beast::error::timeout) return DeadlineExceeded("{} {}: it took too long", what, options_.url);
    return Unavailable("{} {}: {}", what, options_.url, error.message());
  }

  const HttpClientOptions& options_;
  asio::io_context io_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
};

bool IsEventStream(const HttpReply& reply) {
  for (const auto& [name, value] : reply.headers) {
    if (name == "content-type") return value.starts_with("text/event-stream");
  }
  return false;
}

}  // namespace

absl::StatusOr<ServerUrl> ParseServerUrl(std::string_view url) {
  static constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return InvalidArgument("server {}: expected http://HOST:PORT", url);
  std::string_view rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  ServerUrl out;
  out.host = std::string(rest.substr(0, colon));
  out.port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  if (bracket != std::string_view::npos) out.host = std::string(rest.substr(1, bracket - 1));
  const bool digits = !out.port.empty() && out.port.find_first_not_of("0123456789") == std::string::npos;
  if (out.host.empty() || !digits || out.host.find_first_of("/?#@") != std::string::npos) {
    return InvalidArgument("server {}: expected http://HOST:PORT", url);
  }
  return out;
}

bool SseReader::Push(std::string_view piece, const std::function<bool(std::string_view)>& on_data) {
  for (const char c : piece) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string line = std::exchange(line_, "");
    if (!TakeLine(line, on_data)) return false;
  }
  return true;
}

bool SseReader::TakeLine(std::string_view line, const std::function<bool(std::string_view)>& on_data) {
  if (line.empty()) {
    if (!std::exchange(has_data_, false)) return true;
    return on_data(std::exchange(data_, ""));
  }
  if (!line.starts_with("data:")) return true;
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
  return true;
}

absl::StatusOr<HttpClient> HttpClient::Create(HttpClientOptions options) {
  ASSIGN_OR_RETURN(ServerUrl server, ParseServerUrl(options.url));
  return HttpClient(std::move(options), std::move(server));
}

absl::StatusOr<HttpReply> HttpClient::Send(const Request& request) const {
  return Stream(request, nullptr);
}

absl::StatusOr<HttpReply> HttpClient::Stream(const Request& request,
                                             const std::function<bool(std::string_view)>& on_data) const {
  http::request<http::string_body> message;
  message.method_string(request.method);
  message.target(request.target);
  message.version(11);
  message.set(http::field::host, server_.host.find(':') == std::string::npos
                                     ? fmt::format("{}:{}", server_.host, server_.port)
                                     : fmt::format("[{}]:{}", server_.host, server_.port));
  message.set(http::field::connection, "close");
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  if (!options_.api_key.empty()) message.set(http::field::authorization, "Bearer " + options_.api_key);
  for (const auto& [name, value] : request.headers) message.set(name, value);
  message.body() = request.body;
  message.prepare_payload();

  Link link(options_);
  RETURN_IF_ERROR(link.Connect(server_));
  RETURN_IF_ERROR(link.Write(message));
  SseReader reader;
  std::string body;
  ASSIGN_OR_RETURN(HttpReply reply,
                   link.Read(request.method == "HEAD", [&](const HttpReply& head, std::string_view piece) {
                     if (on_data != nullptr && IsEventStream(head)) return reader.Push(piece, on_data);
                     body += piece;
                     return true;
                   }));
  reply.body = std::move(body);
  return reply;
}

}  // namespace layover
