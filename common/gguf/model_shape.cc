#include "common/gguf/model_shape.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/gguf/tokenizer_metadata.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

// How the architectures differ as far as hyper-parameters go; their tensors differ in model_tensors.cc.
struct ArchitectureTraits {
  Architecture kind;
  std::string_view name;
  bool experts = false;    // expert_count must be there; otherwise it may be (llama) or is taken as 0
  bool scale_key = false;  // attention.scale is looked at
  bool rotates_whole_head = false;
  bool hybrid = false;
};

constexpr ArchitectureTraits kArchitectures[] = {
    {Architecture::kLlama, "llama", false, true, true, false},
    {Architecture::kQwen2, "qwen2", false, false, true, false},
    {Architecture::kQwen3, "qwen3", false, true, false, false},
    {Architecture::kQwen3Moe, "qwen3moe", true, false, true, false},
    {Architecture::kGemma3, "gemma3", false, false, false, false},
    {Architecture::kQwen3Next, "qwen3next", true, false, false, true},
    {Architecture::kQwen35, "qwen35", false, false, false, true},
    {Architecture::kQwen35Moe, "qwen35moe", true, false, false, true},
    {Architecture::kGptOss, "gpt-oss", true, false, false, false},
};

constexpr int kDefaultFullAttentionInterval = 4;
constexpr int kGemmaPeriod = 6;      // five local layers, then a global one
constexpr int kGemma27bLayers = 62;  // the one size whose scale follows from n_embd / n_head
constexpr double kGemmaLocalBase = 10000;
constexpr int kSoftmaxGating = 1;
constexpr int kSoftmaxOfChosenGating = 3;

// Reads `{arch}.KEY` values of one file; messages name the full key.
class ShapeReader {
 public:
  ShapeReader(const GgufFile& file, const ArchitectureTraits& traits) : file_(file), traits_(traits) {}

  absl::StatusOr<ModelShape> Read() {
    shape_.kind = traits_.kind;
    shape_.architecture = traits_.name;
    ASSIGN_OR_RETURN(std::optional<std::string> name, file_.GetString("general.name"));
    shape_.name = name.value_or("");
    RETURN_IF_ERROR(RefuseUnsupportedKeys());
    RETURN_IF_ERROR(ReadSizes());
    RETURN_IF_ERROR(ReadExperts());
    RETURN_IF_ERROR(ReadRecurrent());
    RETURN_IF_ERROR(ReadLayers());
    RETURN_IF_ERROR(ReadRope());
    RETURN_IF_ERROR(ReadScales());
    RETURN_IF_ERROR(ReadVocabulary());
    RETURN_IF_ERROR(CheckTensors(file_, shape_));
    return std::move(shape_);
  }

 private:
  template <typename... Args>
  absl::Status Bad(fmt::format_string<Args...> format, Args&&... args) const {
    return DataLoss("{}: {}", file_.path(), fmt::format(format, std::forward<Args>(args)...));
  }
  std::string Key(std::string_view key) const { return fmt::format("{}.{}", traits_.name, key); }

  absl::Status CheckRange(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    if (value >= low && value <= high) return absl::OkStatus();
    return Bad("{} is {}, allowed are {} to {}", Key(key), value, low, high);
  }

  absl::StatusOr<std::optional<int>> FindInt(std::string_view key, int low, int high) const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value, file_.GetInt(Key(key)));
    if (!value.has_value()) return std::nullopt;
    RETURN_IF_ERROR(CheckRange(key, *value, low, high));
    return static_cast<int>(*value);
  }
  absl::StatusOr<int> NeedInt(std::string_view key, int low, int high) const {
    ASSIGN_OR_RETURN(const std::optional<int> value, FindInt(key, low, high));
    if (!value.has_value()) return Bad("{} is missing", Key(key));
    return *value;
  }
  absl::StatusOr<int> IntOr(std::string_view key, int fallback, int low, int high) const {
    ASSIGN_OR_RETURN(const std::optional<int> value, FindInt(key, low, high));
    return value.value_or(fallback);
  }
  // Absent and 0 both mean `fallback` where `zero_is_absent`.
  absl::StatusOr<double> PositiveOr(std::string_view key, double fallback, bool zero_is_absent = false) const {
    ASSIGN_OR_RETURN(const std::optional<double> value, file_.GetFloat(Key(key)));
    if (!value.has_value() || (zero_is_absent && *value == 0)) return fallback;
    if (!(*value > 0) || *value > 1e12) return Bad("{} is {}, it must be positive", Key(key), *value);
    return *value;
  }
  // A scalar for all layers, or an array with one element per block (those past n_layers are dropped).
  absl::StatusOr<std::vector<int>> PerLayer(std::string_view key, std::optional<int> fallback, int low,
                                            int high) const {
    if (!file_.IsArray(Key(key))) {
      ASSIGN_OR_RETURN(const std::optional<int> value, FindInt(key, low, high));
      if (!value.has_value() && !fallback.has_value()) return Bad("{} is missing", Key(key));
      return std::vector<int>(shape_.n_layers, value.has_value() ? *value : *fallback);
    }
    ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> values, file_.GetInts(Key(key)));
    const int blocks = shape_.n_layers + shape_.n_extra_blocks;
    if (static_cast<int>(values->size()) != blocks && static_cast<int>(values->size()) != shape_.n_layers) {
      return Bad("{} has {} elements for {} layers", Key(key), values->size(), blocks);
    }
    std::vector<int> result;
    for (int i = 0; i < shape_.n_layers; ++i) {
      RETURN_IF_ERROR(CheckRange(key, (*values)[i], low, high));
      result.push_back(static_cast<int>((*values)[i]));
    }
    return result;
  }

  // Settings that would change the arithmetic in a way that no forward pass here has.
  absl::Status RefuseUnsupportedKeys() const {
    for (const std::string_view key :
         {"attn_logit_softcapping", "rope.scaling.yarn_log_multiplier", "leading_dense_block_count", "embedding_scale",
          "residual_scale", "logit_scale"}) {
      ASSIGN_OR_RETURN(const std::optional<double> value, file_.GetFloat(Key(key)));
      const bool is_factor = key.ends_with("_scale");
      if (value.has_value() && *value != 0 && !(is_factor && *value == 1)) {
        return Unimplemented("{}: {} = {} is not supported", file_.path(), Key(key), *value);
      }
    }
    ASSIGN_OR_RETURN(const std::optional<bool> causal, file_.GetBool(Key("attention.causal")));
    if (causal == false) return Unimplemented("{}: {} = false is not supported", file_.path(), Key("attention.causal"));
    return absl::OkStatus();
  }

  absl::Status ReadSizes() {
    ASSIGN_OR_RETURN(const int blocks, NeedInt("block_count", 1, limits::kMaxLayers));
    ASSIGN_OR_RETURN(shape_.n_extra_blocks, IntOr("nextn_predict_layers", 0, 0, limits::kMaxLayers));
    if (shape_.n_extra_blocks >= blocks) {
      return Bad("{} is {}, it must be less than block_count {}", Key("nextn_predict_layers"), shape_.n_extra_blocks,
                 blocks);
    }
    shape_.n_layers = blocks - shape_.n_extra_blocks;
    ASSIGN_OR_RETURN(shape_.n_embd, NeedInt("embedding_length", 1, limits::kMaxEmbedding));
    ASSIGN_OR_RETURN(shape_.context_train, NeedInt("context_length", 1, 1 << 30));
    ASSIGN_OR_RETURN(shape_.rms_eps, PositiveOr("attention.layer_norm_rms_epsilon", 0));
    if (shape_.rms_eps <= 0 || shape_.rms_eps >= 1) {
      return Bad("{} must be there and between 0 and 1", Key("attention.layer_norm_rms_epsilon"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadExperts() {
    ExpertShape& experts = shape_.experts;
    const bool possible = traits_.experts || traits_.kind == Architecture::kLlama;
    ASSIGN_OR_RETURN(experts.count, IntOr("expert_count", 0, 0, limits::kMaxExperts));
    if (experts.count == 0) {
      if (traits_.experts) return Bad("{} is missing", Key("expert_count"));
      return absl::OkStatus();
    }
    if (!possible) return Bad("{} is {}, the architecture has no experts", Key("expert_count"), experts.count);
    ASSIGN_OR_RETURN(experts.used, NeedInt("expert_used_count", 1, experts.count));
    ASSIGN_OR_RETURN(const int gating, IntOr("expert_gating_func", 0, 0, 100));
    const int expected_gating = traits_.kind == Architecture::kGptOss ? kSoftmaxOfChosenGating : kSoftmaxGating;
    if (gating != 0 && gating != expected_gating) {
      return Unimplemented("{}: {} = {} is not supported", file_.path(), Key("expert_gating_func"), gating);
    }
    ASSIGN_OR_RETURN(experts.weights_scale, PositiveOr("expert_weights_scale", 1, true));
    ASSIGN_OR_RETURN(experts.n_ff, IntOr("expert_feed_forward_length", 0, 0, limits::kMaxFeedForward));
    if (experts.n_ff == 0) {
      ASSIGN_OR_RETURN(const int dense, NeedInt("feed_forward_length", 1, limits::kMaxFeedForward));
      experts.n_ff = traits_.kind == Architecture::kLlama ? dense : dense / experts.used;
    }
    if (traits_.hybrid) {
      ASSIGN_OR_RETURN(experts.n_ff_shared, NeedInt("expert_shared_feed_forward_length", 1, limits::kMaxFeedForward));
    }
    return absl::OkStatus();
  }

  absl::Status ReadRecurrent() {
    if (!traits_.hybrid) return absl::OkStatus();
    RecurrentShape& recurrent = shape_.recurrent;
    ASSIGN_OR_RETURN(recurrent.conv_taps, NeedInt("ssm.conv_kernel", 2, limits::kMaxConvTaps));
    ASSIGN_OR_RETURN(recurrent.key_heads, NeedInt("ssm.group_count", 1, limits::kMaxHeads));
    ASSIGN_OR_RETURN(recurrent.value_heads, NeedInt("ssm.time_step_rank", 1, limits::kMaxHeads));
    ASSIGN_OR_RETURN(recurrent.dim, NeedInt("ssm.state_size", 1, limits::kMaxHeadDim));
    ASSIGN_OR_RETURN(const int inner, NeedInt("ssm.inner_size", 1, 1 << 24));
    if (recurrent.value_heads % recurrent.key_heads != 0) {
      return Bad("{} {} is no multiple of {} {}", Key("ssm.time_step_rank"), recurrent.value_heads,
                 Key("ssm.group_count"), recurrent.key_heads);
    }
    if (inner != recurrent.ValueDim()) {
      return Bad("{} is {}, time_step_rank x state_size is {}", Key("ssm.inner_size"), inner, recurrent.ValueDim());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<LayerKind>> ReadLayerKinds() {
    std::vector<LayerKind> kinds(shape_.n_layers, LayerKind::kFullAttention);
    if (traits_.hybrid) return ReadHybridKinds(std::move(kinds));
    if (traits_.kind != Architecture::kGemma3 && traits_.kind != Architecture::kGptOss) return kinds;
    ASSIGN_OR_RETURN(shape_.window, IntOr("attention.sliding_window", 0, 0, 1 << 30));
    if (shape_.window == 0) return kinds;
    if (traits_.kind == Architecture::kGptOss) {
      for (int i = 0; i < shape_.n_layers; i += 2) kinds[i] = LayerKind::kSlidingWindow;
      return kinds;
    }
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    if (file_.IsArray(Key(kPattern))) {
      ASSIGN_OR_RETURN(const std::vector<int> local, PerLayer(kPattern, std::nullopt, 0, 1));
      for (int i = 0; i < shape_.n_layers; ++i) {
        if (local[i] != 0) kinds[i] = LayerKind::kSlidingWindow;
      }
      return kinds;
    }
    ASSIGN_OR_RETURN(const int period, IntOr(kPattern, kGemmaPeriod, 1, limits::kMaxLayers));
    for (int i = 0; i < shape_.n_layers; ++i) {
      if (i % period < period - 1) kinds[i] = LayerKind::kSlidingWindow;
    }
    return kinds;
  }

  absl::StatusOr<std::vector<LayerKind>> ReadHybridKinds(std::vector<LayerKind> kinds) {
    constexpr std::string_view kList = "attention.recurrent_layers";
    if (file_.Has(Key(kList))) {
      ASSIGN_OR_RETURN(const std::vector<int> recurrent, PerLayer(kList, std::nullopt, 0, 1));
      for (int i = 0; i < shape_.n_layers; ++i) {
        if (recurrent[i] != 0) kinds[i] = LayerKind::kRecurrent;
      }
      return kinds;
    }
    ASSIGN_OR_RETURN(const int interval,
                     IntOr("full_attention_interval", kDefaultFullAttentionInterval, 1, limits::kMaxLayers));
    for (int i = 0; i < shape_.n_layers; ++i) {
      if ((i + 1) % interval != 0) kinds[i] = LayerKind::kRecurrent;
    }
    return kinds;
  }

  absl::Status ReadLayers() {
    ASSIGN_OR_RETURN(const std::vector<LayerKind> kinds, ReadLayerKinds());
    // Zero heads stand in per-layer arrays for layers without attention.
    ASSIGN_OR_RETURN(const std::vector<int> heads,
                     PerLayer("attention.head_count", std::nullopt, 0, limits::kMaxHeads));
    const int most_heads = *std::max_element(heads.begin(), heads.end());
    ASSIGN_OR_RETURN(const std::vector<int> heads_kv,
                     PerLayer("attention.head_count_kv", most_heads, 0, limits::kMaxHeads));
    const bool has_dense = shape_.experts.count == 0;
    std::vector<int> ff(shape_.n_layers, 0);
    if (has_dense) {
      ASSIGN_OR_RETURN(ff, PerLayer("feed_forward_length", std::nullopt, 1, limits::kMaxFeedForward));
    }
    for (int i = 0; i < shape_.n_layers; ++i) {
      LayerShape layer{kinds[i], heads[i], heads_kv[i], ff[i]};
      if (layer.kind == LayerKind::kRecurrent) {
        layer.n_head = layer.n_head_kv = 0;
      } else if (layer.n_head < 1 || layer.n_head_kv < 1 || layer.n_head % layer.n_head_kv != 0) {
        return Bad("layer {}: {} query heads cannot share {} K/V heads", i, layer.n_head, layer.n_head_kv);
      }
      shape_.n_head = std::max(shape_.n_head, layer.n_head);
      shape_.n_head_kv = std::max(shape_.n_head_kv, layer.n_head_kv);
      shape_.n_ff = std::max(shape_.n_ff, layer.n_ff);
      shape_.layers.push_back(layer);
    }
    if (shape_.n_head == 0) return Bad("no layer has attention");
    return ReadHeadDims();
  }

  absl::Status ReadHeadDims() {
    const int by_default = shape_.n_embd / shape_.n_head;
    ASSIGN_OR_RETURN(shape_.head_dim_k, IntOr("attention.key_length", by_default, 1, limits::kMaxHeadDim));
    ASSIGN_OR_RETURN(shape_.head_dim_v, IntOr("attention.value_length", by_default, 1, limits::kMaxHeadDim));
    RETURN_IF_ERROR(CheckRange("attention.key_length", shape_.head_dim_k, 1, limits::kMaxHeadDim));
    for (const std::string_view key : {"attention.key_length_swa", "attention.value_length_swa"}) {
      ASSIGN_OR_RETURN(const int swa, IntOr(key, shape_.head_dim_k, 1, limits::kMaxHeadDim));
      if (swa != shape_.head_dim_k) return Unimplemented("{}: {} = {} is not supported", file_.path(), Key(key), swa);
    }
    if (shape_.head_dim_k == shape_.head_dim_v) return absl::OkStatus();
    return Unimplemented("{}: keys of {} and values of {} dims are not supported", file_.path(), shape_.head_dim_k,
                         shape_.head_dim_v);
  }

  absl::Status ReadRope() {
    RopeShape& rope = shape_.rope;
    ASSIGN_OR_RETURN(rope.n_rot, IntOr("rope.dimension_count", shape_.head_dim_k, 2, shape_.head_dim_k));
    if (rope.n_rot % 2 != 0) return Bad("{} {} is odd", Key("rope.dimension_count"), rope.n_rot);
    if (traits_.rotates_whole_head && rope.n_rot != shape_.head_dim_k) {
      return Bad("{} is {}, the head has {} dims", Key("rope.dimension_count"), rope.n_rot, shape_.head_dim_k);
    }
    ASSIGN_OR_RETURN(const int window_rot, IntOr("rope.dimension_count_swa", rope.n_rot, 2, shape_.head_dim_k));
    if (window_rot != rope.n_rot) {
      return Unimplemented("{}: {} = {} is not supported", file_.path(), Key("rope.dimension_count_swa"), window_rot);
    }
    ASSIGN_OR_RETURN(rope.freq_base, PositiveOr("rope.freq_base", 10000));
    if (shape_.window > 0) {
      const double by_default = traits_.kind == Architecture::kGemma3 ? kGemmaLocalBase : rope.freq_base;
      ASSIGN_OR_RETURN(rope.freq_base_window, PositiveOr("rope.freq_base_swa", by_default));
    }
    rope.has_freq_factors = file_.FindTensor("rope_freqs.weight") != nullptr;
    RETURN_IF_ERROR(CheckSections());
    return ReadRopeScaling();
  }

  // Sections assign pairs to position axes. For text all axes but the fourth carry the same position, so the rotation
  // is the plain one as long as no pair lies on the fourth.
  absl::Status CheckSections() const {
    const std::string key = Key("rope.dimension_sections");
    const bool wanted = traits_.kind == Architecture::kQwen35 || traits_.kind == Architecture::kQwen35Moe;
    if (!wanted) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::optional<std::vector<int64_t>> sections, file_.GetInts(key));
    if (!sections.has_value()) return Bad("{} is missing", key);
    if (sections->size() == 3) sections->push_back(0);
    if (sections->size() != 4) return Bad("{} has {} elements, 3 or 4 are allowed", key, sections->size());
    const std::vector<int64_t>& s = *sections;
    for (const int64_t count : s) {
      if (count < 0 || count > limits::kMaxHeadDim) return Bad("{} has an element {}", key, count);
    }
    const int64_t sum = s[0] + s[1] + s[2] + s[3];
    if (sum < 1) return Bad("{} is all zero", key);
    for (int pair = 0; pair < shape_.rope.n_rot / 2; ++pair) {
      const int64_t r = pair % sum;
      const int64_t axis_of_remainder[3] = {s[0], s[1], s[2]};
      if (r >= 3 * axis_of_remainder[r % 3]) {
        return Unimplemented("{}: {} puts a pair on the fourth axis, which is not supported", file_.path(), key);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadRopeScaling() {
    RopeShape& rope = shape_.rope;
    ASSIGN_OR_RETURN(const std::optional<std::string> type, file_.GetString(Key("rope.scaling.type")));
    ASSIGN_OR_RETURN(const double old_factor, PositiveOr("rope.scale_linear", 1, true));
    ASSIGN_OR_RETURN(rope.factor, PositiveOr("rope.scaling.factor", old_factor, true));
    ASSIGN_OR_RETURN(rope.attn_factor, PositiveOr("rope.scaling.attn_factor", 1, true));
    const std::string kind = type.value_or("linear");
    if (kind == "none") {
      rope.factor = 1;
    } else if (kind == "linear") {
      rope.scaling = rope.factor == 1 ? RopeScaling::kNone : RopeScaling::kLinear;
    } else if (kind == "yarn") {
      return ReadYarn();
    } else {
      return Unimplemented("{}: {} = '{}' is not supported (none, linear and yarn are)", file_.path(),
                           Key("rope.scaling.type"), kind.substr(0, 40));
    }
    return absl::OkStatus();
  }

  absl::Status ReadYarn() {
    RopeShape& rope = shape_.rope;
    rope.scaling = RopeScaling::kYarn;
    ASSIGN_OR_RETURN(rope.original_context,
                     IntOr("rope.scaling.original_context_length", static_cast<int>(shape_.context_train), 1, 1 << 30));
    ASSIGN_OR_RETURN(rope.yarn_beta_fast, PositiveOr("rope.scaling.yarn_beta_fast", 32));
    ASSIGN_OR_RETURN(rope.yarn_beta_slow, PositiveOr("rope.scaling.yarn_beta_slow", 1));
    ASSIGN_OR_RETURN(rope.yarn_ext_factor, PositiveOr("rope.scaling.yarn_ext_factor", 1));
    ASSIGN_OR_RETURN(const double yarn_attn, PositiveOr("rope.scaling.yarn_attn_factor", 1));
    rope.attn_factor *= yarn_attn;
    if (rope.freq_base <= 1) return Bad("{} must be above 1 for yarn", Key("rope.freq_base"));
    return absl::OkStatus();
  }

  absl::Status ReadScales() {
    shape_.attention_scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim_k));
    if (traits_.scale_key) {
      ASSIGN_OR_RETURN(shape_.attention_scale, PositiveOr("attention.scale", shape_.attention_scale, true));
    }
    if (traits_.kind != Architecture::kGemma3) return absl::OkStatus();
    if (shape_.n_layers == kGemma27bLayers) {
      shape_.attention_scale = 1.0 / std::sqrt(static_cast<double>(shape_.n_embd / shape_.n_head));
    }
    shape_.embedding_scale = std::sqrt(static_cast<double>(shape_.n_embd));
    ASSIGN_OR_RETURN(shape_.final_softcap, PositiveOr("final_logit_softcapping", 0, true));
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary() {
    const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
    if (embedding == nullptr) return Bad("tensor token_embd.weight is missing");
    if (embedding->dims[1] > limits::kMaxVocab) {
      return Bad("token_embd.weight has {} rows, at most {} are allowed", embedding->dims[1], limits::kMaxVocab);
    }
    shape_.n_vocab = static_cast<int>(embedding->dims[1]);
    shape_.tied_output = file_.FindTensor("output.weight") == nullptr;
    if (shape_.tied_output && traits_.kind == Architecture::kGptOss) return Bad("tensor output.weight is missing");
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const ArchitectureTraits& traits_;
  ModelShape shape_;
};

}  // namespace

absl::StatusOr<ModelShape> ReadModelShape(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::optional<std::string> type, file.GetString("general.type"));
  if (type.value_or("model") != "model") {
    return Unimplemented("{}: general.type is '{}', only a model can be run", file.path(), type->substr(0, 40));
  }
  if (file.architecture().empty()) return DataLoss("{}: general.architecture is missing", file.path());
  std::string known;
  for (const ArchitectureTraits& traits : kArchitectures) {
    if (traits.name == file.architecture()) {
      ASSIGN_OR_RETURN(ModelShape shape, ShapeReader(file, traits).Read());
      RETURN_IF_ERROR(CheckTokenizerMetadata(file, shape.n_vocab));
      return shape;
    }
    known += known.empty() ? "" : ", ";
    known += traits.name;
  }
  return Unimplemented("{}: architecture '{}' is not supported (supported: {})", file.path(),
                       file.architecture().substr(0, 40), known);
}

}  // namespace layover
