// A step's inputs on their way to the device, packed into one block, of which one copy brings what is used.
//
// There are limits::kStepSlots blocks, used in turn, so that a step can be prepared while the one before has not run yet.
// A slot's host memory is written again once its last upload is done; on the device the stream's order does the same.
// Blocks keep their addresses, and parts of equal sizes lie in equal places: graphs rely on both.
#ifndef LAYOVER_STAGE_WORKER_STEP_INPUTS_H_
#define LAYOVER_STAGE_WORKER_STEP_INPUTS_H_

#include <array>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/check.h"
#include "common/limits.h"
#include "kernels/ops.h"
#include "stage_worker/pinned_memory.h"

namespace layover {

class StepInputs {
 public:
  // Every step has room for `bytes`.
  static absl::StatusOr<std::unique_ptr<StepInputs>> Create(Device& device, Stream& stream, size_t bytes);

  // The next slot, empty. Waits for the stream only if the slot's last upload has not run, which cannot be where every step
  // is waited for before the next one is prepared: then only after a step that was given up.
  absl::Status Begin();

  template <typename T>
  struct Part {
    T* host = nullptr;  // to be filled before Upload
    const T* device = nullptr;
  };
  template <typename T>
  Part<T> Take(size_t n) {
    static_assert(alignof(T) == kAlignment);
    const size_t at = used_;
    used_ += n * sizeof(T);
    LAYOVER_CHECK(used_ <= now().host->bytes());
    return {reinterpret_cast<T*>(now().host->As<std::byte>() + at),
            reinterpret_cast<const T*>(now().device->As<std::byte>() + at)};
  }

  // Enqueues the copy of what was taken.
  void Upload();
  int slot() const { return slot_; }

 private:
  static constexpr size_t kAlignment = 4;
  struct Slot {
    std::unique_ptr<PinnedMemory> host;
    std::unique_ptr<DeviceBuffer> device;
    std::unique_ptr<Event> uploaded;  // null: never used
  };
  explicit StepInputs(Stream& stream) : stream_(stream) {}
  Slot& now() { return slots_[static_cast<size_t>(slot_)]; }

  Stream& stream_;
  std::array<Slot, limits::kStepSlots> slots_;
  int slot_ = 0;
  size_t used_ = 0;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_STEP_INPUTS_H_
