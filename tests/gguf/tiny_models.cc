// Tiny models of every architecture: hyper-parameters here, tensors as the product's own tables list them (which
// model_shape_test.cc compares with lists written out by hand).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "common/check.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"
#include "tests/gguf/tiny_blocks.h"

namespace layover::testing {
namespace {

constexpr int kVocab = 300;
constexpr int kContext = 4096;
constexpr int kWindow = 40;         // positions; within a page and across two
constexpr int kGemmaPeriod = 3;     // two local layers, then a global one
constexpr int kHybridInterval = 4;  // three recurrent layers, then an attention layer
constexpr int kExtraBlocks = 1;     // of qwen35 and qwen35moe
constexpr float kEmbeddingDeviation = 0.1f;

struct Variant {
  std::string_view name;
  Architecture kind;
  int layers;
  bool experts;
  bool tied;
};
constexpr Variant kVariants[] = {
    {"llama", Architecture::kLlama, 3, false, false},        {"llama-moe", Architecture::kLlama, 3, true, false},
    {"qwen2", Architecture::kQwen2, 3, false, false},        {"qwen3", Architecture::kQwen3, 3, false, true},
    {"qwen3moe", Architecture::kQwen3Moe, 3, true, false},   {"gemma3", Architecture::kGemma3, 5, false, true},
    {"qwen3next", Architecture::kQwen3Next, 5, true, false}, {"qwen35", Architecture::kQwen35, 5, false, true},
    {"qwen35moe", Architecture::kQwen35Moe, 6, true, false}, {"gpt-oss", Architecture::kGptOss, 3, true, false},
};

bool IsHybrid(Architecture kind) {
  return kind == Architecture::kQwen3Next || kind == Architecture::kQwen35 || kind == Architecture::kQwen35Moe;
}

LayerKind KindOf(Architecture kind, int layer) {
  if (IsHybrid(kind)) return (layer + 1) % kHybridInterval == 0 ? LayerKind::kFullAttention : LayerKind::kRecurrent;
  if (kind == Architecture::kGemma3 && layer % kGemmaPeriod < kGemmaPeriod - 1) return LayerKind::kSlidingWindow;
  if (kind == Architecture::kGptOss && layer % 2 == 0) return LayerKind::kSlidingWindow;
  return LayerKind::kFullAttention;
}

// What LayerTensors and the metadata need; `block`: a multiple for every row length.
ModelShape ShapeOf(const Variant& variant, int block) {
  const int unit = std::max(block, 64);
  ModelShape shape;
  shape.kind = variant.kind;
  shape.architecture = variant.name == "llama-moe" ? "llama" : variant.name;
  shape.n_layers = variant.layers;
  shape.n_embd = 2 * unit > 256 ? unit : 2 * unit;
  shape.n_vocab = kVocab;
  shape.tied_output = variant.tied;
  shape.head_dim_k = shape.head_dim_v = variant.kind == Architecture::kQwen2 ? shape.n_embd / 4 : 64;
  shape.rope.n_rot = IsHybrid(variant.kind) ? 32 : shape.head_dim_k;
  if (variant.experts) {
    shape.experts = {.count = 8, .used = 3, .n_ff = unit};
    if (IsHybrid(variant.kind)) shape.experts.n_ff_shared = unit;
  }
  if (IsHybrid(variant.kind)) shape.recurrent = {.conv_taps = 4, .key_heads = 2, .value_heads = 4, .dim = 64};
  for (int layer = 0; layer < variant.layers; ++layer) {
    LayerShape& made = shape.layers.emplace_back();
    made.kind = KindOf(variant.kind, layer);
    if (made.kind != LayerKind::kRecurrent) made = {made.kind, 4, 2, 0};
    if (!variant.experts) made.n_ff = 3 * unit > 256 ? unit : 3 * unit;
  }
  return shape;
}

class Writer {
 public:
  Writer(const TinyModelOptions& options, const Variant& variant)
      : options_(options),
        variant_(variant),
        shape_(ShapeOf(variant, WeightTypeInfo(options.weight_type).block_elements)) {}

  std::string Build() {
    Keys();
    AddTinyTokenizer(kVocab, "qwen2", "", &builder_);
    for (const TensorSpec& spec : EmbeddingTensors(shape_)) Tensor(spec);
    if (variant_.name == "llama") RopeFactors();
    for (int layer = 0; layer < shape_.n_layers; ++layer) {
      for (const TensorSpec& spec : LayerTensors(shape_, layer)) {
        if (spec.required) Tensor(spec);
      }
    }
    for (const TensorSpec& spec : HeadTensors(shape_)) {
      if (spec.required && spec.gguf_name != "token_embd.weight") Tensor(spec);
    }
    if (n_extra() > 0) ExtraBlock();
    return builder_.Build();
  }

 private:
  int n_extra() const {
    return IsHybrid(variant_.kind) && variant_.kind != Architecture::kQwen3Next ? kExtraBlocks : 0;
  }
  // A whole next-token-prediction block, as real files have it: whoever runs it is off.
  void ExtraBlock() {
    ModelShape with_it = shape_;
    const int layer = with_it.n_layers++;
    LayerShape& block = with_it.layers.emplace_back();
    block = {LayerKind::kFullAttention, 4, 2, variant_.experts ? 0 : shape_.layers[0].n_ff};
    for (const TensorSpec& spec : LayerTensors(with_it, layer)) Tensor(spec);
    const std::string prefix = "blk." + std::to_string(layer) + ".nextn.";
    Tensor({"eh_proj", prefix + "eh_proj.weight", {2 * shape_.n_embd, shape_.n_embd}, true, false});
    for (const char* name : {"enorm", "hnorm"}) Tensor({name, prefix + name + ".weight", {shape_.n_embd}, true, true});
  }

  std::string Key(std::string_view key) const { return shape_.architecture + "." + std::string(key); }
  void U32(std::string_view key, int value) { builder_.U32(Key(key), static_cast<uint32_t>(value)); }
  void F32(std::string_view key, double value) { builder_.F32(Key(key), static_cast<float>(value)); }

  void Keys() {
    builder_.String("general.architecture", shape_.architecture).String("general.type", "model");
    builder_.String("general.name", "tiny " + std::string(variant_.name)).U32("general.quantization_version", 2);
    U32("block_count", shape_.n_layers + n_extra());
    U32("context_length", kContext);
    U32("embedding_length", shape_.n_embd);
    U32("attention.head_count", 4);
    U32("attention.head_count_kv", 2);
    U32("attention.key_length", shape_.head_dim_k);
    U32("attention.value_length", shape_.head_dim_v);
    F32("attention.layer_norm_rms_epsilon", 1e-6);
    U32("rope.dimension_count", shape_.rope.n_rot);
    F32("rope.freq_base", RopeBase() * (options_.fault == "rope" ? 1.01 : 1.0));
    if (!variant_.experts) U32("feed_forward_length", shape_.layers[0].n_ff);
    if (variant_.experts) ExpertKeys();
    if (IsHybrid(variant_.kind)) HybridKeys();
    if (variant_.kind == Architecture::kGemma3) {
      U32("attention.sliding_window", Window());
      U32("attention.sliding_window_pattern", kGemmaPeriod);
      if (options_.fault == "local-rope") F32("rope.freq_base_swa", 10100);
      builder_.String(Key("rope.scaling.type"), "linear");
      F32("rope.scaling.factor", 2);
    }
    if (variant_.kind == Architecture::kGptOss) {
      U32("attention.sliding_window", Window());
      builder_.String(Key("rope.scaling.type"), "yarn");
      F32("rope.scaling.factor", 4);
      U32("rope.scaling.original_context_length", 64);
    }
  }

  int Window() const { return kWindow + (options_.fault == "window" ? 1 : 0); }

  double RopeBase() const {
    switch (variant_.kind) {
      case Architecture::kGptOss:
        return 150000;
      case Architecture::kQwen2:
      case Architecture::kQwen3:
      case Architecture::kQwen3Moe:
        return 1e6;
      default:
        return 20000;  // so that few rotated layers are enough to tell another base
    }
  }

  void ExpertKeys() {
    U32("expert_count", shape_.experts.count);
    U32("expert_used_count", shape_.experts.used);
    if (variant_.kind == Architecture::kLlama) U32("feed_forward_length", shape_.experts.n_ff);
    U32("expert_feed_forward_length", shape_.experts.n_ff);
    if (shape_.experts.n_ff_shared > 0) U32("expert_shared_feed_forward_length", shape_.experts.n_ff_shared);
  }

  void HybridKeys() {
    const RecurrentShape& r = shape_.recurrent;
    U32("ssm.conv_kernel", r.conv_taps);
    U32("ssm.state_size", r.dim);
    U32("ssm.group_count", r.key_heads);
    U32("ssm.time_step_rank", r.value_heads);
    U32("ssm.inner_size", r.ValueDim());
    U32("full_attention_interval", kHybridInterval);
    if (n_extra() == 0) return;
    U32("nextn_predict_layers", n_extra());
    builder_.I32s(Key("rope.dimension_sections"), {6, 5, 5, 0});
  }

  // Middle and width of the values of a vector, by role.
  void VectorRange(const std::string& role, float* middle, float* width) const {
    *middle = 0;
    *width = 0.1f;
    if (role.ends_with("norm")) *middle = 1, *width = 0.2f;
    if (role == "ssm_a") *middle = -0.5f, *width = 0.45f;  // decays from 0.4 to nearly 1
    if (role == "ssm_dt") *width = 1.0f;
    if (role == "ssm_conv1d") *width = 0.8f;
    if (role == "attn_sinks") *width = 2.0f;
    if (role == "ffn_gate_inp_shexp") *width = 0.2f;
  }

  // Llama 3.1's, by its formula (factor 8, low 1, high 4) for a context of 64: some pairs as they are, some in between,
  // some slowed by the whole factor.
  void RopeFactors() {
    constexpr double kFactor = 8, kLow = 1, kHigh = 4, kOriginalContext = 64;
    std::vector<float> factors;
    for (int p = 0; p < shape_.rope.n_rot / 2; ++p) {
      const double wavelength = 2 * std::numbers::pi * std::pow(RopeBase(), 2.0 * p / shape_.rope.n_rot);
      const double s = std::clamp((kOriginalContext / wavelength - kLow) / (kHigh - kLow), 0.0, 1.0);
      factors.push_back(static_cast<float>(1 / ((1 - s) / kFactor + s)));
    }
    builder_.Tensor("rope_freqs.weight", {factors.size()}, static_cast<uint32_t>(WeightType::kF32),
                    EncodeWeights(factors, WeightType::kF32));
  }

  void Tensor(const TensorSpec& spec) {
    const size_t count = std::accumulate(spec.dims.begin(), spec.dims.end(), size_t{1}, std::multiplies<>());
    const std::vector<uint64_t> dims(spec.dims.begin(), spec.dims.end());
    if (spec.f32_only || spec.role == "ffn_gate_inp") {
      float middle = 0, width = 0.5f;
      if (spec.f32_only) VectorRange(spec.role, &middle, &width);
      std::vector<float> values = SeededValues(options_.seed, spec.gguf_name, count, middle, width);
      Add(spec, dims, WeightType::kF32, EncodeWeights(values, WeightType::kF32));
      return;
    }
    const bool embedding = spec.role == "token_embd" || spec.role == "output";
    const float deviation =
        options_.weight_gain * (embedding ? kEmbeddingDeviation : 1.0f / std::sqrt(static_cast<float>(spec.dims[0])));
    const WeightType type = options_.weight_type;
    Add(spec, dims, type,
        HasEncoder(type)
            ? EncodeWeights(SeededValues(options_.seed, spec.gguf_name, count, 0, deviation * std::sqrt(3.0f)), type)
            : RandomBlocks(type, options_.seed, spec.gguf_name, count, deviation));
  }

  void Add(const TensorSpec& spec, const std::vector<uint64_t>& dims, WeightType type, std::string data) {
    if (!options_.fault.empty()) Spoil(spec, &data);
    builder_.Tensor(spec.gguf_name, dims, static_cast<uint32_t>(type), std::move(data));
  }

  // The faults that are in a tensor; Keys() has the others.
  void Spoil(const TensorSpec& spec, std::string* data) const {
    const std::string& fault = options_.fault;
    const bool hybrid = IsHybrid(variant_.kind);
    const auto dim = [&](size_t i) { return static_cast<size_t>(i < spec.dims.size() ? spec.dims[i] : 1); };
    const size_t row = data->size() / dim(1) / dim(2);
    const size_t head = static_cast<size_t>(shape_.head_dim_k) * row;
    if (fault == "heads" && spec.role == "attn_q") SwapFirstTwo((hybrid ? 2 : 1) * head, data);
    if (fault == "value-heads" && spec.role == "attn_gate")
      SwapFirstTwo(static_cast<size_t>(shape_.recurrent.dim) * row, data);
    if (fault == "attention-gate" && spec.role == "attn_q") {
      // Rows of a head: its query, then its gate.
      for (size_t at = head; at < data->size(); at += 2 * head)
        std::fill_n(data->begin() + static_cast<long>(at), head, '\0');
    }
    if (fault == "taps" && spec.role == "ssm_conv1d") {
      for (size_t at = 0; at < data->size(); at += row) Reverse(data->data() + at, row);
    }
    const std::string_view gate = fault == "shared-gate" ? "ffn_gate_inp_shexp"
                                  : fault != "gate"      ? ""
                                  : hybrid               ? "attn_gate"
                                  : variant_.experts     ? "ffn_gate_exps"
                                                         : "ffn_gate";
    if (spec.role == gate && spec.gguf_name.starts_with("blk.1.")) data->assign(data->size(), '\0');
  }

  static void SwapFirstTwo(size_t bytes, std::string* data) {
    std::swap_ranges(data->begin(), data->begin() + static_cast<long>(bytes), data->begin() + static_cast<long>(bytes));
  }
  static void Reverse(char* floats, size_t bytes) {
    std::vector<float> values(bytes / sizeof(float));
    std::memcpy(values.data(), floats, bytes);
    std::reverse(values.begin(), values.end());
    std::memcpy(floats, values.data(), bytes);
  }

  const TinyModelOptions options_;
  const Variant variant_;
  const ModelShape shape_;
  GgufBuilder builder_;
};

}  // namespace

std::vector<std::string> TinyArchitectures() {
  std::vector<std::string> names;
  for (const Variant& variant : kVariants) names.emplace_back(variant.name);
  return names;
}

std::vector<std::string> TinyFaults(std::string_view architecture) {
  std::vector<std::string> faults = {"rope", "heads", "gate"};
  for (const Variant& variant : kVariants) {
    if (variant.name != architecture) continue;
    if (IsHybrid(variant.kind)) faults.insert(faults.end(), {"attention-gate", "value-heads", "taps"});
    if (IsHybrid(variant.kind) && variant.experts) faults.emplace_back("shared-gate");
    if (variant.kind == Architecture::kGemma3) faults.emplace_back("local-rope");
    if (KindOf(variant.kind, 0) == LayerKind::kSlidingWindow) faults.emplace_back("window");
  }
  return faults;
}

std::string BuildTinyModel(const TinyModelOptions& options) {
  for (const Variant& variant : kVariants) {
    if (variant.name == options.architecture) return Writer(options, variant).Build();
  }
  LAYOVER_CHECK(false);
  return {};
}

}  // namespace layover::testing
