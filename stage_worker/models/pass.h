// One step's way through a model: the stream, the step's inputs and scratch memory, with the few operations that every
// part of every architecture is written in. Rows are the step's tokens.
#ifndef LAYOVER_STAGE_WORKER_MODELS_PASS_H_
#define LAYOVER_STAGE_WORKER_MODELS_PASS_H_

#include <initializer_list>
#include <memory>

#include "common/gguf/model_shape.h"
#include "kernels/ops.h"
#include "stage_worker/models/arena.h"
#include "stage_worker/models/model.h"
#include "stage_worker/models/weights.h"

namespace layover {

// A norm's weight.
struct Norm {
  std::unique_ptr<DeviceBuffer> weight;  // [dim]; null: the model has no such norm
  int dim() const { return static_cast<int>(weight->bytes() / sizeof(float)); }
  const float* values() const { return weight->As<float>(); }
};

// One product of Pass::Project. out may be the residual.
struct Product {
  const Linear* linear = nullptr;
  float* out = nullptr;             // [n_rows, n_out]
  const float* residual = nullptr;  // [n_rows, n_out] or null
};

// cos and sin of the step's positions, for the layers of one kind.
struct Rotation {
  const float* angles = nullptr;  // [n_rows, n_pairs, 2]
  int n_pairs = 0;
};

class Pass {
 public:
  Pass(Device& device, Stream& out, const StepInput& step, Arena& scratch, float norm_eps)
      : stream(out), input(step), arena(scratch), eps(norm_eps), device_(device) {}

  Stream& stream;
  const StepInput& input;
  Arena& arena;
  const float eps;
  const float* ones = nullptr;  // [n_rows]
  Rotation rotation;            // of full-attention layers
  Rotation window_rotation;     // of sliding-window layers

  int n_rows() const { return input.n_rows; }
  float* TakeRows(int dim) { return TakeFloats(static_cast<size_t>(n_rows()) * static_cast<size_t>(dim)); }
  float* TakeFloats(size_t count) { return static_cast<float*>(arena.Take(count * sizeof(float))); }

  // y = norm(x), [rows, dim]; y may be x.
  void Normalize(const Norm& norm, const float* x, float* y, int rows);
  // rows as the weight wants them; for as long as the enclosing scope lasts.
  const void* Prepare(const float* rows, int n, int dim, ActivationFormat format);
  // Several products of the same rows [n_rows, dim].
  void Project(const float* rows, int dim, std::initializer_list<Product> products);
  // x += added, [n_rows, dim].
  void Add(const float* added, int dim, float* x);

 private:
  Device& device_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_PASS_H_
