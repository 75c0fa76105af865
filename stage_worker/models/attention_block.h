// Attention of one layer, in every variant that the architectures use: grouped queries, biases, norms of each head's
// query and key, rotation of all or the first dims, a sliding window, sinks, a gate on the output.
#ifndef LAYOVER_STAGE_WORKER_MODELS_ATTENTION_BLOCK_H_
#define LAYOVER_STAGE_WORKER_MODELS_ATTENTION_BLOCK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "stage_worker/models/pass.h"
#include "stage_worker/models/weights.h"

namespace layover {

class AttentionBlock {
 public:
  // Norms, biases and sinks are used where the layer has them; a query matrix of twice the size holds a gate beside
  // each head's query. `cache`: the layer's pages.
  static absl::StatusOr<AttentionBlock> Load(WeightLoader& loader, const ModelShape& shape, int layer,
                                             const KvLayer& cache, RopePairing pairing);

  // out = W_o attention(x) (+ residual); x is normed, [n_rows, n_embd]. out may be the residual.
  void Forward(Pass& pass, const float* x, float* out, const float* residual) const;

 private:
  // The queries, [n_rows, heads, head_dim]; *gate is what stands beside them, stride 2 * head_dim, if the layer has
  // one.
  float* Queries(Pass& pass, float* projected, const float** gate) const;
  void Rotate(Pass& pass, float* rows, int heads) const;

  Linear q_, k_, v_, o_;
  Norm q_norm_, k_norm_;                 // over head_dim
  std::unique_ptr<DeviceBuffer> sinks_;  // [heads]
  KvLayer cache_;
  RopePairing pairing_ = RopePairing::kNorm;
  int heads_ = 0;
  int head_dim_ = 0;
  int window_ = 0;
  float scale_ = 0;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_ATTENTION_BLOCK_H_
