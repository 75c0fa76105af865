#include "coordinator/http/listener.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/status.h"
#include "coordinator/http/connection.h"

namespace layover {

void ListenerCore::RequestBegins() {
  std::lock_guard lock(mutex);
  ++active;
}

void ListenerCore::RequestEnds() {
  {
    std::lock_guard lock(mutex);
    --active;
  }
  idle.notify_all();
}

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptRetry{100};  // after running out of file descriptors, say

class TcpListener final : public Listener {
 public:
  explicit TcpListener(ListenerOptions options)
      : core_(std::make_shared<ListenerCore>(std::move(options))),
        work_(core_->io.get_executor()),
        acceptor_(core_->io),
        retry_(core_->io) {}
  ~TcpListener() override;

  absl::Status Bind();
  void Run();

  uint16_t port() const override { return port_; }
  int active_requests() const override {
    std::lock_guard lock(core_->mutex);
    return core_->active;
  }
  int connections() const override { return core_->connections; }
  void StopAccepting() override;
  bool WaitIdle(std::chrono::milliseconds timeout) override;

 private:
  void Accept();
  void OnAccepted(tcp::socket socket);

  const std::shared_ptr<ListenerCore> core_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  uint16_t port_ = 0;
  std::thread thread_;
};

absl::Status TcpListener::Bind() {
  const ListenerOptions& options = core_->options;
  error_code error;
  const auto found = tcp::resolver(core_->io).resolve(options.host, std::to_string(options.port),
                                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  const auto failed = [&options, &error] {
    return Unavailable("cannot listen on {}:{}: {}", options.host, options.port, error.message());
  };
  if (error) return failed();
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return failed();
  port_ = acceptor_.local_endpoint().port();
  return absl::OkStatus();
}

void TcpListener::Run() {
  Accept();
  thread_ = std::thread([this] { core_->io.run(); });
}

TcpListener::~TcpListener() {
  if (!thread_.joinable()) return;
  asio::post(core_->io, [this] {
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    const std::vector<Connection*> open(core_->open.begin(), core_->open.end());
    for (Connection* connection : open) connection->Close();
    work_.reset();
  });
  core_->workers.Stop();
  thread_.join();
}

void TcpListener::Accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      OnAccepted(std::move(socket));
      return Accept();
    }
    LogWarning("accepting a connection failed: {}", error.message());
    retry_.expires_after(kAcceptRetry);
    retry_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) Accept();
    });
  });
}

void TcpListener::OnAccepted(tcp::socket socket) {
  const ListenerOptions& options = core_->options;
  if (core_->connections >= options.max_connections) return;  // the socket closes
  const bool reserved = core_->connections >= options.max_connections - options.reserved_connections;
  const std::shared_ptr<Connection> connection = MakeConnection(core_, std::move(socket), reserved);
  core_->open.insert(connection.get());
  ++core_->connections;
  connection->Start();
}

void TcpListener::StopAccepting() {
  asio::post(core_->io, [this] {
    core_->draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    const std::vector<Connection*> open(core_->open.begin(), core_->open.end());
    for (Connection* connection : open) connection->Drain();
  });
}

bool TcpListener::WaitIdle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(core_->mutex);
  return core_->idle.wait_for(lock, timeout, [this] { return core_->active == 0; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Start(ListenerOptions options) {
  auto listener = std::make_unique<TcpListener>(std::move(options));
  RETURN_IF_ERROR(listener->Bind());
  listener->Run();
  return listener;
}

}  // namespace layover
