// qwen2, qwen3 and qwen3moe: Yang et al. 2024, "Qwen2" (biases on query, key and value), and 2025, "Qwen3" (norms of
// each head's query and key instead; experts in qwen3moe). Rotation pairs the halves of a head.
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/pre_norm_layer.h"

namespace layover {

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeQwenLayer(WeightLoader& loader, const ModelParts& parts,
                                                                int layer) {
  return MakePreNormLayer(
      loader, parts.shape,
      AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox),
      "ffn_norm", GateKind::kSilu);
}

}  // namespace layover
