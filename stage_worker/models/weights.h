// From a GGUF file to weights on a device: the parts that every architecture's loader is made of.
#ifndef LAYOVER_STAGE_WORKER_MODELS_WEIGHTS_H_
#define LAYOVER_STAGE_WORKER_MODELS_WEIGHTS_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "kernels/ops.h"

namespace layover {

// A linear layer: y = W x (+ bias).
struct Linear {
  std::unique_ptr<PackedWeight> weight;
  std::unique_ptr<DeviceBuffer> bias;  // [n_out], of experts [experts, n_out]; null: none
  int n_in() const { return weight->cols; }
  int n_out() const { return weight->rows; }
};

// The tensors of one layer (or of the embedding, or the head) by role. Errors name the tensor and the file.
class WeightLoader {
 public:
  WeightLoader(Device& device, Stream& stream, const GgufFile& file, std::vector<BoundTensor> tensors);

  bool Has(std::string_view role) const;
  // A linear layer's matrix, packed.
  absl::StatusOr<std::unique_ptr<PackedWeight>> Matrix(std::string_view role);
  // Some rows of a matrix, in the order given.
  absl::StatusOr<std::unique_ptr<PackedWeight>> MatrixRows(std::string_view role, std::span<const int> rows);
  // A matrix and the bias "ROLE_bias", if the file has one.
  absl::StatusOr<Linear> LinearOf(std::string_view role);
  // A float32 vector (norm or bias); null if the file has none and it is optional.
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Vector(std::string_view role);

 private:
  absl::StatusOr<const GgufTensor*> Find(std::string_view role) const;
  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(const GgufTensor& tensor, const WeightSource& source);

  Device& device_;
  Stream& stream_;
  const GgufFile& file_;
  std::map<std::string, BoundTensor, std::less<>> tensors_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_MODELS_WEIGHTS_H_
