#include "stage_worker/step_inputs.h"

#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<StepInputs>> StepInputs::Create(Device& device, Stream& stream, size_t bytes) {
  std::unique_ptr<StepInputs> inputs(new StepInputs(stream));
  for (Slot& slot : inputs->slots_) {
    slot.host = std::make_unique<PinnedMemory>(device, bytes);
    ASSIGN_OR_RETURN(slot.device, device.Allocate(slot.host->bytes()));
  }
  return inputs;
}

absl::Status StepInputs::Begin() {
  slot_ = (slot_ + 1) % limits::kStepSlots;
  used_ = 0;
  if (now().uploaded != nullptr && !now().uploaded->Done()) RETURN_IF_ERROR(stream_.Synchronize());
  return absl::OkStatus();
}

void StepInputs::Upload() {
  stream_.CopyToDevice(now().device->data(), now().host->data(), used_);
  now().uploaded = stream_.Record();
}

}  // namespace layover
