#include "tests/gguf/shape_models.h"

#include "common/check.h"

namespace layover::testing {
namespace {

using Dims = std::vector<uint64_t>;
using Leaves = std::vector<std::pair<std::string, Dims>>;

constexpr uint64_t kEmbd = 64, kVocab = 300;

struct KeySet {
  std::string arch;
  uint32_t layers = 2;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 16;
  uint32_t ff = 96;
};

SmallModel Start(const KeySet& set) {
  SmallModel model;
  model.architecture = set.arch;
  const std::string p = set.arch + ".";
  model.keys.String("general.architecture", set.arch).U32(p + "block_count", set.layers);
  model.keys.U32(p + "context_length", 4096).U32(p + "embedding_length", kEmbd);
  if (set.ff > 0) model.keys.U32(p + "feed_forward_length", set.ff);
  model.keys.U32(p + "attention.head_count", set.heads).U32(p + "attention.head_count_kv", set.kv_heads);
  model.keys.U32(p + "attention.key_length", set.head_dim).U32(p + "attention.value_length", set.head_dim);
  model.keys.F32(p + "attention.layer_norm_rms_epsilon", 1e-6f);
  model.tensors = {{"token_embd.weight", {kEmbd, kVocab}}, {"output_norm.weight", {kEmbd}}};
  model.kinds.assign(set.layers, LayerKind::kFullAttention);
  return model;
}

void AddLayer(SmallModel* model, int layer, const Leaves& leaves) {
  for (const auto& [leaf, dims] : leaves) model->tensors.push_back({"blk." + std::to_string(layer) + "." + leaf, dims});
}

const Leaves kDense = {{"ffn_gate.weight", {64, 96}}, {"ffn_up.weight", {64, 96}}, {"ffn_down.weight", {96, 64}}};
const Leaves kExperts = {{"ffn_gate_inp.weight", {64, 8}},
                         {"ffn_gate_exps.weight", {64, 48, 8}},
                         {"ffn_up_exps.weight", {64, 48, 8}},
                         {"ffn_down_exps.weight", {48, 64, 8}}};
const Leaves kShared = {{"ffn_gate_inp_shexp.weight", {64}},
                        {"ffn_gate_shexp.weight", {64, 32}},
                        {"ffn_up_shexp.weight", {64, 32}},
                        {"ffn_down_shexp.weight", {32, 64}}};
const Leaves kAttention = {{"attn_norm.weight", {64}},
                           {"attn_q.weight", {64, 64}},
                           {"attn_k.weight", {64, 32}},
                           {"attn_v.weight", {64, 32}},
                           {"attn_output.weight", {64, 64}}};
const Leaves kQkNorm = {{"attn_q_norm.weight", {16}}, {"attn_k_norm.weight", {16}}};

SmallModel LlamaMoe() {
  SmallModel model = Start({.arch = "llama", .ff = 48});
  model.keys.U32("llama.expert_count", 8).U32("llama.expert_used_count", 2);
  model.attention_scale = 0.25;
  for (int i = 0; i < 2; ++i) {
    AddLayer(&model, i, kAttention);
    AddLayer(&model, i, {{"ffn_norm.weight", {64}}});
    AddLayer(&model, i, kExperts);
  }
  return model;
}

SmallModel Qwen2() {
  SmallModel model = Start({.arch = "qwen2"});
  model.attention_scale = 0.25;
  for (int i = 0; i < 2; ++i) {
    AddLayer(&model, i, kAttention);
    AddLayer(&model, i,
             {{"attn_q.bias", {64}}, {"attn_k.bias", {32}}, {"attn_v.bias", {32}}, {"ffn_norm.weight", {64}}});
    AddLayer(&model, i, kDense);
  }
  return model;
}

SmallModel Qwen3(const std::string& arch, bool experts) {
  SmallModel model = Start({.arch = arch});
  model.attention_scale = 0.25;
  if (experts) {
    model.keys.U32(arch + ".expert_count", 8).U32(arch + ".expert_used_count", 2);
    model.keys.U32(arch + ".expert_feed_forward_length", 48);
  }
  for (int i = 0; i < 2; ++i) {
    AddLayer(&model, i, kAttention);
    AddLayer(&model, i, kQkNorm);
    AddLayer(&model, i, {{"ffn_norm.weight", {64}}});
    AddLayer(&model, i, experts ? kExperts : kDense);
  }
  return model;
}

SmallModel Gemma3() {
  SmallModel model = Start({.arch = "gemma3", .layers = 3});
  model.keys.U32("gemma3.attention.sliding_window", 32).U32("gemma3.attention.sliding_window_pattern", 3);
  model.keys.F32("gemma3.rope.freq_base", 1e6f).F32("gemma3.rope.scaling.factor", 8);
  model.keys.String("gemma3.rope.scaling.type", "linear");
  model.attention_scale = 0.25;
  model.kinds = {LayerKind::kSlidingWindow, LayerKind::kSlidingWindow, LayerKind::kFullAttention};
  for (int i = 0; i < 3; ++i) {
    AddLayer(&model, i, kAttention);
    AddLayer(&model, i, kQkNorm);
    AddLayer(&model, i,
             {{"post_attention_norm.weight", {64}}, {"ffn_norm.weight", {64}}, {"post_ffw_norm.weight", {64}}});
    AddLayer(&model, i, kDense);
  }
  return model;
}

// Two key heads and four value heads of 16 dims: channels 2 * 2 * 16 + 4 * 16 = 128. Attention heads of 32 dims with a
// gate beside each query: 2 * 4 * 32 = 256 rows.
SmallModel Hybrid(const std::string& arch, bool experts) {
  SmallModel model = Start({.arch = arch, .layers = 4, .head_dim = 32, .ff = experts ? 0u : 96u});
  const std::string p = arch + ".";
  model.keys.U32(p + "ssm.conv_kernel", 4).U32(p + "ssm.state_size", 16).U32(p + "ssm.group_count", 2);
  model.keys.U32(p + "ssm.time_step_rank", 4).U32(p + "ssm.inner_size", 64).U32(p + "rope.dimension_count", 16);
  if (arch != "qwen3next") model.keys.I32s(p + "rope.dimension_sections", {3, 3, 2, 0});
  if (experts) {
    model.keys.U32(p + "expert_count", 8).U32(p + "expert_used_count", 2).U32(p + "expert_feed_forward_length", 48);
    model.keys.U32(p + "expert_shared_feed_forward_length", 32);
  }
  model.attention_scale = 0.17677669529663689;
  model.kinds = {LayerKind::kRecurrent, LayerKind::kRecurrent, LayerKind::kRecurrent, LayerKind::kFullAttention};
  for (int i = 0; i < 4; ++i) {
    AddLayer(&model, i, {{"attn_norm.weight", {64}}, {"post_attention_norm.weight", {64}}});
    if (i == 3) {
      AddLayer(&model, i, {{"attn_q.weight", {64, 256}}, {"attn_k.weight", {64, 64}}, {"attn_v.weight", {64, 64}}});
      AddLayer(&model, i,
               {{"attn_output.weight", {128, 64}}, {"attn_q_norm.weight", {32}}, {"attn_k_norm.weight", {32}}});
    } else {
      AddLayer(&model, i,
               {{"attn_qkv.weight", {64, 128}}, {"attn_gate.weight", {64, 64}}, {"ssm_out.weight", {64, 64}}});
      AddLayer(&model, i,
               {{"ssm_conv1d.weight", {4, 128}}, {"ssm_a", {4}}, {"ssm_dt.bias", {4}}, {"ssm_norm.weight", {16}}});
      if (arch == "qwen3next") {
        AddLayer(&model, i, {{"ssm_ba.weight", {64, 8}}});
      } else {
        AddLayer(&model, i, {{"ssm_beta.weight", {64, 4}}, {"ssm_alpha.weight", {64, 4}}});
      }
    }
    AddLayer(&model, i, experts ? kExperts : kDense);
    if (experts) AddLayer(&model, i, kShared);
  }
  return model;
}

SmallModel GptOss() {
  SmallModel model = Start({.arch = "gpt-oss", .ff = 0});
  model.keys.U32("gpt-oss.expert_count", 8).U32("gpt-oss.expert_used_count", 2);
  model.keys.U32("gpt-oss.expert_feed_forward_length", 48).U32("gpt-oss.attention.sliding_window", 128);
  model.keys.String("gpt-oss.rope.scaling.type", "yarn").F32("gpt-oss.rope.scaling.factor", 32);
  model.keys.U32("gpt-oss.rope.scaling.original_context_length", 4096).F32("gpt-oss.rope.freq_base", 150000);
  model.attention_scale = 0.25;
  model.kinds = {LayerKind::kSlidingWindow, LayerKind::kFullAttention};
  model.tensors.push_back({"output.weight", {kEmbd, kVocab}});
  for (int i = 0; i < 2; ++i) {
    AddLayer(&model, i, kAttention);
    AddLayer(&model, i, kExperts);
    AddLayer(&model, i,
             {{"attn_q.bias", {64}}, {"attn_k.bias", {32}}, {"attn_v.bias", {32}}, {"attn_output.bias", {64}}});
    AddLayer(&model, i, {{"attn_sinks.weight", {4}}, {"post_attention_norm.weight", {64}}, {"ffn_gate_inp.bias", {8}}});
    AddLayer(&model, i,
             {{"ffn_gate_exps.bias", {48, 8}}, {"ffn_up_exps.bias", {48, 8}}, {"ffn_down_exps.bias", {64, 8}}});
  }
  return model;
}

}  // namespace

GgufBuilder SmallModel::Builder(const std::string& without) const {
  GgufBuilder builder = keys;
  for (const auto& [name, dims] : tensors) {
    if (name != without) builder.Tensor(name, dims, static_cast<uint32_t>(WeightType::kF32));
  }
  return builder;
}

std::vector<SmallModel> SmallModels() {
  return {LlamaMoe(),
          Qwen2(),
          Qwen3("qwen3", false),
          Qwen3("qwen3moe", true),
          Gemma3(),
          Hybrid("qwen3next", true),
          Hybrid("qwen35", false),
          Hybrid("qwen35moe", true),
          GptOss()};
}

SmallModel SmallModelOf(const std::string& architecture) {
  for (SmallModel& model : SmallModels()) {
    if (model.architecture == architecture) return std::move(model);
  }
  LAYOVER_CHECK(false);
  return {};
}

}  // namespace layover::testing
