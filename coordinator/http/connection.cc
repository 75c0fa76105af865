// Reads one request after the other and writes the replies. One read is always under way (except while too much of a
// next request is waiting), so the end of the connection is seen whatever the handler does.
//
// What must stay true: everything here runs on the I/O thread; a handler reaches it only through Exchange. A request is
// admitted before a byte of its body is read. A client that is gone is told to the handler exactly once.
#include "coordinator/http/connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "coordinator/http/exchange.h"
#include "coordinator/http/socket_writer.h"
#include "fmt/core.h"

namespace layover {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = 64 * 1024;
constexpr std::chrono::milliseconds kLingerTime{2000};  // how long a refused upload may go on, so the reply is read

enum class State {
  kHead,       // waiting for, or reading, a request's head
  kBody,       // admitted, reading its body
  kHandling,   // a handler has it
  kReplying,   // the whole reply is in the writer
  kLingering,  // the reply is out; what the client still sends is thrown away
  kClosed,
};

class HttpConnection final : public Connection,
                             public ExchangePeer,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<ListenerCore> core, asio::ip::tcp::socket socket, bool reserved)
      : core_(std::move(core)),
        socket_(std::move(socket)),
        reserved_(reserved),
        read_timer_(core_->io),
        ping_timer_(core_->io),
        writer_(socket_, core_->options.write_deadline,
                {[this] { return shared_from_this(); }, [this] { OnWritten(); }, [this] { Close(); }}),
        buffer_(std::max(kReadBytes, core_->options.max_header_bytes) + limits::kMaxHttpPipelinedBytes) {}

  // Connection
  void Start() override;
  void Close() override;
  void Drain() override;

  // ExchangePeer
  void Post(std::function<void()> action) override { asio::post(core_->io, std::move(action)); }
  void Reserve(size_t bytes) override { writer_.Reserve(bytes); }
  bool SendBufferFull() const override { return writer_.buffered() > core_->options.max_send_buffer_bytes; }
  void SendReply(HttpReply reply) override;
  void SendStreamHead(int status, HttpHeaders headers) override;
  void SendChunk(std::string chunk) override;
  void SendStreamEnd(bool close) override;
  void SetPing(std::chrono::milliseconds interval, std::string text) override;
  void RunAfter(std::chrono::milliseconds delay, std::function<void()> action) override;
  void SendAbandoned() override;
  void Drop() override;

 private:
  using Parser = beast_http::request_parser<beast_http::string_body>;

  // Reading
  void NextRequest();
  void Read();
  void OnRead(const error_code& error, size_t size);
  void Parse();
  void OnHead();
  void OnBody();
  void OnParseError(const error_code& error);
  bool CountBody();
  void ArmReadDeadline(std::chrono::milliseconds after);
  void OnReadDeadline();

  // Replying
  void Refuse(int status, std::string_view message);
  void BeginReply(int status, const HttpHeaders& headers, std::string_view framing);
  void OnWritten();
  void ArmPing();
  void FinishRequest();
  void Linger();

  const std::shared_ptr<ListenerCore> core_;
  asio::ip::tcp::socket socket_;
  const bool reserved_;
  asio::steady_timer read_timer_;
  asio::steady_timer ping_timer_;
  SocketWriter writer_;
  boost::beast::flat_buffer buffer_;

  State state_ = State::kHead;
  bool reading_ = false;
  bool head_begun_ = false;
  std::optional<Parser> parser_;
  std::shared_ptr<HttpRequest> request_;
  Admission admission_;
  std::weak_ptr<Exchange> exchange_;
  bool counted_ = false;     // this request is in core_->active
  size_t counted_body_ = 0;  // its bytes in core_->body_bytes
  bool close_after_ = false;
  bool body_pending_ = false;  // refused before its body was read
  bool head_request_ = false;
  bool chunked_ = false;  // how a stream is framed; an HTTP/1.0 client gets it plain, up to the connection's end
  bool streaming_ = false;
  int status_ = 0;  // of the reply that went out
  std::chrono::steady_clock::time_point last_chunk_;
  std::vector<std::shared_ptr<asio::steady_timer>> timers_;  // of RunAfter
  std::string remote_;
  std::chrono::milliseconds ping_interval_{0};
  std::string ping_text_;
};

// ------------------------------------------------------------------------------------------------------------ reading

void HttpConnection::Start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto peer = socket_.remote_endpoint(ignored);
  remote_ = fmt::format("{}:{}", peer.address().to_string(ignored), peer.port());
  if (core_->options.socket_send_buffer_bytes > 0) {
    socket_.set_option(asio::socket_base::send_buffer_size(core_->options.socket_send_buffer_bytes), ignored);
  }
  NextRequest();
  ArmReadDeadline(core_->options.header_deadline);
  Read();
}

void HttpConnection::NextRequest() {
  state_ = State::kHead;
  head_begun_ = false;
  request_ = std::make_shared<HttpRequest>();
  admission_ = Admission{};
  exchange_.reset();
  body_pending_ = false;
  head_request_ = false;
  streaming_ = false;
  status_ = 0;
  ping_interval_ = std::chrono::milliseconds{0};
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(core_->options.max_header_bytes));
  parser_->body_limit(core_->options.max_body_bytes);
}

void HttpConnection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (buffer_.size() == buffer_.max_size()) return Refuse(431, "a line of the request is too long");
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(std::min(kReadBytes, buffer_.max_size() - buffer_.size())),
                          [this, self = shared_from_this()](const error_code& error, size_t size) {
                            reading_ = false;
                            OnRead(error, size);
                          });
}

void HttpConnection::OnRead(const error_code& error, size_t size) {
  if (state_ == State::kClosed) return;
  if (error) return Close();
  buffer_.commit(size);
  switch (state_) {
    case State::kHead:
      if (!head_begun_) ArmReadDeadline(core_->options.header_deadline);
      [[fallthrough]];
    case State::kBody:
      Parse();
      break;
    case State::kLingering:
      buffer_.consume(buffer_.size());
      break;
    default:
      if (buffer_.size() > limits::kMaxHttpPipelinedBytes) return Close();
      break;
  }
  Read();
}

// Feeds what was read to the parser, one element at a time so that the head can be looked at before the body.
void HttpConnection::Parse() {
  while ((state_ == State::kHead || state_ == State::kBody) && buffer_.size() > 0) {
    head_begun_ = true;
    error_code error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == beast_http::error::need_more) return;
    if (error) return OnParseError(error);
    if (state_ == State::kHead && parser_->is_header_done()) OnHead();
    if (state_ == State::kBody) {
      if (!CountBody()) return Refuse(503, "too many request bodies at once");
      if (parser_->is_done()) OnBody();
    }
    if (used == 0) return;
  }
}

void HttpConnection::OnHead() {
  const auto& message = parser_->get();
  request_->method = std::string(message.method_string());
  request_->http_1_0 = message.version() < 11;
  head_request_ = request_->method == "HEAD";
  chunked_ = !request_->http_1_0;
  request_->remote = remote_;
  for (const auto& field : message) {
    request_->headers.emplace_back(AsciiLower({field.name_string().data(), field.name_string().size()}),
                                   std::string(field.value()));
  }
  body_pending_ = !parser_->is_done();
  close_after_ = !parser_->keep_alive();
  const auto target = message.target();
  if (const absl::Status parsed = ParseTarget({target.data(), target.size()}, *request_); !parsed.ok()) {
    close_after_ = true;
    return Refuse(400, ToStd(parsed.message()));
  }
  admission_ = core_->options.admit(*request_);
  if (admission_.refusal.has_value()) return SendReply(*std::move(admission_.refusal));
  const int ordinary = core_->options.max_connections - core_->options.reserved_connections;
  if (reserved_ && !admission_.urgent && core_->connections > ordinary) return Refuse(503, "too many connections");
  const std::string* expect = request_->Header("expect");
  if (body_pending_ && expect != nullptr && AsciiLower(*expect) == "100-continue") {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    writer_.Reserve(kContinue.size());
    writer_.Append(kContinue);
  }
  state_ = State::kBody;
  ArmReadDeadline(core_->options.body_deadline);
}

bool HttpConnection::CountBody() {
  const size_t size = parser_->get().body().size();
  core_->body_bytes += size - counted_body_;
  counted_body_ = size;
  return size == 0 || core_->body_bytes <= core_->options.max_body_bytes_in_flight;
}

void HttpConnection::OnBody() {
  read_timer_.cancel();
  body_pending_ = false;
  request_->body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::kHandling;
  core_->RequestBegins();
  counted_ = true;
  const auto exchange = std::make_shared<Exchange>(shared_from_this());
  exchange_ = exchange;
  if (admission_.urgent) return admission_.handler(std::move(request_), exchange);
  auto task = [handler = std::move(admission_.handler), request = std::move(request_), exchange]() mutable {
    if (!exchange->gone()) handler(std::move(request), std::move(exchange));
  };
  if (!core_->workers.Submit(std::move(task))) exchange->Respond(core_->options.refuse(503, "too many requests wait"));
}

void HttpConnection::OnParseError(const error_code& error) {
  body_pending_ = true;
  if (error == beast_http::error::body_limit) {
    return Refuse(413, fmt::format("the request's body is larger than {} bytes", core_->options.max_body_bytes));
  }
  if (error == beast_http::error::header_limit) {
    return Refuse(431, fmt::format("the request's head is larger than {} bytes", core_->options.max_header_bytes));
  }
  Refuse(400, fmt::format("not an HTTP request: {}", error.message()));
}

void HttpConnection::ArmReadDeadline(std::chrono::milliseconds after) {
  read_timer_.expires_after(after);
  read_timer_.async_wait([this, self = shared_from_this()](const error_code& error) {
    if (error || read_timer_.expiry() > std::chrono::steady_clock::now()) return;
    OnReadDeadline();
  });
}

void HttpConnection::OnReadDeadline() {
  if (state_ == State::kBody || (state_ == State::kHead && head_begun_)) {
    body_pending_ = true;
    return Refuse(408, "the request took too long to arrive");
  }
  if (state_ == State::kHead || state_ == State::kLingering) Close();
}

// ----------------------------------------------------------------------------------------------------------- replying

void HttpConnection::Refuse(int status, std::string_view message) {
  SendReply(core_->options.refuse(status, message));
}

// Writes the head of a reply. `framing` says how its body ends.
void HttpConnection::BeginReply(int status, const HttpHeaders& headers, std::string_view framing) {
  if (body_pending_ || reserved_ || core_->draining) close_after_ = true;
  status_ = status;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, ReasonPhrase(status));
  const auto add = [&head](const HttpHeaders& fields) {
    for (const auto& [name, value] : fields) {
      if (value.find_first_of("\r\n") == std::string::npos) head += fmt::format("{}: {}\r\n", name, value);
    }
  };
  add(headers);
  add(admission_.extra_headers);
  head += framing;
  head += close_after_ ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n";
  writer_.Reserve(head.size());
  writer_.Append(head);
}

void HttpConnection::SendReply(HttpReply reply) {
  if (state_ == State::kClosed || state_ == State::kReplying || state_ == State::kLingering) return;
  read_timer_.cancel();
  const bool bodiless = reply.status == 204;
  BeginReply(reply.status, reply.headers, bodiless ? "" : fmt::format("Content-Length: {}\r\n", reply.body.size()));
  state_ = State::kReplying;
  if (head_request_ || bodiless) return;
  writer_.Reserve(reply.body.size());
  writer_.Append(reply.body);
}

void HttpConnection::SendAbandoned() {
  Refuse(500, "the request was not answered");
}

void HttpConnection::SendStreamHead(int status, HttpHeaders headers) {
  if (state_ != State::kHandling) return;
  if (!chunked_) close_after_ = true;
  BeginReply(status, headers, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  streaming_ = true;
  last_chunk_ = std::chrono::steady_clock::now();
  ArmPing();
}

void HttpConnection::SendChunk(std::string chunk) {
  if (state_ != State::kHandling || !streaming_) return;
  last_chunk_ = std::chrono::steady_clock::now();
  if (!chunked_) return writer_.Append(chunk);
  const std::string size = fmt::format("{:x}\r\n", chunk.size());
  writer_.Reserve(size.size() + 2);
  chunk.insert(0, size);
  chunk += "\r\n";
  writer_.Append(chunk);
}

void HttpConnection::SendStreamEnd(bool close) {
  if (state_ != State::kHandling || !streaming_) return;
  if (close) close_after_ = true;
  state_ = State::kReplying;
  ping_timer_.cancel();
  static constexpr std::string_view kLastChunk = "0\r\n\r\n";
  if (chunked_) {
    writer_.Reserve(kLastChunk.size());
    writer_.Append(kLastChunk);
  } else if (writer_.empty()) {
    Post([this, self = shared_from_this()] { OnWritten(); });
  }
}

void HttpConnection::SetPing(std::chrono::milliseconds interval, std::string text) {
  ping_interval_ = interval;
  ping_text_ = std::move(text);
  ArmPing();
}

void HttpConnection::ArmPing() {
  if (ping_interval_.count() <= 0 || !streaming_ || state_ != State::kHandling) return;
  ping_timer_.expires_at(last_chunk_ + ping_interval_);
  ping_timer_.async_wait([this, self = shared_from_this()](const error_code& error) {
    if (error || state_ != State::kHandling || !streaming_) return;
    if (std::chrono::steady_clock::now() >= last_chunk_ + ping_interval_) {
      writer_.Reserve(ping_text_.size());
      SendChunk(ping_text_);
    }
    ArmPing();
  });
}

void HttpConnection::RunAfter(std::chrono::milliseconds delay, std::function<void()> action) {
  if (state_ != State::kHandling) return;
  const auto timer = std::make_shared<asio::steady_timer>(core_->io, delay);
  timers_.push_back(timer);
  timer->async_wait([self = shared_from_this(), action = std::move(action)](const error_code& error) {
    if (!error) action();
  });
}

void HttpConnection::Drop() {
  LogInfo("{}: the client reads too slowly, its stream is dropped", remote_);
  Close();
}

void HttpConnection::OnWritten() {
  if (state_ != State::kReplying) return;
  FinishRequest();
  if (close_after_) return Linger();
  NextRequest();
  ArmReadDeadline(core_->options.idle_deadline);
  Parse();
  Read();
}

// The books of one request are closed, exactly once, whether its reply went out or its client is gone.
void HttpConnection::FinishRequest() {
  timers_.clear();
  ping_timer_.cancel();
  core_->body_bytes -= counted_body_;
  counted_body_ = 0;
  if (admission_.on_replied) std::exchange(admission_.on_replied, nullptr)(status_);
  if (std::exchange(counted_, false)) core_->RequestEnds();
}

// Closing while the client still sends would make its system throw our reply away; so only our half is closed first.
void HttpConnection::Linger() {
  state_ = State::kLingering;
  parser_.reset();
  buffer_.consume(buffer_.size());
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  ArmReadDeadline(kLingerTime);
  Read();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  if (const std::shared_ptr<Exchange> exchange = exchange_.lock()) exchange->NotifyGone();
  FinishRequest();
  read_timer_.cancel();
  writer_.Cancel();
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  core_->open.erase(this);
  --core_->connections;
}

void HttpConnection::Drain() {
  close_after_ = true;
  if (state_ == State::kHead && !head_begun_) Close();
}

}  // namespace

std::shared_ptr<Connection> MakeConnection(std::shared_ptr<ListenerCore> core, asio::ip::tcp::socket socket,
                                           bool reserved) {
  return std::make_shared<HttpConnection>(std::move(core), std::move(socket), reserved);
}

}  // namespace layover
