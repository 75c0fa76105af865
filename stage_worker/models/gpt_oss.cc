// gpt-oss: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card". Layers with a sliding window and layers that see
// everything take turns; every head has a sink, a logit that only takes part in the softmax's sum; biases everywhere;
// experts with a clamped SwiGLU, chosen by their logits, weighed by the softmax of the chosen ones.
#include "common/status.h"
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/feed_forward.h"
#include "stage_worker/models/transformer.h"

namespace layover {
namespace {

struct GptOssLayer : public TransformerLayer {
  Norm attention_norm, feed_forward_norm;
  AttentionBlock attention;
  std::unique_ptr<FeedForward> experts;

  void Forward(Pass& pass, float* x) const override {
    const Arena::Scope scope(pass.arena);
    float* normed = pass.TakeRows(attention_norm.dim());
    pass.Normalize(attention_norm, x, normed, pass.n_rows());
    attention.Forward(pass, normed, x, x);
    pass.Normalize(feed_forward_norm, x, normed, pass.n_rows());
    experts->Forward(pass, normed, x, x);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeGptOssLayer(WeightLoader& loader, const ModelParts& parts,
                                                                  int layer) {
  auto made = std::make_unique<GptOssLayer>();
  ASSIGN_OR_RETURN(made->attention_norm.weight, loader.Vector("attn_norm"));
  ASSIGN_OR_RETURN(made->attention,
                   AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox));
  // Despite its name it stands before the experts and is not applied to what attention gives.
  ASSIGN_OR_RETURN(made->feed_forward_norm.weight, loader.Vector("post_attention_norm"));
  ASSIGN_OR_RETURN(made->experts, LoadFeedForward(loader, parts.shape, GateKind::kClampedSwiglu));
  return made;
}

}  // namespace layover
