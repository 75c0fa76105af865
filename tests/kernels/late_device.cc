// The queue.
#include "tests/kernels/late_device.h"

#include <memory>
#include <utility>

namespace layover::kernel_test {
namespace {

class LateEvent : public Event {
 public:
  explicit LateEvent(std::shared_ptr<bool> done) : done_(std::move(done)) {}
  bool Done() const override { return *done_; }

 private:
  const std::shared_ptr<bool> done_;
};

}  // namespace

void LateStream::Put(std::function<void()> operation) {
  if (fail_next_.ok()) {
    waiting_.push_back(std::move(operation));
  } else {
    waiting_.push_back([this, status = std::exchange(fail_next_, absl::OkStatus())] { error_ = status; });
  }
}

std::unique_ptr<Event> LateStream::Record() {
  auto done = std::make_shared<bool>(false);
  waiting_.push_back([done] { *done = true; });
  return std::make_unique<LateEvent>(done);
}

absl::Status LateStream::Synchronize() {
  const std::vector<std::function<void()>> operations = std::exchange(waiting_, {});
  for (const std::function<void()>& operation : operations) {
    if (error_.ok()) operation();
  }
  return error_;
}

}  // namespace layover::kernel_test
