// The recurrent memory of one stage: for each of its recurrent layers a set of slots, each of which holds the state of
// one sequence after some number of tokens. Slots are numbered by the coordinator's ledger, the same on every stage; a
// step reads one slot of a sequence and writes the same or another one, so that a slot can be kept as it is (for a
// save, or as a checkpoint).
#ifndef LAYOVER_STAGE_WORKER_RECURRENT_STATE_H_
#define LAYOVER_STAGE_WORKER_RECURRENT_STATE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/topology.h"
#include "kernels/ops.h"

namespace layover {

// The slots of one layer, on the device.
struct LayerState {
  float* recurrent = nullptr;  // [n_slots, value_heads, dim (value), dim (key)]
  float* conv = nullptr;       // [n_slots, taps - 1, channels]
};

class RecurrentState {
 public:
  // Allocates `n_slots` slots (and one scratch slot behind them) for every recurrent layer of `layers`.
  static absl::StatusOr<std::unique_ptr<RecurrentState>> Create(Device& device, const ModelShape& shape,
                                                                LayerRange layers, int n_slots);

  int n_slots() const { return n_slots_; }
  // This stage's recurrent layers, ascending; they count through the model.
  const std::vector<int>& layers() const { return layers_; }
  const LayerState& layer(int layer) const;

  // Bytes of one slot in one layer.
  size_t recurrent_bytes() const { return recurrent_bytes_; }
  size_t conv_bytes() const { return conv_bytes_; }

  // One slot of one layer from or to host memory, in stream order; either may be null: that part is left out.
  void Read(Stream& stream, int layer, int slot, void* recurrent, void* conv) const;
  void Write(Stream& stream, int layer, int slot, const void* recurrent, const void* conv) const;

 private:
  RecurrentState() = default;
  // Of a slot in the layer's memory.
  std::byte* RecurrentOf(int layer, int slot) const;
  std::byte* ConvOf(int layer, int slot) const;

  int n_slots_ = 0;
  size_t recurrent_bytes_ = 0;
  size_t conv_bytes_ = 0;
  std::vector<int> layers_;
  std::vector<LayerState> states_;  // [layers_.size()]
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_RECURRENT_STATE_H_
