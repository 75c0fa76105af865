#include "coordinator/http/socket_writer.h"

#include <algorithm>
#include <utility>

namespace layover {
namespace {

constexpr size_t kWriteBytes = 256 * 1024;  // most of one write, so that progress shows on a slow link

}  // namespace

SocketWriter::SocketWriter(boost::asio::ip::tcp::socket& socket, std::chrono::milliseconds deadline, Hooks hooks)
    : socket_(socket), deadline_(deadline), hooks_(std::move(hooks)), timer_(socket.get_executor()) {}

void SocketWriter::Append(std::string_view bytes) {
  waiting_ += bytes;
  if (!writing_) WriteSome();
}

void SocketWriter::WriteSome() {
  if (current_offset_ == current_.size()) {
    current_.clear();
    current_.swap(waiting_);
    current_offset_ = 0;
  }
  if (current_.empty()) {
    writing_ = false;
    timer_.cancel();
    hooks_.on_empty();
    return;
  }
  writing_ = true;
  ArmDeadline();
  const size_t size = std::min(current_.size() - current_offset_, kWriteBytes);
  socket_.async_write_some(boost::asio::buffer(current_.data() + current_offset_, size),
                           [this, guard = hooks_.keep_alive()](const boost::system::error_code& error, size_t written) {
                             buffered_ -= written;
                             current_offset_ += written;
                             if (error) {
                               writing_ = false;
                               timer_.cancel();
                               hooks_.on_failed();
                               return;
                             }
                             WriteSome();
                           });
}

void SocketWriter::ArmDeadline() {
  timer_.expires_after(deadline_);
  timer_.async_wait([this, guard = hooks_.keep_alive()](const boost::system::error_code& error) {
    // A timer that fired just before it was set anew is not late: its new end lies ahead.
    if (error || !writing_ || timer_.expiry() > std::chrono::steady_clock::now()) return;
    hooks_.on_failed();
  });
}

}  // namespace layover
