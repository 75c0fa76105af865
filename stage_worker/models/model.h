// One architecture's layers of one stage: what the worker loop runs for every step, whatever the model.
//
// A forward pass reads and writes the residual stream x, [n_rows, n_embd] float32, which is also what travels between
// stages (fp32, so that a split between stages rounds nothing). The first stage fills it from token ids; the last one
// turns chosen rows of it into logits.
#ifndef LAYOVER_STAGE_WORKER_MODELS_MODEL_H_
#define LAYOVER_STAGE_WORKER_MODELS_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/topology.h"
#include "kernels/ops.h"
#include "stage_worker/kv_pages.h"
#include "stage_worker/recurrent_state.h"

namespace layover {

// A step's inputs, on the device.
struct StepInput {
  const int32_t* ids = nullptr;        // [n_rows]; first stage
  const int32_t* positions = nullptr;  // [n_rows]
  SliceTable slices;                   // with the page tables of full attention
  SliceTable window_slices;            // the same slices with those of sliding windows; models that have such layers
  StateSlots states;                   // hybrid models
  int n_rows = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  // Enqueues the stage's layers. On the first stage x is written from ids first; else the caller has filled it.
  virtual void Forward(Stream& stream, const StepInput& input) = 0;

  // Enqueues logits of rows of x (last stage): row_indices [n] on the device, n <= logits_rows; result in logits().
  virtual void Logits(Stream& stream, const int32_t* row_indices, int n) = 0;

  virtual float* x() = 0;             // device, [step_rows, n_embd]
  virtual const float* logits() = 0;  // device, [logits_rows, n_vocab]
};

struct ModelPlacement {
  LayerRange layers;
  bool owns_embedding = false;
  bool owns_head = false;
  int step_rows = 0;                          // most rows of a step
  int logits_rows = 0;                        // most rows of one Logits call
  std::atomic<uint64_t>* progress = nullptr;  // raised once a layer, so that a hung worker shows
};

// What a stage's layers keep of the sessions; both outlive the model.
struct StageMemory {
  const KvPages* kv = nullptr;
  const RecurrentState* states = nullptr;
};

// Loads the stage's weights from the file into the device and builds its forward pass. Unimplemented, naming it, for an
// architecture, weight type or operation that the device lacks.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(Device& device, const GgufFile& file, const ModelShape& shape,
                                                 const StageMemory& memory, const ModelPlacement& placement);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_MODEL_H_
