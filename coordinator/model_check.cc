#include "coordinator/model_check.h"

#include <utility>

#include "common/gguf/model_identity.h"
#include "common/status.h"

namespace layover {
namespace {

std::string PartName(int layer) {
  if (layer == -1) return "the embedding";
  if (layer == -2) return "the head";
  return fmt::format("layer {}", layer);
}

}  // namespace

ModelCheck::ModelCheck(const std::string& model, std::vector<StagePlan> stages)
    : stages_(std::move(stages)), thread_([this, model] {
        Known known = Read(model);
        std::lock_guard<std::mutex> lock(mutex_);
        known_ = std::move(known);
      }) {}

ModelCheck::~ModelCheck() {
  stop_ = true;
  thread_.join();
}

ModelCheck::Known ModelCheck::Read(const std::string& model) const {
  Known known;
  const auto file = GgufFile::Open(model);
  const auto shape = file.ok() ? ReadModelShape(**file) : file.status();
  known.status = shape.status();
  if (!shape.ok()) return known;
  known.arch = ArchDigest(*shape);
  known.rope = RopeDigest(**file, *shape);
  for (const StagePlan& stage : stages_) {
    for (int layer = stage.layers.begin; layer < stage.layers.end && !stop_; ++layer) {
      known.weights[layer] = LayerWeightDigest(**file, *shape, layer);
    }
    if (stage.owns_embedding && !stop_) known.weights[-1] = EmbeddingDigest(**file, *shape);
    if (stage.owns_head && !stop_) known.weights[-2] = HeadDigest(**file, *shape);
  }
  return known;
}

std::optional<absl::Status> ModelCheck::Judge(const wire::Ready& ready) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!known_.has_value()) return std::nullopt;
  if (!known_->status.ok()) return known_->status;
  const auto other = [](const std::string& what) {
    return FailedPrecondition(
        "the model there is not the topology's: {} differs; layover-stage --model names the file there", what);
  };
  if (ready.arch != known_->arch) return other("its shape");
  if (ready.rope != known_->rope) return other("its rotation");
  for (const auto& [layer, digest] : ready.layer_digests) {
    const auto own = known_->weights.find(layer);
    if (own == known_->weights.end() || own->second != digest) return other(PartName(layer));
  }
  return absl::OkStatus();
}

}  // namespace layover
