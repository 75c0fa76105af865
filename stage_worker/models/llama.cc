// The llama architecture (Llama, SmolLM2, Mistral and Mixtral as GGUF's "llama"): Touvron et al. 2023, "LLaMA", with
// grouped queries; with experts Jiang et al. 2024, "Mixtral of Experts". GGUF's rows are ordered for rotation of
// neighbouring dimensions.
#include "common/status.h"
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/feed_forward.h"
#include "stage_worker/models/transformer.h"

namespace layover {
namespace {

struct LlamaLayer : public TransformerLayer {
  Norm attention_norm, feed_forward_norm;
  AttentionBlock attention;
  std::unique_ptr<FeedForward> feed_forward;

  void Forward(Pass& pass, float* x) const override {
    const Arena::Scope scope(pass.arena);
    float* normed = pass.TakeRows(attention_norm.dim());
    pass.Normalize(attention_norm, x, normed, pass.n_rows());
    attention.Forward(pass, normed, x, x);
    pass.Normalize(feed_forward_norm, x, normed, pass.n_rows());
    feed_forward->Forward(pass, normed, x, x);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeLlamaLayer(WeightLoader& loader, const ModelParts& parts,
                                                                 int layer) {
  auto made = std::make_unique<LlamaLayer>();
  ASSIGN_OR_RETURN(made->attention_norm.weight, loader.Vector("attn_norm"));
  ASSIGN_OR_RETURN(made->attention,
                   AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNorm));
  ASSIGN_OR_RETURN(made->feed_forward_norm.weight, loader.Vector("ffn_norm"));
  ASSIGN_OR_RETURN(made->feed_forward, LoadFeedForward(loader, parts.shape, GateKind::kSilu));
  return made;
}

}  // namespace layover
