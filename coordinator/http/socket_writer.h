// The outgoing half of one connection: a buffer, one write under way at a time, and a deadline for a reader that takes
// nothing. Everything but `buffered` runs on the I/O thread.
#ifndef LAYOVER_COORDINATOR_HTTP_SOCKET_WRITER_H_
#define LAYOVER_COORDINATOR_HTTP_SOCKET_WRITER_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace layover {

class SocketWriter {
 public:
  // `keep_alive` gives what keeps the socket and this writer alive while a write is under way. `on_empty` is called
  // when the last byte has left, `on_failed` when the peer is gone or has taken nothing for `deadline`.
  struct Hooks {
    std::function<std::shared_ptr<void>()> keep_alive;
    std::function<void()> on_empty;
    std::function<void()> on_failed;
  };
  SocketWriter(boost::asio::ip::tcp::socket& socket, std::chrono::milliseconds deadline, Hooks hooks);

  void Append(std::string_view bytes);
  bool empty() const { return waiting_.empty() && !writing_; }
  void Cancel() { timer_.cancel(); }

  // Bytes handed over and not yet taken by the system. Callers on other threads count theirs in before they post them.
  void Reserve(size_t bytes) { buffered_ += bytes; }
  void Release(size_t bytes) { buffered_ -= bytes; }
  size_t buffered() const { return buffered_; }

 private:
  void WriteSome();
  void ArmDeadline();

  boost::asio::ip::tcp::socket& socket_;
  const std::chrono::milliseconds deadline_;
  const Hooks hooks_;
  boost::asio::steady_timer timer_;
  std::string waiting_;
  std::string current_;
  size_t current_offset_ = 0;
  bool writing_ = false;
  std::atomic<size_t> buffered_{0};
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_SOCKET_WRITER_H_
