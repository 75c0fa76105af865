#include "stage_worker/models/transformer.h"

#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "stage_worker/models/null_stream.h"

namespace layover {
namespace {

// The frequencies of the layers of one kind.
struct RotationTable {
  std::unique_ptr<DeviceBuffer> frequencies;  // [n_pairs] float64; null: the stage has no such layer
  int n_pairs = 0;
  float magnitude = 1.0f;
};

class Transformer : public Model {
 public:
  Transformer(Device& device, const ModelShape& shape, const ModelPlacement& placement)
      : device_(device), shape_(shape), placement_(placement) {}

  absl::Status Load(const ModelParts& parts, LayerMaker make_layer);

  void Forward(Stream& stream, const StepInput& input) override;
  void Logits(Stream& stream, const int32_t* row_indices, int n) override;
  float* x() override { return x_->As<float>(); }
  const float* logits() override { return logits_->As<float>(); }

 private:
  absl::Status LoadEnds(Stream& stream, const GgufFile& file);
  absl::Status LoadRotation(Stream& stream, const GgufFile& file, LayerKind kind, RotationTable* table);
  absl::Status AllocateScratch();
  Rotation AnglesOf(Pass& pass, const RotationTable& table) const;

  float eps() const { return static_cast<float>(shape_.rms_eps); }

  Device& device_;
  const ModelShape shape_;
  const ModelPlacement placement_;
  std::unique_ptr<PackedWeight> own_embedding_;
  const PackedWeight* embedding_ = nullptr;  // its own, or the head's if they are tied and both are here
  Norm output_norm_;
  Linear head_;
  RotationTable rotation_, window_rotation_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::unique_ptr<DeviceBuffer> x_;       // [step_rows, n_embd]
  std::unique_ptr<DeviceBuffer> logits_;  // [logits_rows, n_vocab]
  std::unique_ptr<DeviceBuffer> ones_;    // [step_rows]
  Arena arena_;
};

absl::Status Transformer::Load(const ModelParts& parts, LayerMaker make_layer) {
  const std::unique_ptr<Stream> stream = device_.NewComputeStream();
  RETURN_IF_ERROR(LoadEnds(*stream, parts.file));
  for (int layer = placement_.layers.begin; layer < placement_.layers.end; ++layer) {
    WeightLoader loader(device_, *stream, parts.file, BindTensors(parts.file, LayerTensors(shape_, layer)));
    ASSIGN_OR_RETURN(std::unique_ptr<TransformerLayer> made, make_layer(loader, parts, layer));
    layers_.push_back(std::move(made));
  }
  RETURN_IF_ERROR(LoadRotation(*stream, parts.file, LayerKind::kFullAttention, &rotation_));
  RETURN_IF_ERROR(LoadRotation(*stream, parts.file, LayerKind::kSlidingWindow, &window_rotation_));
  RETURN_IF_ERROR(AllocateScratch());
  const std::vector<float> ones(static_cast<size_t>(placement_.step_rows), 1.0f);
  stream->CopyToDevice(ones_->data(), ones.data(), ones.size() * sizeof(float));
  return stream->Synchronize();
}

absl::Status Transformer::LoadEnds(Stream& stream, const GgufFile& file) {
  if (placement_.owns_head) {
    WeightLoader loader(device_, stream, file, BindTensors(file, HeadTensors(shape_)));
    ASSIGN_OR_RETURN(output_norm_.weight, loader.Vector("output_norm"));
    ASSIGN_OR_RETURN(head_, loader.LinearOf("output"));
  }
  if (!placement_.owns_embedding) return absl::OkStatus();
  if (placement_.owns_head && shape_.tied_output) {
    embedding_ = head_.weight.get();
    return absl::OkStatus();
  }
  WeightLoader loader(device_, stream, file, BindTensors(file, EmbeddingTensors(shape_)));
  ASSIGN_OR_RETURN(own_embedding_, loader.Matrix("token_embd"));
  embedding_ = own_embedding_.get();
  return absl::OkStatus();
}

absl::Status Transformer::LoadRotation(Stream& stream, const GgufFile& file, LayerKind kind, RotationTable* table) {
  bool used = false;
  for (int layer = placement_.layers.begin; layer < placement_.layers.end; ++layer) {
    used = used || shape_.layers[static_cast<size_t>(layer)].kind == kind;
  }
  if (!used) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<double> frequencies, RopeFrequencies(shape_, file, kind));
  const size_t bytes = frequencies.size() * sizeof(double);
  ASSIGN_OR_RETURN(table->frequencies, device_.Allocate(bytes));
  stream.CopyToDevice(table->frequencies->data(), frequencies.data(), bytes);
  RETURN_IF_ERROR(stream.Synchronize());  // the host's copy ends here
  table->n_pairs = static_cast<int>(frequencies.size());
  table->magnitude = static_cast<float>(RopeMagnitude(shape_, kind));
  return absl::OkStatus();
}

absl::Status Transformer::AllocateScratch() {
  const auto floats = [&](int rows, int dim) {
    return device_.Allocate(static_cast<size_t>(rows) * static_cast<size_t>(dim) * sizeof(float));
  };
  ASSIGN_OR_RETURN(x_, floats(placement_.step_rows, shape_.n_embd));
  ASSIGN_OR_RETURN(ones_, floats(placement_.step_rows, 1));
  if (placement_.owns_head) {
    ASSIGN_OR_RETURN(logits_, floats(placement_.logits_rows, shape_.n_vocab));
  }
  // The largest step there is, and the largest lot of logits, without computing them.
  NullStream measure;
  Forward(measure, {.n_rows = placement_.step_rows});
  if (placement_.owns_head) Logits(measure, nullptr, placement_.logits_rows);
  return arena_.Allocate(device_);
}

void Transformer::Forward(Stream& stream, const StepInput& input) {
  if (placement_.owns_embedding) {
    stream.EmbedRows({.table = embedding_,
                      .ids = input.ids,
                      .out = x(),
                      .n_rows = input.n_rows,
                      .scale = static_cast<float>(shape_.embedding_scale)});
  }
  const Arena::Scope scope(arena_);
  Pass pass(device_, stream, input, arena_, eps());
  pass.ones = ones_->As<float>();
  pass.rotation = AnglesOf(pass, rotation_);
  pass.window_rotation = AnglesOf(pass, window_rotation_);
  for (const auto& layer : layers_) {
    layer->Forward(pass, x());
    if (placement_.progress != nullptr) placement_.progress->fetch_add(1, std::memory_order_relaxed);
  }
}

Rotation Transformer::AnglesOf(Pass& pass, const RotationTable& table) const {
  if (table.frequencies == nullptr) return {};
  float* angles = pass.TakeRows(2 * table.n_pairs);
  pass.stream.RopeAngles({.positions = pass.input.positions,
                          .frequencies = table.frequencies->As<double>(),
                          .angles = angles,
                          .n_rows = pass.n_rows(),
                          .n_pairs = table.n_pairs,
                          .magnitude = table.magnitude});
  return {angles, table.n_pairs};
}

void Transformer::Logits(Stream& stream, const int32_t* row_indices, int n) {
  const StepInput input{.n_rows = n};
  const Arena::Scope scope(arena_);
  Pass pass(device_, stream, input, arena_, eps());
  float* rows = pass.TakeRows(shape_.n_embd);
  stream.GatherRows({.x = x(), .rows = row_indices, .out = rows, .n_rows = n, .dim = shape_.n_embd});
  pass.Normalize(output_norm_, rows, rows, n);
  pass.Project(rows, shape_.n_embd, {{&head_, logits_->As<float>()}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeTransformer(const ModelParts& parts, LayerMaker make_layer) {
  auto model = std::make_unique<Transformer>(parts.device, parts.shape, parts.placement);
  RETURN_IF_ERROR(model->Load(parts, make_layer));
  return model;
}

}  // namespace layover
