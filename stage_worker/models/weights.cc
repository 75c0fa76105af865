#include "stage_worker/models/weights.h"

#include <cstring>

#include "common/gguf/weight_types.h"
#include "common/status.h"

namespace layover {

WeightLoader::WeightLoader(Device& device, Stream& stream, const GgufFile& file, std::vector<BoundTensor> tensors)
    : device_(device), stream_(stream), file_(file) {
  for (BoundTensor& bound : tensors) tensors_[bound.spec.role] = bound;
}

bool WeightLoader::Has(std::string_view role) const {
  return tensors_.find(role) != tensors_.end();
}

absl::StatusOr<const GgufTensor*> WeightLoader::Find(std::string_view role) const {
  const auto found = tensors_.find(role);
  if (found == tensors_.end()) return DataLoss("{}: there is no tensor for {}", file_.path(), role);
  return found->second.tensor;
}

absl::StatusOr<std::unique_ptr<PackedWeight>> WeightLoader::Pack(const GgufTensor& tensor, const WeightSource& source) {
  if (!device_.SupportsWeight(source.type)) {
    return Unimplemented("{}: {} is {}, which {} does not compute with", file_.path(), tensor.name,
                         WeightTypeName(source.type), device_.Name());
  }
  auto packed = device_.PackWeight(source);
  if (!packed.ok()) {
    return absl::Status(packed.status().code(),
                        fmt::format("{}: {}: {}", file_.path(), tensor.name, ToStd(packed.status().message())));
  }
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedWeight>> WeightLoader::Matrix(std::string_view role) {
  ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(role));
  return Pack(*tensor, {.type = static_cast<WeightType>(tensor->type),
                        .experts = static_cast<int>(tensor->dims[2]),
                        .rows = static_cast<int>(tensor->dims[1]),
                        .cols = static_cast<int>(tensor->dims[0]),
                        .data = tensor->data,
                        .bytes = tensor->bytes});
}

absl::StatusOr<std::unique_ptr<PackedWeight>> WeightLoader::MatrixRows(std::string_view role,
                                                                       std::span<const int> rows) {
  ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(role));
  const size_t row_bytes = tensor->bytes / static_cast<size_t>(tensor->dims[1]);
  std::string chosen;
  for (const int row : rows) {
    chosen.append(reinterpret_cast<const char*>(tensor->data) + static_cast<size_t>(row) * row_bytes, row_bytes);
  }
  return Pack(*tensor, {.type = static_cast<WeightType>(tensor->type),
                        .rows = static_cast<int>(rows.size()),
                        .cols = static_cast<int>(tensor->dims[0]),
                        .data = chosen.data(),
                        .bytes = chosen.size()});
}

absl::StatusOr<Linear> WeightLoader::LinearOf(std::string_view role) {
  Linear linear;
  ASSIGN_OR_RETURN(linear.weight, Matrix(role));
  ASSIGN_OR_RETURN(linear.bias, Vector(fmt::format("{}_bias", role)));
  return linear;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> WeightLoader::Vector(std::string_view role) {
  if (!Has(role)) return std::unique_ptr<DeviceBuffer>();
  ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(role));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, device_.Allocate(tensor->bytes));
  stream_.CopyToDevice(buffer->data(), tensor->data, tensor->bytes);
  return buffer;
}

}  // namespace layover
