// Scratch memory of a forward pass: a stack that every step walks in the same way, so that equal steps get equal
// addresses and nothing is allocated while the model runs.
//
// How much is needed is measured, not computed: an arena without memory hands out addresses that nobody may touch and
// notes the highest; the model walks through its layers once with it (and a stream that does nothing).
#ifndef LAYOVER_STAGE_WORKER_MODELS_ARENA_H_
#define LAYOVER_STAGE_WORKER_MODELS_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/check.h"
#include "common/status.h"
#include "kernels/ops.h"

namespace layover {

class Arena {
 public:
  // Until Allocate the arena measures.
  absl::Status Allocate(Device& device) {
    LAYOVER_CHECK(buffer_ == nullptr && used_ == 0);
    ASSIGN_OR_RETURN(buffer_, device.Allocate(peak_));
    return absl::OkStatus();
  }
  size_t peak_bytes() const { return peak_; }

  // Valid until the enclosing Scope ends.
  void* Take(size_t bytes) {
    const size_t at = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    if (buffer_ == nullptr) return reinterpret_cast<void*>(kAlignment + at);
    LAYOVER_CHECK(used_ <= buffer_->bytes());
    return buffer_->As<std::byte>() + at;
  }

  // Gives back at its end what was taken since its beginning.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), used_(arena.used_) {}
    ~Scope() { arena_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    const size_t used_;
  };

 private:
  static constexpr size_t kAlignment = 256;
  size_t used_ = 0;
  size_t peak_ = 0;
  std::unique_ptr<DeviceBuffer> buffer_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_ARENA_H_
