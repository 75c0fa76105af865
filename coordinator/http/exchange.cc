#include "coordinator/http/exchange.h"

#include <utility>

namespace layover {

// A handler that lets go of its responder without an answer has a bug; the client must not wait for ever because of it.
Exchange::~Exchange() {
  if (phase_ == Phase::kOpen) {
    peer_->Post([peer = peer_] { peer->SendAbandoned(); });
  } else if (phase_ == Phase::kStreaming) {
    peer_->Post([peer = peer_] { peer->SendStreamEnd(true); });
  }
}

void Exchange::Respond(HttpReply reply) {
  std::function<void()> released;  // destroyed after the lock: what it holds may be this exchange's last owner
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen) return;
  phase_ = Phase::kEnded;
  released.swap(on_gone_);
  peer_->Post([peer = peer_, reply = std::move(reply)]() mutable { peer->SendReply(std::move(reply)); });
}

void Exchange::BeginStream(int status, HttpHeaders headers) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen) return;
  phase_ = Phase::kStreaming;
  peer_->Post([peer = peer_, status, headers = std::move(headers)]() mutable {
    peer->SendStreamHead(status, std::move(headers));
  });
}

void Exchange::Write(std::string chunk) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming || dropped_ || chunk.empty()) return;
  if (peer_->SendBufferFull()) {
    dropped_ = true;
    peer_->Post([peer = peer_] { peer->Drop(); });
    return;
  }
  peer_->Reserve(chunk.size());
  peer_->Post([peer = peer_, chunk = std::move(chunk)]() mutable { peer->SendChunk(std::move(chunk)); });
}

void Exchange::End(bool close) {
  std::function<void()> released;
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming) return;
  phase_ = Phase::kEnded;
  released.swap(on_gone_);
  peer_->Post([peer = peer_, close] { peer->SendStreamEnd(close); });
}

void Exchange::SetPing(std::chrono::milliseconds interval, std::string text) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen && phase_ != Phase::kStreaming) return;
  peer_->Post([peer = peer_, interval, text = std::move(text)]() mutable { peer->SetPing(interval, std::move(text)); });
}

void Exchange::After(std::chrono::milliseconds delay, std::function<void()> action) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen && phase_ != Phase::kStreaming) return;
  auto guarded = [weak = weak_from_this(), action = std::move(action)] {
    const std::shared_ptr<Exchange> self = weak.lock();
    if (self == nullptr) return;
    {
      std::lock_guard inner(self->mutex_);
      if (self->phase_ == Phase::kEnded || self->phase_ == Phase::kGone) return;
    }
    action();
  };
  peer_->Post(
      [peer = peer_, delay, guarded = std::move(guarded)]() mutable { peer->RunAfter(delay, std::move(guarded)); });
}

void Exchange::OnGone(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded) return;
    if (phase_ != Phase::kGone) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::gone() const {
  std::lock_guard lock(mutex_);
  return phase_ == Phase::kGone;
}

void Exchange::NotifyGone() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded || phase_ == Phase::kGone) return;
    phase_ = Phase::kGone;
    callback.swap(on_gone_);
  }
  if (callback) callback();
}

}  // namespace layover
