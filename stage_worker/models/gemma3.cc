// gemma3: Gemma Team 2025, "Gemma 3". Five layers with a sliding window, then one that sees everything, each kind with
// a rotation of its own; norms before and after attention and feed-forward; GELU; embeddings scaled by sqrt(n_embd).
#include "common/status.h"
#include "stage_worker/models/attention_block.h"
#include "stage_worker/models/feed_forward.h"
#include "stage_worker/models/transformer.h"

namespace layover {
namespace {

struct Gemma3Layer : public TransformerLayer {
  Norm attention_norm, post_attention_norm, feed_forward_norm, post_feed_forward_norm;
  AttentionBlock attention;
  std::unique_ptr<FeedForward> feed_forward;

  void Forward(Pass& pass, float* x) const override {
    const Arena::Scope scope(pass.arena);
    float *normed = pass.TakeRows(attention_norm.dim()), *added = pass.TakeRows(attention_norm.dim());
    pass.Normalize(attention_norm, x, normed, pass.n_rows());
    attention.Forward(pass, normed, added, nullptr);
    pass.Normalize(post_attention_norm, added, added, pass.n_rows());
    pass.Add(added, attention_norm.dim(), x);
    pass.Normalize(feed_forward_norm, x, normed, pass.n_rows());
    feed_forward->Forward(pass, normed, added, nullptr);
    pass.Normalize(post_feed_forward_norm, added, added, pass.n_rows());
    pass.Add(added, attention_norm.dim(), x);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeGemma3Layer(WeightLoader& loader, const ModelParts& parts,
                                                                  int layer) {
  auto made = std::make_unique<Gemma3Layer>();
  ASSIGN_OR_RETURN(made->attention_norm.weight, loader.Vector("attn_norm"));
  ASSIGN_OR_RETURN(made->attention,
                   AttentionBlock::Load(loader, parts.shape, layer, parts.memory.kv->layer(layer), RopePairing::kNeox));
  ASSIGN_OR_RETURN(made->post_attention_norm.weight, loader.Vector("post_attention_norm"));
  ASSIGN_OR_RETURN(made->feed_forward_norm.weight, loader.Vector("ffn_norm"));
  ASSIGN_OR_RETURN(made->feed_forward, LoadFeedForward(loader, parts.shape, GateKind::kGeluTanh));
  ASSIGN_OR_RETURN(made->post_feed_forward_norm.weight, loader.Vector("post_ffw_norm"));
  return made;
}

}  // namespace layover
