#include "stage_worker/models/feed_forward.h"

#include <utility>

#include "common/status.h"

namespace layover {
namespace {

class Dense : public FeedForward {
 public:
  explicit Dense(GatedLinear product) : product_(std::move(product)) {}
  void Forward(Pass& pass, const float* x, float* out, const float* residual) const override {
    product_.Forward(pass, x, out, residual);
  }

 private:
  const GatedLinear product_;
};

class Experts : public FeedForward {
 public:
  static absl::StatusOr<std::unique_ptr<Experts>> Load(WeightLoader& loader, const ModelShape& shape, GateKind kind);
  void Forward(Pass& pass, const float* x, float* out, const float* residual) const override;

 private:
  // Which experts a token takes and how much each counts, [n_rows, k].
  struct Route {
    int32_t* chosen;
    float* weights;
  };
  Route Choose(Pass& pass, const float* x) const;
  // out = expert(x) for the chosen ones, [n_rows, k, n_out].
  void Multiply(Pass& pass, const Linear& experts, const void* x, const Route& route, bool x_per_choice,
                float* out) const;
  void AddShared(Pass& pass, const float* x, float* out) const;

  ExpertShape shape_;
  Linear router_;
  Linear gate_, up_, down_;  // of all experts
  GateKind kind_ = GateKind::kSilu;
  bool softmax_of_chosen_ = false;
  Linear shared_gate_;  // [1, n_embd]: how much of the shared expert a token takes
  GatedLinear shared_;
};

absl::StatusOr<std::unique_ptr<Experts>> Experts::Load(WeightLoader& loader, const ModelShape& shape, GateKind kind) {
  auto experts = std::make_unique<Experts>();
  experts->shape_ = shape.experts;
  experts->kind_ = kind;
  experts->softmax_of_chosen_ = shape.kind == Architecture::kGptOss;
  ASSIGN_OR_RETURN(experts->router_, loader.LinearOf("ffn_gate_inp"));
  ASSIGN_OR_RETURN(experts->gate_, loader.LinearOf("ffn_gate_exps"));
  ASSIGN_OR_RETURN(experts->up_, loader.LinearOf("ffn_up_exps"));
  ASSIGN_OR_RETURN(experts->down_, loader.LinearOf("ffn_down_exps"));
  if (shape.experts.n_ff_shared == 0) return experts;
  ASSIGN_OR_RETURN(experts->shared_gate_, loader.LinearOf("ffn_gate_inp_shexp"));
  ASSIGN_OR_RETURN(experts->shared_.gate, loader.LinearOf("ffn_gate_shexp"));
  ASSIGN_OR_RETURN(experts->shared_.up, loader.LinearOf("ffn_up_shexp"));
  ASSIGN_OR_RETURN(experts->shared_.down, loader.LinearOf("ffn_down_shexp"));
  experts->shared_.kind = kind;
  return experts;
}

void Experts::Forward(Pass& pass, const float* x, float* out, const float* residual) const {
  LAYOVER_CHECK(residual != nullptr);  // the weighted sum begins with it
  const Arena::Scope scope(pass.arena);
  const int k = shape_.used, choices = pass.n_rows() * k;
  const Route route = Choose(pass, x);
  float *gate = pass.TakeRows(k * shape_.n_ff), *up = pass.TakeRows(k * shape_.n_ff);
  float* parts = pass.TakeRows(k * down_.n_out());

  const void* prepared = pass.Prepare(x, pass.n_rows(), gate_.n_in(), gate_.weight->activation);
  Multiply(pass, gate_, prepared, route, false, gate);
  if (up_.weight->activation != gate_.weight->activation) {
    prepared = pass.Prepare(x, pass.n_rows(), up_.n_in(), up_.weight->activation);
  }
  Multiply(pass, up_, prepared, route, false, up);
  pass.stream.Gated({.gate = gate,
                     .up = up,
                     .out = gate,
                     .n_rows = choices,
                     .dim = shape_.n_ff,
                     .gate_stride = shape_.n_ff,
                     .up_stride = shape_.n_ff,
                     .out_stride = shape_.n_ff,
                     .kind = kind_});
  Multiply(pass, down_, pass.Prepare(gate, choices, shape_.n_ff, down_.weight->activation), route, true, parts);
  // A shared expert is added after the others: its product may still read x, which is never out.
  pass.stream.MoeCombine({.parts = parts,
                          .weights = route.weights,
                          .residual = residual,
                          .out = out,
                          .n_rows = pass.n_rows(),
                          .k = k,
                          .dim = down_.n_out()});
  if (shape_.n_ff_shared > 0) AddShared(pass, x, out);
}

Experts::Route Experts::Choose(Pass& pass, const float* x) const {
  const Route route{static_cast<int32_t*>(static_cast<void*>(pass.TakeRows(shape_.used))), pass.TakeRows(shape_.used)};
  float* logits = pass.TakeRows(shape_.count);
  pass.Project(x, router_.n_in(), {{&router_, logits}});
  pass.stream.MoeRoute({.logits = logits,
                        .chosen = route.chosen,
                        .weights = route.weights,
                        .n_rows = pass.n_rows(),
                        .experts = shape_.count,
                        .k = shape_.used,
                        .softmax_after_top_k = softmax_of_chosen_,
                        .weight_scale = static_cast<float>(shape_.weights_scale)});
  return route;
}

void Experts::Multiply(Pass& pass, const Linear& experts, const void* x, const Route& route, bool x_per_choice,
                       float* out) const {
  pass.stream.MoeMatMul({.weight = experts.weight.get(),
                         .x = x,
                         .chosen = route.chosen,
                         .out = out,
                         .n_rows = pass.n_rows(),
                         .k = shape_.used,
                         .x_per_choice = x_per_choice,
                         .bias = experts.bias == nullptr ? nullptr : experts.bias->As<float>()});
}

// out += sigmoid(w x) * shared(x)
void Experts::AddShared(Pass& pass, const float* x, float* out) const {
  const Arena::Scope scope(pass.arena);
  float *share = pass.TakeRows(1), *part = pass.TakeRows(shared_.down.n_out());
  pass.Project(x, shared_gate_.n_in(), {{&shared_gate_, share}});
  pass.stream.Gated({.gate = share,
                     .out = share,
                     .n_rows = pass.n_rows(),
                     .dim = 1,
                     .gate_stride = 1,
                     .out_stride = 1,
                     .kind = GateKind::kSigmoid});
  shared_.Forward(pass, x, part, nullptr);
  pass.stream.MoeCombine({.parts = part,
                          .weights = share,
                          .residual = out,
                          .out = out,
                          .n_rows = pass.n_rows(),
                          .k = 1,
                          .dim = shared_.down.n_out()});
}

}  // namespace

void GatedLinear::Forward(Pass& pass, const float* x, float* out, const float* residual) const {
  const Arena::Scope scope(pass.arena);
  const int width = gate.n_out();
  float *gates = pass.TakeRows(width), *ups = pass.TakeRows(width);
  pass.Project(x, gate.n_in(), {{&gate, gates}, {&up, ups}});
  pass.stream.Gated({.gate = gates,
                     .up = ups,
                     .out = gates,
                     .n_rows = pass.n_rows(),
                     .dim = width,
                     .gate_stride = width,
                     .up_stride = width,
                     .out_stride = width,
                     .kind = kind});
  pass.Project(gates, width, {{&down, out, residual}});
}

absl::StatusOr<std::unique_ptr<FeedForward>> LoadFeedForward(WeightLoader& loader, const ModelShape& shape,
                                                             GateKind kind) {
  if (shape.experts.count > 0) return Experts::Load(loader, shape, kind);
  GatedLinear product;
  ASSIGN_OR_RETURN(product.gate, loader.LinearOf("ffn_gate"));
  ASSIGN_OR_RETURN(product.up, loader.LinearOf("ffn_up"));
  ASSIGN_OR_RETURN(product.down, loader.LinearOf("ffn_down"));
  product.kind = kind;
  return std::make_unique<Dense>(std::move(product));
}

}  // namespace layover
