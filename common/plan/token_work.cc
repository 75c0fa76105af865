#include "common/plan/token_work.h"

#include <string_view>

namespace layover {
namespace {

constexpr std::string_view kExpertRole = "_exps";  // ends the role of what all experts have side by side

void AddTensors(const GgufFile& file, std::vector<TensorSpec> specs, const ExpertShape& experts, TokenWork* work) {
  for (const BoundTensor& bound : BindTensors(file, std::move(specs))) {
    const bool shared_out = std::string_view(bound.spec.role).ends_with(kExpertRole) && experts.count > 0;
    const uint64_t used = shared_out ? static_cast<uint64_t>(experts.used) : 1;
    const uint64_t count = shared_out ? static_cast<uint64_t>(experts.count) : 1;
    work->weight_bytes += bound.tensor->bytes / count * used;
    if (bound.tensor->dims.size() < 2 || bound.spec.f32_only) continue;
    uint64_t elements = 1;
    for (const int64_t dim : bound.tensor->dims) elements *= static_cast<uint64_t>(dim);
    work->layer_operations += 2 * (elements / count * used);
  }
}

}  // namespace

TokenWork WorkOfToken(const GgufFile& file, const ModelShape& shape) {
  TokenWork work;
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    AddTensors(file, LayerTensors(shape, layer), shape.experts, &work);
  }
  const uint64_t operations = work.layer_operations;
  AddTensors(file, HeadTensors(shape), shape.experts, &work);
  work.layer_operations = operations;
  return work;
}

}  // namespace layover
