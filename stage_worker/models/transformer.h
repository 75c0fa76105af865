// What all architectures share: embedding, a stack of layers, the last norm and the head, the angles of the rotation.
// An architecture adds what one layer is.
#ifndef LAYOVER_STAGE_WORKER_MODELS_TRANSFORMER_H_
#define LAYOVER_STAGE_WORKER_MODELS_TRANSFORMER_H_

#include <memory>
#include <utility>

#include "stage_worker/models/pass.h"
#include "stage_worker/models/weights.h"

namespace layover {

// What the layers are built from.
struct ModelParts {
  Device& device;
  const GgufFile& file;
  const ModelShape& shape;
  StageMemory memory;
  ModelPlacement placement;
};

// One layer of an architecture: it changes the residual stream x, [n_rows, n_embd], in place.
class TransformerLayer {
 public:
  virtual ~TransformerLayer() = default;
  virtual void Forward(Pass& pass, float* x) const = 0;
};

// Makes layer `layer` of the model from its tensors.
using LayerMaker = absl::StatusOr<std::unique_ptr<TransformerLayer>> (*)(WeightLoader& loader, const ModelParts& parts,
                                                                         int layer);

absl::StatusOr<std::unique_ptr<Model>> MakeTransformer(const ModelParts& parts, LayerMaker make_layer);

// The architectures, one file each.
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeLlamaLayer(WeightLoader&, const ModelParts&, int layer);
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeQwenLayer(WeightLoader&, const ModelParts&, int layer);
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeGemma3Layer(WeightLoader&, const ModelParts&, int layer);
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeQwenHybridLayer(WeightLoader&, const ModelParts&, int layer);
absl::StatusOr<std::unique_ptr<TransformerLayer>> MakeGptOssLayer(WeightLoader&, const ModelParts&, int layer);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_TRANSFORMER_H_
