// One request's way out: the thread-safe Responder that a handler holds, in front of the connection's I/O thread.
#ifndef LAYOVER_COORDINATOR_HTTP_EXCHANGE_H_
#define LAYOVER_COORDINATOR_HTTP_EXCHANGE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "coordinator/http/listener.h"

namespace layover {

// What an exchange asks of its connection. Everything but Post, Reserve and send_buffer_full runs on the I/O thread.
class ExchangePeer {
 public:
  virtual ~ExchangePeer() = default;
  virtual void Post(std::function<void()> action) = 0;
  virtual void Reserve(size_t bytes) = 0;
  virtual bool SendBufferFull() const = 0;

  virtual void SendReply(HttpReply reply) = 0;
  virtual void SendStreamHead(int status, HttpHeaders headers) = 0;
  virtual void SendChunk(std::string chunk) = 0;
  virtual void SendStreamEnd(bool close) = 0;
  virtual void SetPing(std::chrono::milliseconds interval, std::string text) = 0;
  virtual void RunAfter(std::chrono::milliseconds delay, std::function<void()> action) = 0;
  virtual void SendAbandoned() = 0;  // the handler let go without an answer: 500
  virtual void Drop() = 0;           // the reader is too slow: the connection is closed
};

class Exchange : public Responder, public std::enable_shared_from_this<Exchange> {
 public:
  explicit Exchange(std::shared_ptr<ExchangePeer> peer) : peer_(std::move(peer)) {}
  ~Exchange() override;

  void Respond(HttpReply reply) override;
  void BeginStream(int status, HttpHeaders headers) override;
  void Write(std::string chunk) override;
  void End(bool close) override;
  void SetPing(std::chrono::milliseconds interval, std::string text) override;
  void After(std::chrono::milliseconds delay, std::function<void()> action) override;
  void OnGone(std::function<void()> callback) override;
  bool gone() const override;

  // By the connection, on the I/O thread: the client is gone. Nothing is posted to the peer after it returns.
  void NotifyGone();

 private:
  enum class Phase { kOpen, kStreaming, kEnded, kGone };

  const std::shared_ptr<ExchangePeer> peer_;
  mutable std::mutex mutex_;  // guards what follows, and keeps posts in the order of calls
  Phase phase_ = Phase::kOpen;
  bool dropped_ = false;
  std::function<void()> on_gone_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_EXCHANGE_H_
