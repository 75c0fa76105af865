// One client connection, and what all connections of a listener share. Only listener.cc and connection.cc see this.
#ifndef LAYOVER_COORDINATOR_HTTP_CONNECTION_H_
#define LAYOVER_COORDINATOR_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "coordinator/http/listener.h"
#include "coordinator/http/worker_pool.h"

namespace layover {

class Connection;

// Lives until the listener, every connection and every responder that somebody still holds are gone.
struct ListenerCore {
  explicit ListenerCore(ListenerOptions given)
      : options(std::move(given)), io(1), workers(options.workers, options.max_queued_requests) {}

  const ListenerOptions options;
  boost::asio::io_context io;  // run by one thread
  WorkerPool workers;

  // I/O thread only.
  std::unordered_set<Connection*> open;
  size_t body_bytes = 0;  // of requests being read or handled, over all connections
  bool draining = false;

  std::atomic<int> connections{0};

  std::mutex mutex;
  std::condition_variable idle;
  int active = 0;  // requests admitted and not yet answered; under `mutex`

  void RequestBegins();
  void RequestEnds();
};

// Runs on the I/O thread throughout.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual void Start() = 0;
  virtual void Close() = 0;  // at once; a handler at work is told that its client is gone
  virtual void Drain() = 0;  // after the reply that is being given, at once if there is none
};

// `reserved`: accepted beyond the ordinary limit, so only urgent requests are served on it.
std::shared_ptr<Connection> MakeConnection(std::shared_ptr<ListenerCore> core, boost::asio::ip::tcp::socket socket,
                                           bool reserved);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_HTTP_CONNECTION_H_
