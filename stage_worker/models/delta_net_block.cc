#include "stage_worker/models/delta_net_block.h"

#include <vector>

#include "common/status.h"

namespace layover {
namespace {

// In the length of queries and keys; a constant of the training code, not of the file.
constexpr float kLengthEps = 1e-6f;

// qwen3next keeps both logits in one matrix, grouped by key head: for each of them r rows of beta, then r of alpha
// (r value heads share a key head).
absl::Status LoadFusedLogits(WeightLoader& loader, const RecurrentShape& shape, Linear* beta, Linear* alpha) {
  const int r = shape.value_heads / shape.key_heads;
  std::vector<int> beta_rows, alpha_rows;
  for (int head = 0; head < shape.value_heads; ++head) {
    const int group = head / r * 2 * r, in_group = head % r;
    beta_rows.push_back(group + in_group);
    alpha_rows.push_back(group + r + in_group);
  }
  ASSIGN_OR_RETURN(beta->weight, loader.MatrixRows("ssm_ba", beta_rows));
  ASSIGN_OR_RETURN(alpha->weight, loader.MatrixRows("ssm_ba", alpha_rows));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeltaNetBlock> DeltaNetBlock::Load(WeightLoader& loader, const ModelShape& shape,
                                                  const LayerState& state) {
  DeltaNetBlock block;
  block.shape_ = shape.recurrent;
  block.state_ = state;
  ASSIGN_OR_RETURN(block.qkv_, loader.LinearOf("attn_qkv"));
  ASSIGN_OR_RETURN(block.z_, loader.LinearOf("attn_gate"));
  if (loader.Has("ssm_ba")) {
    RETURN_IF_ERROR(LoadFusedLogits(loader, shape.recurrent, &block.beta_, &block.alpha_));
  } else {
    ASSIGN_OR_RETURN(block.beta_, loader.LinearOf("ssm_beta"));
    ASSIGN_OR_RETURN(block.alpha_, loader.LinearOf("ssm_alpha"));
  }
  ASSIGN_OR_RETURN(block.conv_, loader.Vector("ssm_conv1d"));
  ASSIGN_OR_RETURN(block.a_, loader.Vector("ssm_a"));
  ASSIGN_OR_RETURN(block.dt_bias_, loader.Vector("ssm_dt"));
  ASSIGN_OR_RETURN(block.norm_.weight, loader.Vector("ssm_norm"));
  ASSIGN_OR_RETURN(block.out_, loader.LinearOf("ssm_out"));
  // The converter leaves qwen3next's value heads grouped by key head and deals the others' out in turn.
  block.key_head_is_modulo_ = shape.kind != Architecture::kQwen3Next;
  return block;
}

void DeltaNetBlock::Forward(Pass& pass, const float* x, float* out, const float* residual) const {
  const Arena::Scope scope(pass.arena);
  const int channels = shape_.Channels(), value_dim = shape_.ValueDim(), heads = shape_.value_heads;
  float *u = pass.TakeRows(channels), *convolved = pass.TakeRows(channels), *z = pass.TakeRows(value_dim);
  float *alpha = pass.TakeRows(heads), *beta = pass.TakeRows(heads), *y = pass.TakeRows(value_dim);

  pass.Project(x, qkv_.n_in(), {{&qkv_, u}, {&z_, z}, {&alpha_, alpha}, {&beta_, beta}});
  pass.stream.CausalConv({.u = u,
                          .weight = conv_->As<float>(),
                          .state = state_.conv,
                          .out = convolved,
                          .channels = channels,
                          .taps = shape_.conv_taps,
                          .slots = pass.input.states,
                          .slices = pass.input.slices});
  pass.stream.GatedDeltaNet({.qkv = convolved,
                             .alpha = alpha,
                             .beta = beta,
                             .a = a_->As<float>(),
                             .dt_bias = dt_bias_->As<float>(),
                             .state = state_.recurrent,
                             .out = y,
                             .key_heads = shape_.key_heads,
                             .value_heads = heads,
                             .dim = shape_.dim,
                             .key_head_is_modulo = key_head_is_modulo_,
                             .eps = kLengthEps,
                             .slots = pass.input.states,
                             .slices = pass.input.slices});
  pass.Normalize(norm_, y, y, pass.n_rows() * heads);
  pass.stream.Gated({.gate = z,
                     .up = y,
                     .out = y,
                     .n_rows = pass.n_rows(),
                     .dim = value_dim,
                     .gate_stride = value_dim,
                     .up_stride = value_dim,
                     .out_stride = value_dim,
                     .kind = GateKind::kSilu});
  pass.Project(y, value_dim, {{&out_, out, residual}});
}

}  // namespace layover
