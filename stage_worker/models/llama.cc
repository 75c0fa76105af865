// The llama architecture (Llama, SmolLM2, Mistral and Mixtral as GGUF's "llama"): Touvron et al. 2023, "LLaMA", with
// grouped queries; with experts Jiang et al. 2024, "Mixtral of Experts". GGUF's rows are ordered for rotation of
// neighbouring dimensions.
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/pre_norm_layer.h"

namespace layover {

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeLlamaLayer(WeightLoader& loader, const ModelParts& parts,
                                                                 int layer) {
  return MakePreNormLayer(
      loader, parts.shape,
      AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNorm),
      "ffn_norm", GateKind::kSilu);
}

}  // namespace layover
