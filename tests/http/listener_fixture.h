// A bare listener whose one handler a test writes.
#ifndef LAYOVER_TESTS_HTTP_LISTENER_FIXTURE_H_
#define LAYOVER_TESTS_HTTP_LISTENER_FIXTURE_H_

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/error_json.h"
#include "coordinator/http/listener.h"
#include "tests/http/http_fixture.h"

namespace layover::testing {

inline constexpr std::chrono::milliseconds kShort{20};

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() {
    options_.refuse = [](int status, std::string_view message) { return ErrorReply(status, message); };
    options_.admit = [this](const HttpRequest& request) {
      ++admitted_;
      Admission admission;
      admission.urgent = request.path == "/urgent";
      admission.handler = handler_;
      admission.on_replied = [this](int status) {
        std::lock_guard lock(mutex_);
        statuses_.push_back(status);
        replied_.notify_all();
      };
      return admission;
    };
    handler_ = [](std::shared_ptr<const HttpRequest> request, std::shared_ptr<Responder> reply) {
      reply->Respond({200, {}, request->method + " " + request->path + " " + std::to_string(request->body.size())});
    };
  }
  void Start() {
    auto listener = Listener::Start(options_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  std::string Talk(std::string_view bytes) {
    RawClient client(listener_->port());
    client.Send(bytes);
    return client.ReadToEnd();
  }
  // Waits until so many requests have come to their end: what a client or a handler sees of it may be earlier.
  std::vector<int> WaitForStatuses(size_t count) {
    std::unique_lock lock(mutex_);
    replied_.wait(lock, [&] { return statuses_.size() >= count; });
    return statuses_;
  }

  ListenerOptions options_;
  HttpHandler handler_;
  std::atomic<int> admitted_{0};
  std::mutex mutex_;
  std::condition_variable replied_;
  std::vector<int> statuses_;  // guarded by mutex_
  std::unique_ptr<Listener> listener_;
};

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_HTTP_LISTENER_FIXTURE_H_
