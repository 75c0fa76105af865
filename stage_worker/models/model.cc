#include "stage_worker/models/model.h"

#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<Model>> LoadModel(Device& device, const GgufFile& file, const ModelShape& shape,
                                                 const KvPages& pages, const ModelPlacement& placement) {
  switch (shape.kind) {
    case Architecture::kLlama: return LoadLlama(device, file, shape, pages, placement);
    default: return Unimplemented("{}: the architecture {} is not served yet", file.path(), shape.architecture);
  }
}

}  // namespace layover
