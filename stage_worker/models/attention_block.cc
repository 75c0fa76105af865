#include "stage_worker/models/attention_block.h"

#include <utility>

#include "common/status.h"

namespace layover {

absl::StatusOr<AttentionBlock> AttentionBlock::Load(WeightLoader& loader, const ModelShape& shape, int layer,
                                                    const KvLayer& cache, RopePairing pairing) {
  const LayerShape& layer_shape = shape.layers[static_cast<size_t>(layer)];
  AttentionBlock block;
  ASSIGN_OR_RETURN(block.q_, loader.LinearOf("attn_q"));
  ASSIGN_OR_RETURN(block.k_, loader.LinearOf("attn_k"));
  ASSIGN_OR_RETURN(block.v_, loader.LinearOf("attn_v"));
  ASSIGN_OR_RETURN(block.o_, loader.LinearOf("attn_output"));
  ASSIGN_OR_RETURN(block.q_norm_.weight, loader.Vector("attn_q_norm"));
  ASSIGN_OR_RETURN(block.k_norm_.weight, loader.Vector("attn_k_norm"));
  ASSIGN_OR_RETURN(block.sinks_, loader.Vector("attn_sinks"));
  block.cache_ = cache;
  block.pairing_ = pairing;
  block.heads_ = layer_shape.n_head;
  block.head_dim_ = shape.head_dim_k;
  block.window_ = layer_shape.kind == LayerKind::kSlidingWindow ? shape.window : 0;
  block.scale_ = static_cast<float>(shape.attention_scale);
  return block;
}

void AttentionBlock::Forward(Pass& pass, const float* x, float* out, const float* residual) const {
  const Arena::Scope scope(pass.arena);
  const int q_dim = heads_ * head_dim_, kv_heads = cache_.kv_heads, kv_dim = kv_heads * head_dim_;
  const SliceTable& slices = window_ > 0 ? pass.input.window_slices : pass.input.slices;
  float* projected = pass.TakeRows(q_.n_out());
  float *k = pass.TakeRows(kv_dim), *v = pass.TakeRows(kv_dim), *attended = pass.TakeRows(q_dim);
  const float* gate = nullptr;

  pass.Project(x, q_.n_in(), {{&q_, projected}, {&k_, k}, {&v_, v}});
  float* q = Queries(pass, projected, &gate);
  if (k_norm_.weight != nullptr) pass.Normalize(k_norm_, k, k, pass.n_rows() * kv_heads);
  Rotate(pass, q, heads_);
  Rotate(pass, k, kv_heads);
  pass.stream.StoreKv({.cache = cache_, .k = k, .v = v, .stride = kv_dim, .slices = slices});
  pass.stream.Attention({.cache = cache_,
                         .q = q,
                         .out = attended,
                         .q_stride = q_dim,
                         .out_stride = q_dim,
                         .heads = heads_,
                         .scale = scale_,
                         .window = window_,
                         .sinks = sinks_ == nullptr ? nullptr : sinks_->As<float>(),
                         .slices = slices});
  if (gate != nullptr) {
    pass.stream.Gated({.gate = gate,
                       .up = attended,
                       .out = attended,
                       .n_rows = pass.n_rows() * heads_,
                       .dim = head_dim_,
                       .gate_stride = 2 * head_dim_,
                       .up_stride = head_dim_,
                       .out_stride = head_dim_,
                       .kind = GateKind::kSigmoid});
  }
  pass.Project(attended, q_dim, {{&o_, out, residual}});
}

float* AttentionBlock::Queries(Pass& pass, float* projected, const float** gate) const {
  const int rows = pass.n_rows() * heads_;
  const bool gated = q_.n_out() == 2 * heads_ * head_dim_;
  if (q_norm_.weight == nullptr) return projected;
  if (!gated) {
    pass.Normalize(q_norm_, projected, projected, rows);
    return projected;
  }
  // [n_rows, heads, 2, head_dim]: the norm also brings the queries together.
  float* q = pass.TakeRows(heads_ * head_dim_);
  pass.stream.RmsNorm({.x = projected,
                       .weight = q_norm_.values(),
                       .y = q,
                       .n_rows = rows,
                       .dim = head_dim_,
                       .x_stride = 2 * head_dim_,
                       .y_stride = head_dim_,
                       .eps = pass.eps});
  *gate = projected + head_dim_;
  return q;
}

void AttentionBlock::Rotate(Pass& pass, float* rows, int heads) const {
  const Rotation& rotation = window_ > 0 ? pass.window_rotation : pass.rotation;
  pass.stream.Rope({.x = rows,
                    .angles = rotation.angles,
                    .n_rows = pass.n_rows(),
                    .heads = heads,
                    .head_dim = head_dim_,
                    .x_stride = heads * head_dim_,
                    .n_pairs = rotation.n_pairs,
                    .pairing = pairing_});
}

}  // namespace layover
