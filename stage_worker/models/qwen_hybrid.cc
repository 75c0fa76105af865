// qwen3next, qwen35 and qwen35moe: gated delta net in most layers, attention with a gate on its output in every fourth
// (Yang et al. 2024, "Gated Delta Networks"; Qwen Team 2025, "Qwen3-Next"). Queries and keys are normed per head, only
// their first dims are rotated; positions of text are the same on every axis of the interleaved rotation, which makes
// it the plain one. Dense or experts with a shared one.
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/delta_net_block.h"
#include "stage_worker/models/pre_norm_layer.h"

namespace layover {
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeQwenHybridLayer(WeightLoader& loader, const ModelParts& parts,
                                                                      int layer) {
  // Despite its name it stands before the feed-forward and is not applied to what attention gives.
  constexpr std::string_view kFeedForwardNorm = "post_attention_norm";
  if (parts.shape.layers[static_cast<size_t>(layer)].kind == LayerKind::kRecurrent) {
    return MakePreNormLayer(loader, parts.shape,
                            DeltaNetBlock::Load(loader, parts.shape, parts.memory.states->layer(layer)),
                            kFeedForwardNorm, GateKind::kSilu);
  }
  return MakePreNormLayer(
      loader, parts.shape,
      AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox),
      kFeedForwardNorm, GateKind::kSilu);
}

}  // namespace layover
