// gpt-oss: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card". Layers with a sliding window and layers that see
// everything take turns; every head has a sink, a logit that only takes part in the softmax's sum; biases everywhere;
// experts with a clamped SwiGLU, chosen by their logits, weighed by the softmax of the chosen ones.
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/pre_norm_layer.h"

namespace layover {

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeGptOssLayer(WeightLoader& loader, const ModelParts& parts,
                                                                  int layer) {
  // Despite its name post_attention_norm stands before the experts and is not applied to what attention gives.
  return MakePreNormLayer(
      loader, parts.shape,
      AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox),
      "post_attention_norm", GateKind::kClampedSwiglu);
}

}  // namespace layover
