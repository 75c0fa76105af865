// The gated delta net of one recurrent layer: Yang et al. 2024, "Gated Delta Networks", as the Qwen hybrids have it.
#ifndef LAYOVER_STAGE_WORKER_MODELS_DELTA_NET_BLOCK_H_
#define LAYOVER_STAGE_WORKER_MODELS_DELTA_NET_BLOCK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "stage_worker/models/pass.h"
#include "stage_worker/models/weights.h"
#include "stage_worker/recurrent_state.h"

namespace layover {

class DeltaNetBlock {
 public:
  // `state`: the layer's slots.
  static absl::StatusOr<DeltaNetBlock> Load(WeightLoader& loader, const ModelShape& shape, const LayerState& state);

  // out = W_out (norm(delta_net(conv(W_qkv x))) * silu(W_z x)) + residual; x is normed, [n_rows, n_embd].
  void Forward(Pass& pass, const float* x, float* out, const float* residual) const;

 private:
  Linear qkv_, z_, alpha_, beta_, out_;
  std::unique_ptr<DeviceBuffer> conv_;         // [channels, taps]
  std::unique_ptr<DeviceBuffer> a_, dt_bias_;  // [value_heads]
  Norm norm_;                                  // over dim, shared by the heads
  RecurrentShape shape_;
  LayerState state_;
  bool key_head_is_modulo_ = false;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_DELTA_NET_BLOCK_H_
