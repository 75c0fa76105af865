// From a GGUF file to weights on a device: the parts that every architecture's loader is made of.
#ifndef LAYOVER_STAGE_WORKER_MODELS_WEIGHTS_H_
#define LAYOVER_STAGE_WORKER_MODELS_WEIGHTS_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "kernels/ops.h"

namespace layover {

// The tensors of one layer (or of the embedding, or the head) by role. Errors name the tensor and the file.
class WeightLoader {
 public:
  WeightLoader(Device& device, Stream& stream, const GgufFile& file, std::vector<BoundTensor> tensors);

  bool Has(std::string_view role) const;
  // A linear layer's matrix, packed.
  absl::StatusOr<std::unique_ptr<PackedWeight>> Matrix(std::string_view role);
  // A float32 vector (norm or bias); null if the file has none and it is optional.
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Vector(std::string_view role);

 private:
  absl::StatusOr<const GgufTensor*> Find(std::string_view role) const;

  Device& device_;
  Stream& stream_;
  const GgufFile& file_;
  std::map<std::string, BoundTensor, std::less<>> tensors_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_WEIGHTS_H_
