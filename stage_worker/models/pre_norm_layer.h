// The layer that most architectures are made of: x += mixer(norm(x)); x += feed_forward(norm(x)). They differ in how the
// mixer looks at the tokens before (attention, gated delta net), in a tensor's name and in the gate.
#ifndef LAYOVER_STAGE_WORKER_MODELS_PRE_NORM_LAYER_H_
#define LAYOVER_STAGE_WORKER_MODELS_PRE_NORM_LAYER_H_

#include <memory>
#include <string_view>
#include <utility>

#include "common/status.h"
#include "stage_worker/models/feed_forward.h"
#include "stage_worker/models/transformer.h"

namespace layover {

template <typename Mixer>
struct PreNormLayer : public TransformerLayer {
  Norm mixer_norm, feed_forward_norm;
  Mixer mixer;
  std::unique_ptr<FeedForward> feed_forward;

  void Forward(Pass& pass, float* x) const override {
    const Arena::Scope scope(pass.arena);
    float* normed = pass.TakeRows(mixer_norm.dim());
    pass.Normalize(mixer_norm, x, normed, pass.n_rows());
    mixer.Forward(pass, normed, x, x);
    pass.Normalize(feed_forward_norm, x, normed, pass.n_rows());
    feed_forward->Forward(pass, normed, x, x);
  }
};

// `mixer` may be an error, which is returned. `feed_forward_norm`: the tensor's role, "ffn_norm" in most files.
template <typename Mixer>
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakePreNormLayer(WeightLoader& loader, const ModelShape& shape,
                                                                   absl::StatusOr<Mixer> mixer,
                                                                   std::string_view feed_forward_norm, GateKind gate) {
  RETURN_IF_ERROR(mixer.status());
  auto made = std::make_unique<PreNormLayer<Mixer>>();
  made->mixer = *std::move(mixer);
  ASSIGN_OR_RETURN(made->mixer_norm.weight, loader.Vector("attn_norm"));
  ASSIGN_OR_RETURN(made->feed_forward_norm.weight, loader.Vector(feed_forward_norm));
  ASSIGN_OR_RETURN(made->feed_forward, LoadFeedForward(loader, shape, gate));
  return made;
}

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_PRE_NORM_LAYER_H_
