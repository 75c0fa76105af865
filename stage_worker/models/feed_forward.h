// The second half of a layer: one gated product for every token, or a mixture of experts of which each token takes a
// few (and, in some models, one more that all tokens share).
#ifndef LAYOVER_STAGE_WORKER_MODELS_FEED_FORWARD_H_
#define LAYOVER_STAGE_WORKER_MODELS_FEED_FORWARD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "stage_worker/models/pass.h"
#include "stage_worker/models/weights.h"

namespace layover {

// down (act(gate x) * up x)
struct GatedLinear {
  Linear gate, up, down;
  GateKind kind = GateKind::kSilu;
  // out = the above (+ residual), [n_rows, n_embd]; out may be the residual.
  void Forward(Pass& pass, const float* x, float* out, const float* residual) const;
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // out = feed_forward(x) (+ residual); x is normed, [n_rows, n_embd]. out may be the residual.
  virtual void Forward(Pass& pass, const float* x, float* out, const float* residual) const = 0;
};

// The layer's experts if the model has any, else its dense product; `kind` is the activation of either.
absl::StatusOr<std::unique_ptr<FeedForward>> LoadFeedForward(WeightLoader& loader, const ModelShape& shape,
                                                             GateKind kind);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_FEED_FORWARD_H_
