// qwen3next, qwen35 and qwen35moe: gated delta net in most layers, attention with a gate on its output in every fourth
// (Yang et al. 2024, "Gated Delta Networks"; Qwen Team 2025, "Qwen3-Next"). Queries and keys are normed per head, only
// their first dims are rotated; positions of text are the same on every axis of the interleaved rotation, which makes
// it the plain one. Dense or experts with a shared one.
#include "common/status.h"
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/delta_net_block.h"
#include "stage_worker/models/feed_forward.h"
#include "stage_worker/models/transformer.h"

namespace layover {
namespace {

// Mixer: how a layer looks at the tokens before.
template <typename Mixer>
struct QwenHybridLayer : public TransformerLayer {
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

template <typename Mixer>
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeLayer(WeightLoader& loader, const ModelShape& shape,
                                                            absl::StatusOr<Mixer> mixer) {
  RETURN_IF_ERROR(mixer.status());
  auto made = std::make_unique<QwenHybridLayer<Mixer>>();
  made->mixer = *std::move(mixer);
  ASSIGN_OR_RETURN(made->mixer_norm.weight, loader.Vector("attn_norm"));
  // Despite its name it stands before the feed-forward and is not applied to what attention gives.
  ASSIGN_OR_RETURN(made->feed_forward_norm.weight, loader.Vector("post_attention_norm"));
  ASSIGN_OR_RETURN(made->feed_forward, LoadFeedForward(loader, shape, GateKind::kSilu));
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeQwenHybridLayer(WeightLoader& loader, const ModelParts& parts,
                                                                      int layer) {
  if (parts.shape.layers[static_cast<size_t>(layer)].kind == LayerKind::kRecurrent) {
    return MakeLayer(loader, parts.shape, DeltaNetBlock::Load(loader, parts.shape, parts.memory.states->layer(layer)));
  }
  return MakeLayer(loader, parts.shape,
                   AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox));
}

}  // namespace layover
