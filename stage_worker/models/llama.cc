// The llama architecture (Llama, SmolLM2, Mistral as GGUF's "llama"): Touvron et al. 2023, "LLaMA", with grouped-query
// attention; tensor names and the NORM pairing of rotary dimensions as GGUF files have them.
#include <utility>

#include "common/status.h"
#include "stage_worker/models/model.h"
#include "stage_worker/models/weights.h"

namespace layover {
namespace {

struct Layer {
  std::unique_ptr<DeviceBuffer> attn_norm, ffn_norm;                   // [n_embd]
  std::unique_ptr<PackedWeight> q, k, v, o;                            // [heads * head_dim, n_embd], ...
  std::unique_ptr<DeviceBuffer> q_bias, k_bias, v_bias, o_bias;        // optional
  std::unique_ptr<PackedWeight> gate, up, down;                        // [n_ff, n_embd], [n_ff, n_embd], [n_embd, n_ff]
  std::unique_ptr<DeviceBuffer> gate_bias, up_bias, down_bias;         // optional
};

// Scratch of one step, allocated once so that addresses never change.
struct Scratch {
  std::unique_ptr<DeviceBuffer> x, normed, prepared, q, k, v, attended, gate, up, angles, logits;
};

float* Floats(const std::unique_ptr<DeviceBuffer>& buffer) { return buffer == nullptr ? nullptr : buffer->As<float>(); }

class Llama : public Model {
 public:
  Llama(Device& device, const ModelShape& shape, const KvPages& pages, const ModelPlacement& placement)
      : device_(device), shape_(shape), pages_(pages), placement_(placement) {}

  absl::Status Load(const GgufFile& file);

  void Forward(Stream& stream, const StepInput& input) override;
  void Logits(Stream& stream, const int32_t* row_indices, int n) override;
  float* x() override { return Floats(scratch_.x); }
  const float* logits() override { return Floats(scratch_.logits); }

 private:
  absl::Status LoadLayer(Stream& stream, const GgufFile& file, int layer);
  absl::Status AllocateScratch();

  void Attention(Stream& stream, const StepInput& input, int index);
  void FeedForward(Stream& stream, const StepInput& input, int index);
  // Prepares rows for a weight and multiplies: out = rows * weight^T (+ bias) (+ residual).
  const void* Prepare(Stream& stream, const float* rows, int n_rows, int dim, const PackedWeight& weight);
  void Multiply(Stream& stream, const void* prepared, int n_rows, const PackedWeight& weight, float* out,
                const std::unique_ptr<DeviceBuffer>& bias, const float* residual);

  int heads() const { return shape_.n_head; }
  int kv_heads() const { return shape_.n_head_kv; }
  int head_dim() const { return shape_.head_dim_k; }

  Device& device_;
  const ModelShape shape_;
  const KvPages& pages_;
  const ModelPlacement placement_;
  std::unique_ptr<PackedWeight> embedding_, head_;
  std::unique_ptr<DeviceBuffer> output_norm_, frequencies_;
  float magnitude_ = 1.0f;
  std::vector<Layer> layers_;
  Scratch scratch_;
};

absl::Status Llama::Load(const GgufFile& file) {
  if (shape_.experts.count > 0) return Unimplemented("{}: llama with experts is not served yet", file.path());
  const std::unique_ptr<Stream> stream = device_.NewComputeStream();
  if (placement_.owns_embedding) {
    WeightLoader loader(device_, *stream, file, BindTensors(file, EmbeddingTensors(shape_)));
    ASSIGN_OR_RETURN(embedding_, loader.Matrix("token_embd"));
  }
  for (int layer = placement_.layers.begin; layer < placement_.layers.end; ++layer) {
    RETURN_IF_ERROR(LoadLayer(*stream, file, layer));
  }
  if (placement_.owns_head) {
    WeightLoader loader(device_, *stream, file, BindTensors(file, HeadTensors(shape_)));
    ASSIGN_OR_RETURN(output_norm_, loader.Vector("output_norm"));
    ASSIGN_OR_RETURN(head_, loader.Matrix("output"));
  }
  ASSIGN_OR_RETURN(const std::vector<double> frequencies, RopeFrequencies(shape_, file));
  ASSIGN_OR_RETURN(frequencies_, device_.Allocate(frequencies.size() * sizeof(double)));
  stream->CopyToDevice(frequencies_->data(), frequencies.data(), frequencies.size() * sizeof(double));
  magnitude_ = static_cast<float>(RopeMagnitude(shape_));
  RETURN_IF_ERROR(AllocateScratch());
  return stream->Synchronize();
}

absl::Status Llama::LoadLayer(Stream& stream, const GgufFile& file, int index) {
  WeightLoader loader(device_, stream, file, BindTensors(file, LayerTensors(shape_, index)));
  Layer layer;
  ASSIGN_OR_RETURN(layer.attn_norm, loader.Vector("attn_norm"));
  ASSIGN_OR_RETURN(layer.q, loader.Matrix("attn_q"));
  ASSIGN_OR_RETURN(layer.k, loader.Matrix("attn_k"));
  ASSIGN_OR_RETURN(layer.v, loader.Matrix("attn_v"));
  ASSIGN_OR_RETURN(layer.o, loader.Matrix("attn_output"));
  ASSIGN_OR_RETURN(layer.q_bias, loader.Vector("attn_q_bias"));
  ASSIGN_OR_RETURN(layer.k_bias, loader.Vector("attn_k_bias"));
  ASSIGN_OR_RETURN(layer.v_bias, loader.Vector("attn_v_bias"));
  ASSIGN_OR_RETURN(layer.o_bias, loader.Vector("attn_output_bias"));
  ASSIGN_OR_RETURN(layer.ffn_norm, loader.Vector("ffn_norm"));
  ASSIGN_OR_RETURN(layer.gate, loader.Matrix("ffn_gate"));
  ASSIGN_OR_RETURN(layer.up, loader.Matrix("ffn_up"));
  ASSIGN_OR_RETURN(layer.down, loader.Matrix("ffn_down"));
  ASSIGN_OR_RETURN(layer.gate_bias, loader.Vector("ffn_gate_bias"));
  ASSIGN_OR_RETURN(layer.up_bias, loader.Vector("ffn_up_bias"));
  ASSIGN_OR_RETURN(layer.down_bias, loader.Vector("ffn_down_bias"));
  layers_.push_back(std::move(layer));
  return absl::OkStatus();
}

absl::Status Llama::AllocateScratch() {
  const size_t rows = static_cast<size_t>(placement_.step_rows);
  const auto floats = [&](std::unique_ptr<DeviceBuffer>* buffer, size_t n_rows, int dim) -> absl::Status {
    ASSIGN_OR_RETURN(*buffer, device_.Allocate(n_rows * static_cast<size_t>(dim) * sizeof(float)));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(floats(&scratch_.x, rows, shape_.n_embd));
  RETURN_IF_ERROR(floats(&scratch_.normed, rows, shape_.n_embd));
  RETURN_IF_ERROR(floats(&scratch_.q, rows, heads() * head_dim()));
  RETURN_IF_ERROR(floats(&scratch_.k, rows, kv_heads() * head_dim()));
  RETURN_IF_ERROR(floats(&scratch_.v, rows, kv_heads() * head_dim()));
  RETURN_IF_ERROR(floats(&scratch_.attended, rows, heads() * head_dim()));
  RETURN_IF_ERROR(floats(&scratch_.gate, rows, shape_.n_ff));
  RETURN_IF_ERROR(floats(&scratch_.up, rows, shape_.n_ff));
  RETURN_IF_ERROR(floats(&scratch_.angles, rows, shape_.rope.n_rot));
  const int widest = std::max({shape_.n_embd, heads() * head_dim(), shape_.n_ff});
  size_t prepared_bytes = 0;
  for (ActivationFormat format : {ActivationFormat::kF32, ActivationFormat::kA16}) {
    prepared_bytes = std::max(prepared_bytes, device_.ActivationBytes(format, placement_.step_rows, widest));
  }
  ASSIGN_OR_RETURN(scratch_.prepared, device_.Allocate(prepared_bytes));
  if (placement_.owns_head) {
    RETURN_IF_ERROR(floats(&scratch_.logits, static_cast<size_t>(placement_.logits_rows), shape_.n_vocab));
  }
  return absl::OkStatus();
}

void Llama::Forward(Stream& stream, const StepInput& input) {
  if (placement_.owns_embedding) {
    stream.EmbedRows({.table = embedding_.get(), .ids = input.ids, .out = x(), .n_rows = input.n_rows,
                      .scale = static_cast<float>(shape_.embedding_scale)});
  }
  stream.RopeAngles({.positions = input.positions, .frequencies = frequencies_->As<double>(), .angles = Floats(scratch_.angles),
                     .n_rows = input.n_rows, .n_pairs = shape_.rope.n_rot / 2, .magnitude = magnitude_});
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    Attention(stream, input, i);
    FeedForward(stream, input, i);
    placement_.progress->fetch_add(1, std::memory_order_relaxed);
  }
}

// x += W_o attention(rope(W_q norm(x)), rope(W_k norm(x)), W_v norm(x))
void Llama::Attention(Stream& stream, const StepInput& input, int index) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const KvLayer& cache = pages_.layer(placement_.layers.begin + index);
  const int n = input.n_rows, q_dim = heads() * head_dim(), kv_dim = kv_heads() * head_dim();
  float *q = Floats(scratch_.q), *k = Floats(scratch_.k), *v = Floats(scratch_.v), *attended = Floats(scratch_.attended);

  stream.RmsNorm({.x = x(), .weight = Floats(layer.attn_norm), .y = Floats(scratch_.normed), .n_rows = n, .dim = shape_.n_embd,
                  .x_stride = shape_.n_embd, .y_stride = shape_.n_embd, .eps = static_cast<float>(shape_.rms_eps)});
  const void* prepared = Prepare(stream, Floats(scratch_.normed), n, shape_.n_embd, *layer.q);
  Multiply(stream, prepared, n, *layer.q, q, layer.q_bias, nullptr);
  if (layer.k->activation != layer.q->activation) prepared = Prepare(stream, Floats(scratch_.normed), n, shape_.n_embd, *layer.k);
  Multiply(stream, prepared, n, *layer.k, k, layer.k_bias, nullptr);
  if (layer.v->activation != layer.k->activation) prepared = Prepare(stream, Floats(scratch_.normed), n, shape_.n_embd, *layer.v);
  Multiply(stream, prepared, n, *layer.v, v, layer.v_bias, nullptr);

  RopeArgs rope{.x = q, .angles = Floats(scratch_.angles), .n_rows = n, .heads = heads(), .head_dim = head_dim(),
                .x_stride = q_dim, .n_pairs = shape_.rope.n_rot / 2, .pairing = RopePairing::kNorm};
  stream.Rope(rope);
  rope.x = k;
  rope.heads = kv_heads();
  rope.x_stride = kv_dim;
  stream.Rope(rope);

  stream.StoreKv({.cache = cache, .k = k, .v = v, .stride = kv_dim, .slices = input.slices});
  stream.Attention({.cache = cache, .q = q, .out = attended, .q_stride = q_dim, .out_stride = q_dim, .heads = heads(),
                    .scale = static_cast<float>(shape_.attention_scale), .slices = input.slices});
  prepared = Prepare(stream, attended, n, q_dim, *layer.o);
  Multiply(stream, prepared, n, *layer.o, x(), layer.o_bias, x());
}

// x += W_down (silu(W_gate norm(x)) * W_up norm(x))
void Llama::FeedForward(Stream& stream, const StepInput& input, int index) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const int n = input.n_rows;
  float *gate = Floats(scratch_.gate), *up = Floats(scratch_.up);

  stream.RmsNorm({.x = x(), .weight = Floats(layer.ffn_norm), .y = Floats(scratch_.normed), .n_rows = n, .dim = shape_.n_embd,
                  .x_stride = shape_.n_embd, .y_stride = shape_.n_embd, .eps = static_cast<float>(shape_.rms_eps)});
  const void* prepared = Prepare(stream, Floats(scratch_.normed), n, shape_.n_embd, *layer.gate);
  Multiply(stream, prepared, n, *layer.gate, gate, layer.gate_bias, nullptr);
  if (layer.up->activation != layer.gate->activation) {
    prepared = Prepare(stream, Floats(scratch_.normed), n, shape_.n_embd, *layer.up);
  }
  Multiply(stream, prepared, n, *layer.up, up, layer.up_bias, nullptr);
  stream.Gated({.gate = gate, .up = up, .out = gate, .n_rows = n, .dim = shape_.n_ff, .gate_stride = shape_.n_ff,
                .up_stride = shape_.n_ff, .out_stride = shape_.n_ff, .kind = GateKind::kSilu});
  prepared = Prepare(stream, gate, n, shape_.n_ff, *layer.down);
  Multiply(stream, prepared, n, *layer.down, x(), layer.down_bias, x());
}

void Llama::Logits(Stream& stream, const int32_t* row_indices, int n) {
  float* rows = Floats(scratch_.normed);
  stream.GatherRows({.x = x(), .rows = row_indices, .out = rows, .n_rows = n, .dim = shape_.n_embd});
  stream.RmsNorm({.x = rows, .weight = Floats(output_norm_), .y = rows, .n_rows = n, .dim = shape_.n_embd,
                  .x_stride = shape_.n_embd, .y_stride = shape_.n_embd, .eps = static_cast<float>(shape_.rms_eps)});
  const void* prepared = Prepare(stream, rows, n, shape_.n_embd, *head_);
  Multiply(stream, prepared, n, *head_, Floats(scratch_.logits), nullptr, nullptr);
}

const void* Llama::Prepare(Stream& stream, const float* rows, int n_rows, int dim, const PackedWeight& weight) {
  stream.PrepareActivation({.x = rows, .n_rows = n_rows, .dim = dim, .x_stride = dim, .format = weight.activation,
                            .out = scratch_.prepared->data()});
  return scratch_.prepared->data();
}

void Llama::Multiply(Stream& stream, const void* prepared, int n_rows, const PackedWeight& weight, float* out,
                     const std::unique_ptr<DeviceBuffer>& bias, const float* residual) {
  stream.MatMul({.weight = &weight, .x = prepared, .n_rows = n_rows, .out = out, .out_stride = weight.rows,
                 .bias = Floats(bias), .residual = residual});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadLlama(Device& device, const GgufFile& file, const ModelShape& shape,
                                                 const KvPages& pages, const ModelPlacement& placement) {
  auto model = std::make_unique<Llama>(device, shape, pages, placement);
  RETURN_IF_ERROR(model->Load(file));
  return model;
}

}  // namespace layover
