// The tensors that each architecture consists of, with their dimensions. One function per kind of block; names and
// shapes are GGUF's ({in, out}: rows of `in` contiguous values).
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/weight_types.h"
#include "common/status.h"

namespace layover {
namespace {

using Dims = std::vector<int64_t>;

// Collects the tensors of one layer in role order.
class LayerBuilder {
 public:
  LayerBuilder(const ModelShape& shape, int layer) : shape_(shape), layer_(shape.layers[layer]), index_(layer) {}

  std::vector<TensorSpec> Build() {
    const int64_t embd = shape_.n_embd;
    Vector("attn_norm", "attn_norm.weight", {embd});
    if (layer_.kind == LayerKind::kRecurrent) {
      Recurrent();
    } else {
      Attention();
    }
    switch (shape_.kind) {
      case Architecture::kQwen3Next:
      case Architecture::kQwen35:
      case Architecture::kQwen35Moe:
      case Architecture::kGptOss:
        Vector("post_attention_norm", "post_attention_norm.weight", {embd});
        break;
      case Architecture::kGemma3:
        Vector("post_attention_norm", "post_attention_norm.weight", {embd});
        Vector("ffn_norm", "ffn_norm.weight", {embd});
        break;
      default:
        Vector("ffn_norm", "ffn_norm.weight", {embd});
    }
    if (shape_.experts.count > 0) {
      Experts();
    } else {
      Dense();
    }
    if (shape_.kind == Architecture::kGemma3) Vector("post_ffw_norm", "post_ffw_norm.weight", {embd});
    return std::move(specs_);
  }

 private:
  void Add(std::string_view role, std::string_view leaf, Dims dims, bool required, bool f32_only) {
    specs_.push_back({std::string(role), fmt::format("blk.{}.{}", index_, leaf), std::move(dims), required, f32_only});
  }
  void Matrix(std::string_view role, Dims dims) {
    Add(role, fmt::format("{}.weight", role), std::move(dims), true, false);
  }
  void Vector(std::string_view role, std::string_view leaf, Dims dims) { Add(role, leaf, std::move(dims), true, true); }
  void Bias(std::string_view of, Dims dims, bool required) {
    Add(fmt::format("{}_bias", of), fmt::format("{}.bias", of), std::move(dims), required, true);
  }

  void Attention() {
    const int64_t embd = shape_.n_embd;
    const int64_t dim = shape_.head_dim_k;
    const int64_t q = layer_.n_head * dim;
    const int64_t kv = layer_.n_head_kv * dim;
    const bool gated = shape_.recurrent.conv_taps > 0;  // hybrids: a gate beside each query
    Matrix("attn_q", {embd, gated ? 2 * q : q});
    Matrix("attn_k", {embd, kv});
    Matrix("attn_v", {embd, kv});
    Matrix("attn_output", {q, embd});
    const bool qkv_bias = shape_.kind == Architecture::kQwen2 || shape_.kind == Architecture::kGptOss;
    if (qkv_bias || shape_.kind == Architecture::kLlama) {
      Bias("attn_q", {q}, qkv_bias);
      Bias("attn_k", {kv}, qkv_bias);
      Bias("attn_v", {kv}, qkv_bias);
    }
    if (shape_.kind == Architecture::kLlama || shape_.kind == Architecture::kGptOss) {
      Bias("attn_output", {embd}, shape_.kind == Architecture::kGptOss);
    }
    if (shape_.kind == Architecture::kGptOss) Vector("attn_sinks", "attn_sinks.weight", {layer_.n_head});
    switch (shape_.kind) {
      case Architecture::kLlama:
      case Architecture::kQwen2:
      case Architecture::kGptOss:
        break;
      default:
        Vector("attn_q_norm", "attn_q_norm.weight", {dim});
        Vector("attn_k_norm", "attn_k_norm.weight", {dim});
    }
  }

  void Recurrent() {
    const RecurrentShape& r = shape_.recurrent;
    const int64_t embd = shape_.n_embd;
    Matrix("attn_qkv", {embd, r.Channels()});
    Matrix("attn_gate", {embd, r.ValueDim()});
    if (shape_.kind == Architecture::kQwen3Next) {
      Matrix("ssm_ba", {embd, 2 * r.value_heads});
    } else {
      Matrix("ssm_beta", {embd, r.value_heads});
      Matrix("ssm_alpha", {embd, r.value_heads});
    }
    Vector("ssm_conv1d", "ssm_conv1d.weight", {r.conv_taps, r.Channels()});
    Vector("ssm_a", "ssm_a", {r.value_heads});
    Vector("ssm_dt", "ssm_dt.bias", {r.value_heads});
    Vector("ssm_norm", "ssm_norm.weight", {r.dim});
    Matrix("ssm_out", {r.ValueDim(), embd});
  }

  void Dense() {
    const int64_t embd = shape_.n_embd;
    const int64_t ff = layer_.n_ff;
    Matrix("ffn_gate", {embd, ff});
    Matrix("ffn_up", {embd, ff});
    Matrix("ffn_down", {ff, embd});
    if (shape_.kind != Architecture::kLlama) return;
    Bias("ffn_gate", {ff}, false);
    Bias("ffn_up", {ff}, false);
    Bias("ffn_down", {embd}, false);
  }

  void Experts() {
    const ExpertShape& experts = shape_.experts;
    const int64_t embd = shape_.n_embd;
    const bool biases = shape_.kind == Architecture::kGptOss;
    Matrix("ffn_gate_inp", {embd, experts.count});
    if (biases) Bias("ffn_gate_inp", {experts.count}, true);
    Matrix("ffn_gate_exps", {embd, experts.n_ff, experts.count});
    Matrix("ffn_up_exps", {embd, experts.n_ff, experts.count});
    Matrix("ffn_down_exps", {experts.n_ff, embd, experts.count});
    if (biases) {
      Bias("ffn_gate_exps", {experts.n_ff, experts.count}, true);
      Bias("ffn_up_exps", {experts.n_ff, experts.count}, true);
      Bias("ffn_down_exps", {embd, experts.count}, true);
    }
    if (experts.n_ff_shared == 0) return;
    Vector("ffn_gate_inp_shexp", "ffn_gate_inp_shexp.weight", {embd});
    Matrix("ffn_gate_shexp", {embd, experts.n_ff_shared});
    Matrix("ffn_up_shexp", {embd, experts.n_ff_shared});
    Matrix("ffn_down_shexp", {experts.n_ff_shared, embd});
  }

  const ModelShape& shape_;
  const LayerShape& layer_;
  int index_;
  std::vector<TensorSpec> specs_;
};

std::string DimsText(const int64_t* dims, size_t n) {
  std::string text = "{";
  for (size_t i = 0; i < n; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", dims[i]);
  return text + "}";
}

absl::Status CheckTensor(const GgufFile& file, const TensorSpec& spec) {
  const GgufTensor* tensor = file.FindTensor(spec.gguf_name);
  if (tensor == nullptr) {
    if (!spec.required) return absl::OkStatus();
    return DataLoss("{}: tensor {} is missing", file.path(), spec.gguf_name);
  }
  std::array<int64_t, 4> wanted = {1, 1, 1, 1};
  std::copy(spec.dims.begin(), spec.dims.end(), wanted.begin());
  if (tensor->dims != wanted) {
    return DataLoss("{}: tensor {} has the dimensions {}, expected {}", file.path(), spec.gguf_name,
                    DimsText(tensor->dims.data(), static_cast<size_t>(tensor->n_dims)),
                    DimsText(spec.dims.data(), spec.dims.size()));
  }
  if (spec.f32_only && tensor->type != static_cast<uint32_t>(WeightType::kF32)) {
    return Unimplemented("{}: tensor {} is {}, it must be F32", file.path(), spec.gguf_name,
                         WeightTypeInfo(tensor->type)->name);
  }
  return absl::OkStatus();
}

// The N of "blk.N.…", -1 for other names.
int BlockOf(std::string_view name) {
  if (!name.starts_with("blk.")) return -1;
  int block = 0;
  size_t i = 4;
  for (; i < name.size() && i < 10 && name[i] >= '0' && name[i] <= '9'; ++i) block = 10 * block + (name[i] - '0');
  return i > 4 && i < name.size() && name[i] == '.' ? block : -1;
}

}  // namespace

std::vector<TensorSpec> LayerTensors(const ModelShape& shape, int layer) {
  return LayerBuilder(shape, layer).Build();
}

std::vector<TensorSpec> EmbeddingTensors(const ModelShape& shape) {
  return {{"token_embd", "token_embd.weight", {shape.n_embd, shape.n_vocab}, true, false}};
}

std::vector<TensorSpec> HeadTensors(const ModelShape& shape) {
  std::vector<TensorSpec> specs = {{"output_norm", "output_norm.weight", {shape.n_embd}, true, true},
                                   {"output",
                                    shape.tied_output ? "token_embd.weight" : "output.weight",
                                    {shape.n_embd, shape.n_vocab},
                                    true,
                                    false}};
  if (shape.kind == Architecture::kQwen2) {
    specs.push_back({"output_bias", "output.bias", {shape.n_vocab}, false, true});
  }
  return specs;
}

std::vector<TensorSpec> RopeTensors(const ModelShape& shape) {
  return {{"rope_freqs", "rope_freqs.weight", {shape.rope.n_rot / 2}, false, true}};
}

std::vector<BoundTensor> BindTensors(const GgufFile& file, std::vector<TensorSpec> specs) {
  std::vector<BoundTensor> bound;
  for (TensorSpec& spec : specs) {
    const GgufTensor* tensor = file.FindTensor(spec.gguf_name);
    if (tensor != nullptr) bound.push_back({std::move(spec), tensor});
  }
  return bound;
}

absl::Status CheckTensors(const GgufFile& file, const ModelShape& shape) {
  std::vector<TensorSpec> specs = EmbeddingTensors(shape);
  const auto append = [&specs](std::vector<TensorSpec> more) {
    std::move(more.begin(), more.end(), std::back_inserter(specs));
  };
  for (int layer = 0; layer < shape.n_layers; ++layer) append(LayerTensors(shape, layer));
  append(HeadTensors(shape));
  append(RopeTensors(shape));
  absl::flat_hash_set<std::string> known;
  for (const TensorSpec& spec : specs) {
    RETURN_IF_ERROR(CheckTensor(file, spec));
    known.insert(spec.gguf_name);
  }
  // A tensor that nobody reads would be left out in silence, and the model would be another one.
  for (const GgufTensor& tensor : file.tensors()) {
    const int block = BlockOf(tensor.name);
    const bool skipped = block >= shape.n_layers && block < shape.n_layers + shape.n_extra_blocks;
    if (!skipped && !known.contains(tensor.name)) {
      return Unimplemented("{}: tensor {} is not known in the architecture {}", file.path(), tensor.name,
                           shape.architecture);
    }
  }
  return absl::OkStatus();
}

}  // namespace layover
