#include "stage_worker/recurrent_state.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<RecurrentState>> RecurrentState::Create(Device& device, const ModelShape& shape,
                                                                       LayerRange layers, int n_slots) {
  const RecurrentShape& r = shape.recurrent;
  std::unique_ptr<RecurrentState> state(new RecurrentState());
  state->n_slots_ = n_slots;
  const size_t dim = static_cast<size_t>(r.dim);
  state->recurrent_bytes_ = static_cast<size_t>(r.value_heads) * dim * dim * sizeof(float);
  state->conv_bytes_ =
      r.conv_taps == 0 ? 0 : static_cast<size_t>(r.conv_taps - 1) * static_cast<size_t>(r.Channels()) * sizeof(float);
  const size_t slots = static_cast<size_t>(n_slots) + 1;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    if (shape.layers[static_cast<size_t>(layer)].kind != LayerKind::kRecurrent) continue;
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> recurrent, device.Allocate(slots * state->recurrent_bytes_));
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> conv, device.Allocate(slots * state->conv_bytes_));
    state->layers_.push_back(layer);
    state->states_.push_back({recurrent->As<float>(), conv->As<float>()});
    state->buffers_.push_back(std::move(recurrent));
    state->buffers_.push_back(std::move(conv));
  }
  return state;
}

const LayerState& RecurrentState::layer(int layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer);
  LAYOVER_CHECK(found != layers_.end() && *found == layer);
  return states_[static_cast<size_t>(found - layers_.begin())];
}

std::byte* RecurrentState::RecurrentOf(int of_layer, int slot) const {
  LAYOVER_CHECK(slot >= 0 && slot <= n_slots_);
  return reinterpret_cast<std::byte*>(layer(of_layer).recurrent) + static_cast<size_t>(slot) * recurrent_bytes_;
}

std::byte* RecurrentState::ConvOf(int of_layer, int slot) const {
  LAYOVER_CHECK(slot >= 0 && slot <= n_slots_);
  return reinterpret_cast<std::byte*>(layer(of_layer).conv) + static_cast<size_t>(slot) * conv_bytes_;
}

void RecurrentState::Read(Stream& stream, int of_layer, int slot, void* recurrent, void* conv) const {
  if (recurrent != nullptr) stream.CopyToHost(recurrent, RecurrentOf(of_layer, slot), recurrent_bytes_);
  if (conv != nullptr) stream.CopyToHost(conv, ConvOf(of_layer, slot), conv_bytes_);
}

void RecurrentState::Write(Stream& stream, int of_layer, int slot, const void* recurrent, const void* conv) const {
  if (recurrent != nullptr) stream.CopyToDevice(RecurrentOf(of_layer, slot), recurrent, recurrent_bytes_);
  if (conv != nullptr) stream.CopyToDevice(ConvOf(of_layer, slot), conv, conv_bytes_);
}

}  // namespace layover
