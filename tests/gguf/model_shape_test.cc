// Hyper-parameters, tensors and rotations of every architecture, and what is refused about them.
#include "common/gguf/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <numbers>
#include <set>

#include "common/gguf/model_identity.h"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"
#include "tests/gguf/shape_models.h"

namespace layover {
namespace {

using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::SmallModel;
using testing::SmallModelOf;
using testing::SmallModels;

constexpr double kPi = std::numbers::pi;

// A llama of two layers: 64 wide, 4 heads of 16 dims on 2 K/V heads. `more` adds keys.
GgufBuilder LlamaKeys() {
  GgufBuilder builder;
  builder.String("general.architecture", "llama").U32("llama.block_count", 2).U32("llama.context_length", 4096);
  builder.U32("llama.embedding_length", 64).U32("llama.feed_forward_length", 96);
  builder.U32("llama.attention.head_count", 4).U32("llama.attention.head_count_kv", 2);
  builder.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  return builder;
}

struct Tensors {
  int layers = 2;
  std::string leave_out;
  std::string replace;
  std::vector<uint64_t> dims;
  uint32_t type = 0;
};

void AddLlamaTensors(const Tensors& how, GgufBuilder* builder) {
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
    if (name == how.leave_out) return;
    const bool replaced = name == how.replace;
    builder->Tensor(name, replaced ? how.dims : dims, replaced ? how.type : 0);
  };
  add("token_embd.weight", {64, 300});
  for (int i = 0; i < how.layers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    add(p + "attn_norm.weight", {64});
    add(p + "attn_q.weight", {64, 64});
    add(p + "attn_k.weight", {64, 32});
    add(p + "attn_v.weight", {64, 32});
    add(p + "attn_output.weight", {64, 64});
    add(p + "ffn_norm.weight", {64});
    add(p + "ffn_gate.weight", {64, 96});
    add(p + "ffn_up.weight", {64, 96});
    add(p + "ffn_down.weight", {96, 64});
  }
  add("output_norm.weight", {64});
}

struct Loaded {
  std::unique_ptr<GgufFile> file;
  absl::StatusOr<ModelShape> shape;
};

Loaded Load(const GgufBuilder& builder) {
  auto file = GgufFile::FromBytes(builder.Build(), "m.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  auto shape = ReadModelShape(**file);
  return {*std::move(file), std::move(shape)};
}

Loaded LoadLlama(const std::function<void(GgufBuilder*)>& more = nullptr, const Tensors& tensors = {}) {
  GgufBuilder builder = LlamaKeys();
  if (more) more(&builder);
  AddLlamaTensors(tensors, &builder);
  return Load(builder);
}

void ExpectRefused(const Loaded& loaded, const std::string& text, absl::StatusCode code = absl::StatusCode::kDataLoss) {
  EXPECT_EQ(loaded.shape.status().code(), code) << loaded.shape.status();
  EXPECT_THAT(std::string(loaded.shape.status().message()), HasSubstr("m.gguf: "));
  EXPECT_THAT(std::string(loaded.shape.status().message()), HasSubstr(text));
}

TEST(ModelShape, ReadsALlamaWithDefaults) {
  const Loaded loaded = LoadLlama();
  ASSERT_TRUE(loaded.shape.ok()) << loaded.shape.status();
  const ModelShape& shape = *loaded.shape;
  EXPECT_EQ(shape.kind, Architecture::kLlama);
  EXPECT_EQ(shape.n_layers, 2);
  EXPECT_EQ(shape.n_embd, 64);
  EXPECT_EQ(shape.n_head, 4);
  EXPECT_EQ(shape.n_head_kv, 2);
  EXPECT_EQ(shape.head_dim_k, 16);
  EXPECT_EQ(shape.head_dim_v, 16);
  EXPECT_EQ(shape.n_ff, 96);
  EXPECT_EQ(shape.n_vocab, 300);
  EXPECT_EQ(shape.context_train, 4096);
  EXPECT_DOUBLE_EQ(shape.rms_eps, 1e-5f);
  EXPECT_DOUBLE_EQ(shape.attention_scale, 0.25);
  EXPECT_EQ(shape.embedding_scale, 1);
  EXPECT_TRUE(shape.tied_output);
  EXPECT_EQ(shape.window, 0);
  EXPECT_EQ(shape.rope.n_rot, 16);
  EXPECT_EQ(shape.rope.freq_base, 10000);
  EXPECT_EQ(shape.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(shape.experts.count, 0);
  ASSERT_EQ(shape.layers.size(), 2u);
  EXPECT_EQ(shape.layers[1].kind, LayerKind::kFullAttention);
}

TEST(ModelShape, ReadsTheDemoModel) {
  const std::string path = LAYOVER_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is not there; check fetches it";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->total_bytes(), 98'362'432u);
  const auto shape = ReadModelShape(**file);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->n_layers, 30);
  EXPECT_EQ(shape->n_embd, 576);
  EXPECT_EQ(shape->n_head, 9);
  EXPECT_EQ(shape->n_head_kv, 3);
  EXPECT_EQ(shape->head_dim_k, 64);
  EXPECT_EQ(shape->n_vocab, 49152);
  EXPECT_TRUE(shape->tied_output);
  EXPECT_EQ(shape->rope.freq_base, 100000);
  int q4_1 = 0;
  for (const GgufTensor& tensor : (*file)->tensors()) q4_1 += tensor.type == static_cast<uint32_t>(WeightType::kQ4_1);
  EXPECT_EQ(q4_1, 210);
  EXPECT_EQ((*file)->FindTensor("token_embd.weight")->type, static_cast<uint32_t>(WeightType::kQ8_0));
  const auto identity = ReadModelIdentity(**file, *shape, "f16");
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->weights.size(), 32u);
}

TEST(ModelShape, RefusesOtherFiles) {
  ExpectRefused(Load(GgufBuilder().U32("x", 1)), "general.architecture is missing");
  ExpectRefused(Load(GgufBuilder().String("general.architecture", "falcon")), "architecture 'falcon' is not supported",
                absl::StatusCode::kUnimplemented);
  ExpectRefused(Load(GgufBuilder().String("general.architecture", "llama").String("general.type", "mmproj")),
                "general.type is 'mmproj'", absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(LoadLlama([](GgufBuilder* b) { b->String("general.type", "model"); }).shape.ok());
}

TEST(ModelShape, EveryNeededKeyIsNeeded) {
  const std::vector<std::string> needed = {"block_count",          "context_length",
                                           "embedding_length",     "feed_forward_length",
                                           "attention.head_count", "attention.layer_norm_rms_epsilon"};
  for (const std::string& missing : needed) {
    GgufBuilder builder;
    builder.String("general.architecture", "llama");
    for (const std::string& key : needed) {
      if (key == missing) continue;
      if (key.ends_with("epsilon")) {
        builder.F32("llama." + key, 1e-5f);
      } else {
        builder.U32("llama." + key, key == "block_count" ? 2 : key.ends_with("head_count") ? 4 : 64);
      }
    }
    builder.Tensor("token_embd.weight", {64, 300}, 0);
    ExpectRefused(Load(builder), "llama." + missing);
  }
}

TEST(ModelShape, RefusesValuesOutOfRange) {
  struct Case {
    const char* key;
    uint32_t value;
  };
  for (const Case& c :
       {Case{"block_count", 0}, Case{"block_count", 1025}, Case{"embedding_length", 0},
        Case{"embedding_length", 1u << 31}, Case{"context_length", 0}, Case{"feed_forward_length", 0},
        Case{"attention.head_count", 0}, Case{"attention.head_count", 4096}, Case{"attention.head_count_kv", 0},
        Case{"attention.head_count_kv", 3}, Case{"attention.head_count_kv", 8}}) {
    GgufBuilder builder;
    builder.String("general.architecture", "llama").F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (const auto& [key, value] : {std::pair<std::string, uint32_t>{"block_count", 2},
                                     {"embedding_length", 64},
                                     {"context_length", 64},
                                     {"feed_forward_length", 96},
                                     {"attention.head_count", 4},
                                     {"attention.head_count_kv", 2}}) {
      builder.U32("llama." + key, key == c.key ? c.value : value);
    }
    AddLlamaTensors({}, &builder);
    EXPECT_EQ(Load(builder).shape.status().code(), absl::StatusCode::kDataLoss) << c.key << " " << c.value;
  }
  for (const float eps : {0.0f, -1e-5f, 1.0f, INFINITY}) {
    GgufBuilder builder;
    builder.String("general.architecture", "llama").U32("llama.block_count", 2).U32("llama.context_length", 4096);
    builder.U32("llama.embedding_length", 64).F32("llama.attention.layer_norm_rms_epsilon", eps);
    ExpectRefused(Load(builder), "llama.attention.layer_norm_rms_epsilon");
  }
}

TEST(ModelShape, PerLayerArraysAreTaken) {
  GgufBuilder builder;
  builder.String("general.architecture", "llama").U32("llama.block_count", 2).U32("llama.context_length", 4096);
  builder.U32("llama.embedding_length", 64).F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  GgufBuilder good = builder;
  good.I32s("llama.feed_forward_length", {96, 32}).I32s("llama.attention.head_count", {4, 4});
  good.I32s("llama.attention.head_count_kv", {2, 1});
  AddLlamaTensors({.layers = 1}, &good);
  for (const auto& [leaf, dims] : std::vector<std::pair<std::string, std::vector<uint64_t>>>{{"attn_norm", {64}},
                                                                                             {"attn_q", {64, 64}},
                                                                                             {"attn_k", {64, 16}},
                                                                                             {"attn_v", {64, 16}},
                                                                                             {"attn_output", {64, 64}},
                                                                                             {"ffn_norm", {64}},
                                                                                             {"ffn_gate", {64, 32}},
                                                                                             {"ffn_up", {64, 32}},
                                                                                             {"ffn_down", {32, 64}}}) {
    good.Tensor("blk.1." + leaf + ".weight", dims, 0);
  }
  const Loaded loaded = Load(good);
  ASSERT_TRUE(loaded.shape.ok()) << loaded.shape.status();
  EXPECT_EQ(loaded.shape->layers[0].n_head_kv, 2);
  EXPECT_EQ(loaded.shape->layers[1].n_head_kv, 1);
  EXPECT_EQ(loaded.shape->layers[1].n_ff, 32);
  EXPECT_EQ(loaded.shape->n_ff, 96);
  ExpectRefused(Load(builder.I32s("llama.attention.head_count", {4, 4, 4})),
                "llama.attention.head_count has 3 elements for 2 layers");
}

TEST(ModelShape, NamesTheTensorThatIsWrong) {
  ExpectRefused(LoadLlama(nullptr, {.leave_out = "blk.1.attn_k.weight"}), "tensor blk.1.attn_k.weight is missing");
  ExpectRefused(LoadLlama(nullptr, {.leave_out = "output_norm.weight"}), "tensor output_norm.weight is missing");
  ExpectRefused(LoadLlama(nullptr, {.leave_out = "token_embd.weight"}), "tensor token_embd.weight is missing");
  ExpectRefused(LoadLlama(nullptr, {.replace = "blk.0.attn_k.weight", .dims = {64, 64}}),
                "tensor blk.0.attn_k.weight has the dimensions {64, 64}, expected {64, 32}");
  ExpectRefused(LoadLlama(nullptr, {.replace = "blk.0.attn_k.weight", .dims = {32, 64}}), "expected {64, 32}");
  ExpectRefused(LoadLlama(nullptr, {.replace = "token_embd.weight", .dims = {32, 300}}), "expected {64, 300}");
  ExpectRefused(LoadLlama(nullptr, {.replace = "blk.0.ffn_norm.weight", .dims = {64}, .type = 1}),
                "tensor blk.0.ffn_norm.weight is F16, it must be F32", absl::StatusCode::kUnimplemented);
  ExpectRefused(LoadLlama(nullptr, {.layers = 1}), "tensor blk.1.attn_norm.weight is missing");
}

TEST(ModelShape, RefusesTensorsThatNobodyReads) {
  for (const char* name : {"blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight", "rope_factors_long.weight",
                           "blk.0.ffn_gate.0.weight", "blk.x", "blk.99999999999.y"}) {
    ExpectRefused(LoadLlama([&](GgufBuilder* b) { b->Tensor(name, {64}, 0); }),
                  std::string("tensor ") + name + " is not known in the architecture llama",
                  absl::StatusCode::kUnimplemented);
  }
  EXPECT_TRUE(LoadLlama([](GgufBuilder* b) { b->Tensor("blk.0.attn_q.bias", {64}, 0); }).shape.ok());
  EXPECT_TRUE(LoadLlama([](GgufBuilder* b) { b->Tensor("rope_freqs.weight", {8}, 0); }).shape.ok());
  EXPECT_FALSE(LoadLlama([](GgufBuilder* b) { b->Tensor("rope_freqs.weight", {16}, 0); }).shape.ok());
  const Loaded untied = LoadLlama([](GgufBuilder* b) { b->Tensor("output.weight", {64, 300}, 0); });
  ASSERT_TRUE(untied.shape.ok());
  EXPECT_FALSE(untied.shape->tied_output);
}

TEST(ModelShape, RefusesWhatWouldChangeTheArithmetic) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->F32("llama.attn_logit_softcapping", 50); }),
                "llama.attn_logit_softcapping = 50", unimplemented);
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->F32("llama.logit_scale", 2); }), "llama.logit_scale = 2",
                unimplemented);
  EXPECT_TRUE(LoadLlama([](GgufBuilder* b) { b->F32("llama.logit_scale", 1); }).shape.ok());
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->Bool("llama.attention.causal", false); }), "causal", unimplemented);
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->String("llama.rope.scaling.type", "longrope"); }), "'longrope'",
                unimplemented);
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->U32("llama.rope.dimension_count", 8); }),
                "llama.rope.dimension_count is 8, the head has 16 dims");
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->U32("llama.rope.dimension_count", 15); }), "odd");
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->U32("llama.rope.dimension_count", 18); }), "allowed are 2 to 16");
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->F32("llama.rope.freq_base", 0); }), "it must be positive");
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->F32("llama.rope.scaling.factor", -1); }), "it must be positive");
  ExpectRefused(LoadLlama([](GgufBuilder* b) { b->U32("llama.attention.value_length", 8); }), "not supported",
                unimplemented);
}

TEST(ModelShape, ChecksTheExpertCounts) {
  const SmallModel model = SmallModelOf("llama");
  const Loaded loaded = Load(model.Builder());
  ASSERT_TRUE(loaded.shape.ok()) << loaded.shape.status();
  EXPECT_EQ(loaded.shape->experts.count, 8);
  EXPECT_EQ(loaded.shape->experts.used, 2);
  EXPECT_EQ(loaded.shape->experts.n_ff, 48);
  EXPECT_EQ(loaded.shape->n_ff, 0);
  GgufBuilder greedy = LlamaKeys();
  greedy.U32("llama.expert_count", 8).U32("llama.expert_used_count", 9);
  ExpectRefused(Load(greedy), "llama.expert_used_count is 9, allowed are 1 to 8");
  GgufBuilder sigmoid = model.keys;
  ExpectRefused(Load(sigmoid.U32("llama.expert_gating_func", 2)), "expert_gating_func = 2",
                absl::StatusCode::kUnimplemented);
}

// --- Tokenizer metadata

TEST(TokenizerMetadata, IsChecked) {
  const auto with = [](const std::function<void(GgufBuilder*)>& more) {
    return LoadLlama([&](GgufBuilder* b) {
      b->String("tokenizer.ggml.model", "gpt2");
      more(b);
    });
  };
  const auto tokens = [](GgufBuilder* b) -> GgufBuilder& {
    return b->Strings("tokenizer.ggml.tokens", {"a", "b", "ab"});
  };
  const auto merges = [](GgufBuilder* b) -> GgufBuilder& { return b->Strings("tokenizer.ggml.merges", {"a b"}); };
  EXPECT_TRUE(with([&](GgufBuilder* b) { merges(&tokens(b)); }).shape.ok());
  ExpectRefused(with([&](GgufBuilder* b) { tokens(b); }), "tokenizer.ggml.merges is missing or empty");
  ExpectRefused(with([&](GgufBuilder* b) { tokens(b).Strings("tokenizer.ggml.merges", {}); }), "missing or empty");
  ExpectRefused(with([&](GgufBuilder* b) {
                  merges(&b->Strings("tokenizer.ggml.tokens", {"a", "b", "a"}));
                }),
                "token 2 has the same text");
  ExpectRefused(with([&](GgufBuilder* b) { merges(&b->Strings("tokenizer.ggml.tokens", {})); }), "has 0 tokens");
  ExpectRefused(with([&](GgufBuilder* b) {
                  std::vector<std::string> many;
                  for (int i = 0; i < 301; ++i) many.push_back(std::to_string(i));
                  merges(&b->Strings("tokenizer.ggml.tokens", many));
                }),
                "has 301 tokens, token_embd.weight has 300 rows");
  ExpectRefused(with([&](GgufBuilder* b) {
                  merges(&tokens(b)).I32s("tokenizer.ggml.token_type", {1, 1});
                }),
                "tokenizer.ggml.token_type has 2 elements for 3 tokens");
  ExpectRefused(with([&](GgufBuilder* b) { merges(&tokens(b)).F32s("tokenizer.ggml.scores", {1}); }),
                "tokenizer.ggml.scores has 1 elements");
  ExpectRefused(with([&](GgufBuilder* b) { merges(&tokens(b)).U32("tokenizer.ggml.eos_token_id", 3); }),
                "tokenizer.ggml.eos_token_id is 3, there are 3 tokens");
  EXPECT_TRUE(with([&](GgufBuilder* b) { merges(&tokens(b)).U32("tokenizer.ggml.padding_token_id", ~0u); }).shape.ok());
  ExpectRefused(LoadLlama([&](GgufBuilder* b) { merges(&tokens(b)); }), "tokenizer.ggml.model is missing");
  ExpectRefused(with([&](GgufBuilder* b) {
                  merges(&tokens(b)).String("tokenizer.chat_template", std::string((1 << 20) + 1, 'x'));
                }),
                "tokenizer.chat_template has 1048577 bytes");
}

// --- The other architectures: their tensors as the facts about them say, written out by hand in shape_models.cc.

TEST(ModelShape, ReadsEveryArchitecture) {
  for (const SmallModel& model : SmallModels()) {
    const Loaded loaded = Load(model.Builder());
    ASSERT_TRUE(loaded.shape.ok()) << model.architecture << ": " << loaded.shape.status();
    EXPECT_EQ(loaded.shape->architecture, model.architecture);
    std::vector<LayerKind> kinds;
    for (const LayerShape& layer : loaded.shape->layers) kinds.push_back(layer.kind);
    EXPECT_EQ(kinds, model.kinds) << model.architecture;
    EXPECT_NEAR(loaded.shape->attention_scale, model.attention_scale, 1e-9) << model.architecture;
  }
}

TEST(ModelShape, EveryTensorOfEveryArchitectureIsNeeded) {
  for (const SmallModel& model : SmallModels()) {
    for (const auto& [name, dims] : model.tensors) {
      const absl::Status status = Load(model.Builder(name)).shape.status();
      EXPECT_THAT(std::string(status.message()), HasSubstr("tensor " + name + " is missing")) << model.architecture;
    }
    EXPECT_GE(model.tensors.size(), 20u);
  }
}

TEST(ModelShape, TensorsComeInOneOrderWithUniqueRoles) {
  for (const SmallModel& model : SmallModels()) {
    const Loaded loaded = Load(model.Builder());
    const std::vector<BoundTensor> bound = BindTensors(*loaded.file, LayerTensors(*loaded.shape, 1));
    std::set<std::string> roles;
    for (const BoundTensor& tensor : bound) {
      EXPECT_TRUE(roles.insert(tensor.spec.role).second) << tensor.spec.role;
      EXPECT_EQ(tensor.tensor->name, tensor.spec.gguf_name);
    }
    EXPECT_EQ(bound[0].spec.role, "attn_norm");
  }
}

// The keys of shape_models' qwen35, with `blocks` layers and other position sections.
GgufBuilder Qwen35Keys(uint32_t blocks, const std::vector<int32_t>& sections) {
  GgufBuilder keys;
  keys.String("general.architecture", "qwen35").U32("qwen35.block_count", blocks).U32("qwen35.context_length", 4096);
  keys.U32("qwen35.embedding_length", 64).U32("qwen35.feed_forward_length", 96);
  keys.U32("qwen35.attention.head_count", 4).U32("qwen35.attention.head_count_kv", 2);
  keys.U32("qwen35.attention.key_length", 32).U32("qwen35.attention.value_length", 32);
  keys.F32("qwen35.attention.layer_norm_rms_epsilon", 1e-6f).U32("qwen35.ssm.conv_kernel", 4);
  keys.U32("qwen35.ssm.state_size", 16).U32("qwen35.ssm.group_count", 2).U32("qwen35.ssm.time_step_rank", 4);
  keys.U32("qwen35.ssm.inner_size", 64).U32("qwen35.rope.dimension_count", 16);
  return keys.I32s("qwen35.rope.dimension_sections", sections);
}

TEST(ModelShape, SkipsNextTokenPredictionBlocks) {
  const SmallModel model = SmallModelOf("qwen35");
  GgufBuilder builder = Qwen35Keys(5, {3, 3, 2});
  builder.U32("qwen35.nextn_predict_layers", 1);
  for (const auto& [name, dims] : model.tensors) builder.Tensor(name, dims, 0);
  builder.Tensor("blk.4.nextn.eh_proj.weight", {128, 64}, 0);
  const Loaded loaded = Load(builder);
  ASSERT_TRUE(loaded.shape.ok()) << loaded.shape.status();
  EXPECT_EQ(loaded.shape->n_layers, 4);
  EXPECT_EQ(loaded.shape->n_extra_blocks, 1);
  EXPECT_EQ(loaded.shape->layers.size(), 4u);
  ExpectRefused(Load(builder.Tensor("blk.5.nextn.eh_proj.weight", {128, 64}, 0)), "blk.5.nextn.eh_proj.weight",
                absl::StatusCode::kUnimplemented);
}

TEST(ModelShape, ChecksTheHybridSizes) {
  const auto with = [](const std::function<void(GgufBuilder*)>& more) {
    GgufBuilder builder;
    builder.String("general.architecture", "qwen3next").U32("qwen3next.block_count", 4);
    builder.U32("qwen3next.context_length", 4096).U32("qwen3next.embedding_length", 64);
    builder.F32("qwen3next.attention.layer_norm_rms_epsilon", 1e-6f).U32("qwen3next.expert_count", 8);
    builder.U32("qwen3next.expert_used_count", 2).U32("qwen3next.expert_feed_forward_length", 48);
    builder.U32("qwen3next.expert_shared_feed_forward_length", 32).U32("qwen3next.ssm.conv_kernel", 4);
    builder.U32("qwen3next.ssm.state_size", 16).U32("qwen3next.ssm.group_count", 2);
    more(&builder);
    return Load(builder);
  };
  ExpectRefused(
      with([](GgufBuilder* b) { b->U32("qwen3next.ssm.time_step_rank", 5).U32("qwen3next.ssm.inner_size", 80); }),
      "qwen3next.ssm.time_step_rank 5 is no multiple of qwen3next.ssm.group_count 2");
  ExpectRefused(
      with([](GgufBuilder* b) { b->U32("qwen3next.ssm.time_step_rank", 4).U32("qwen3next.ssm.inner_size", 65); }),
      "qwen3next.ssm.inner_size is 65, time_step_rank x state_size is 64");
}

TEST(ModelShape, PositionSectionsMustNotUseTheFourthAxis) {
  for (const auto& [sections, good] : std::vector<std::pair<std::vector<int32_t>, bool>>{{{3, 3, 2, 0}, true},
                                                                                         {{3, 3, 2}, true},
                                                                                         {{2, 3, 3, 0}, false},
                                                                                         {{3, 2, 2, 1}, false},
                                                                                         {{0, 0, 0, 0}, false},
                                                                                         {{-1, 3, 2, 0}, false},
                                                                                         {{8}, false}}) {
    SmallModel model = SmallModelOf("qwen35");
    model.keys = Qwen35Keys(4, sections);
    EXPECT_EQ(Load(model.Builder()).shape.ok(), good) << ::testing::PrintToString(sections);
  }
}

// --- Rotation

TEST(RopeFrequencies, FollowTheBase) {
  const Loaded loaded = LoadLlama([](GgufBuilder* b) { b->F32("llama.rope.freq_base", 500000); });
  const auto frequencies = RopeFrequencies(*loaded.shape, *loaded.file);
  ASSERT_TRUE(frequencies.ok());
  ASSERT_EQ(frequencies->size(), 8u);
  for (int p = 0; p < 8; ++p) EXPECT_NEAR((*frequencies)[p], std::exp(-2.0 * p / 16 * std::log(500000.0)), 1e-15);
  EXPECT_EQ(RopeMagnitude(*loaded.shape), 1);
}

TEST(RopeFrequencies, LinearScalingDivides) {
  for (const bool old_key : {false, true}) {
    const Loaded loaded = LoadLlama(
        [&](GgufBuilder* b) { b->F32(old_key ? "llama.rope.scale_linear" : "llama.rope.scaling.factor", 4); });
    EXPECT_EQ(loaded.shape->rope.scaling, RopeScaling::kLinear);
    const auto frequencies = RopeFrequencies(*loaded.shape, *loaded.file);
    EXPECT_DOUBLE_EQ((*frequencies)[0], 0.25);
    EXPECT_NEAR((*frequencies)[4], 0.01 / 4, 1e-15);
  }
  const Loaded none = LoadLlama(
      [](GgufBuilder* b) { b->F32("llama.rope.scaling.factor", 4).String("llama.rope.scaling.type", "none"); });
  EXPECT_DOUBLE_EQ((*RopeFrequencies(*none.shape, *none.file))[0], 1);
}

TEST(RopeFrequencies, FactorsDivide) {
  const std::vector<float> factors = {1, 1, 1, 2, 4, 8, 8, 8};
  const auto with = [](const std::vector<float>& values) {
    return LoadLlama([&](GgufBuilder* b) {
      b->Tensor("rope_freqs.weight", {8}, 0, testing::EncodeWeights(values, WeightType::kF32));
    });
  };
  const Loaded loaded = with(factors);
  const auto frequencies = RopeFrequencies(*loaded.shape, *loaded.file);
  for (int p = 0; p < 8; ++p) EXPECT_NEAR((*frequencies)[p], std::pow(10000, -p / 8.0) / factors[p], 1e-15);
  for (const float bad : {0.0f, -1.0f, NAN, INFINITY}) {
    const Loaded damaged = with({1, 1, 1, bad, 1, 1, 1, 1});
    EXPECT_EQ(RopeFrequencies(*damaged.shape, *damaged.file).status().code(), absl::StatusCode::kDataLoss);
  }
}

// gpt-oss's published setting: 64 dims, base 150000, factor 32 of 4096 positions. Between dim(32) and dim(1) the
// frequencies pass from unscaled to fully scaled.
TEST(RopeFrequencies, YarnBlends) {
  ModelShape shape;
  shape.rope.n_rot = 64;
  shape.rope.freq_base = 150000;
  shape.rope.scaling = RopeScaling::kYarn;
  shape.rope.factor = 32;
  shape.rope.original_context = 4096;
  shape.rope.yarn_ext_factor = 1;
  shape.rope.yarn_beta_fast = 32;
  shape.rope.yarn_beta_slow = 1;
  const auto file = GgufFile::FromBytes(GgufBuilder().U32("x", 1).Build(), "m.gguf");
  const auto frequencies = RopeFrequencies(shape, **file);
  ASSERT_TRUE(frequencies.ok());
  // dim(32) = 32 ln(4096 / (64 pi)) / ln(150000) = 8.09 -> 8; dim(1) = 32 ln(4096 / (2 pi)) / ln(150000) = 17.40 -> 18.
  ASSERT_NEAR(32 * std::log(4096 / (64 * kPi)) / std::log(150000.0), 8.09, 0.01);
  ASSERT_NEAR(32 * std::log(4096 / (2 * kPi)) / std::log(150000.0), 17.40, 0.01);
  for (int p = 0; p < 32; ++p) {
    const double plain = std::pow(150000.0, -p / 32.0);
    const double kept = p <= 8 ? 1 : p >= 18 ? 0 : (18 - p) / 10.0;
    EXPECT_NEAR((*frequencies)[p], plain * (kept + (1 - kept) / 32), 1e-12) << p;
  }
  EXPECT_NEAR(RopeMagnitude(shape), 1 + 0.1 * std::log(32.0), 1e-12);
  shape.rope.attn_factor = 2;
  EXPECT_NEAR(RopeMagnitude(shape), 2 + 0.2 * std::log(32.0), 1e-12);
}

TEST(RopeFrequencies, WindowLayersHaveTheirOwnBaseAndNoScaling) {
  const Loaded loaded = Load(SmallModelOf("gemma3").Builder());
  const auto full = RopeFrequencies(*loaded.shape, *loaded.file, LayerKind::kFullAttention);
  const auto window = RopeFrequencies(*loaded.shape, *loaded.file, LayerKind::kSlidingWindow);
  EXPECT_DOUBLE_EQ((*full)[0], 0.125);
  EXPECT_DOUBLE_EQ((*window)[0], 1);
  EXPECT_NEAR((*full)[4], 0.125 / std::sqrt(1e6), 1e-12);
  EXPECT_NEAR((*window)[4], 0.01, 1e-12);
}

// --- Weight types

TEST(WeightTypes, SizesAndNames) {
  EXPECT_EQ(WeightTypeName(WeightType::kQ4_1), "Q4_1");
  EXPECT_EQ(WeightBytes(WeightType::kQ4_1, 3, 64), 3u * 2 * 20);
  EXPECT_EQ(WeightBytes(WeightType::kQ6_K, 2, 512), 2u * 2 * 210);
  EXPECT_EQ(WeightBytes(WeightType::kF16, 2, 3), 12u);
  EXPECT_EQ(WeightTypeInfo(43), nullptr);
  EXPECT_EQ(WeightTypeInfo(4), nullptr);
  uint32_t last = 0;
  for (const WeightTypeTraits& traits : AllWeightTypes()) {
    EXPECT_TRUE(traits.id == 0 || traits.id > last) << "the table is searched by bisection";
    last = traits.id;
    EXPECT_EQ(WeightTypeInfo(traits.id), &traits);
    EXPECT_EQ(256 % traits.block_elements, 0);
  }
}

}  // namespace
}  // namespace layover
