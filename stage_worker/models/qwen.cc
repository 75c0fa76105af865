// qwen2, qwen3 and qwen3moe: Yang et al. 2024, "Qwen2" (biases on query, key and value), and 2025, "Qwen3" (norms of
// each head's query and key instead; experts in qwen3moe). Rotation pairs the halves of a head.
#include "common/status.h"
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/feed_forward.h"
#include "stage_worker/models/transformer.h"

namespace layover {
namespace {

struct QwenLayer : public TransformerLayer {
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

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeQwenLayer(WeightLoader& loader, const ModelParts& parts,
                                                                int layer) {
  auto made = std::make_unique<QwenLayer>();
  ASSIGN_OR_RETURN(made->attention_norm.weight, loader.Vector("attn_norm"));
  ASSIGN_OR_RETURN(made->attention,
                   AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox));
  ASSIGN_OR_RETURN(made->feed_forward_norm.weight, loader.Vector("ffn_norm"));
  ASSIGN_OR_RETURN(made->feed_forward, LoadFeedForward(loader, parts.shape, GateKind::kSilu));
  return made;
}

}  // namespace layover
