// Layers and memory of every stage, from headers alone.
#include "common/plan/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "common/gguf/weight_types.h"
#include "common/plan/report.h"
#include "nlohmann/json.hpp"
#include "tests/common/plan_fixture.h"
#include "tests/gguf/gguf_builder.h"

namespace layover {
namespace {

using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TinyLlamaOptions;

// `layers`: "" for automatic, else one "a-b" per stage.
Topology StagesOf(const std::vector<std::string>& layers, const std::string& more = "") {
  std::string text = "model: m.gguf\n" + more + "stages:\n";
  for (const std::string& range : layers)
    text += "  - {device: cpu" + (range.empty() ? "" : ", layers: " + range) + "}\n";
  auto topology = ParseTopology(text, "t.yaml");
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *std::move(topology);
}

std::vector<LayerRange> RangesOf(const Plan& plan) {
  std::vector<LayerRange> ranges;
  for (const StagePlan& stage : plan.stages) ranges.push_back(stage.layers);
  return ranges;
}

TEST(StagePlan, CountsWhatEachStageHolds) {
  const Model model = LoadTiny({.layers = 3, .tied = false});
  const Topology topology = StagesOf({"0-0", "1-2"}, "context: 100\nsessions: 3\nchunk: 64\n");
  const auto plan = MakePlan(topology, *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->n_pages, 3 * 2);
  EXPECT_EQ(plan->n_window_pages, 0);
  EXPECT_EQ(plan->n_state_slots, 0);
  EXPECT_EQ(plan->step_rows, 64 + 3);
  ASSERT_EQ(plan->stages.size(), 2u);
  const StagePlan& first = plan->stages[0];
  const StagePlan& last = plan->stages[1];
  EXPECT_TRUE(first.owns_embedding && !first.owns_head && !last.owns_embedding && last.owns_head);
  EXPECT_EQ(first.n_full_layers, 1);
  EXPECT_EQ(last.n_full_layers, 2);
  EXPECT_EQ(first.weight_bytes, BytesOf(*model.file, [](const std::string& name) {
              return name.starts_with("token_embd") || name.starts_with("blk.0.");
            }));
  EXPECT_EQ(last.weight_bytes, BytesOf(*model.file, [](const std::string& name) {
              return name.starts_with("output") || name.starts_with("blk.1.") || name.starts_with("blk.2.");
            }));
  // 3 sessions x 2 pages x 64 tokens x K and V x 2 heads x 16 dims x 2 bytes.
  EXPECT_EQ(first.kv_bytes, 3u * 2 * 64 * 2 * 2 * 16 * 2);
  EXPECT_EQ(last.kv_bytes, 2 * first.kv_bytes);
  EXPECT_EQ(first.state_bytes, 0u);
  EXPECT_GT(last.scratch_bytes, first.scratch_bytes);  // the logits
  for (const StagePlan& stage : plan->stages) {
    EXPECT_EQ(stage.total_bytes, stage.weight_bytes + stage.kv_bytes + stage.state_bytes + stage.scratch_bytes);
  }
}

TEST(StagePlan, ATiedHeadIsCountedWhereItIsHeld) {
  const Model model = LoadTiny({});
  const uint64_t embedding = model.file->FindTensor("token_embd.weight")->bytes;
  const uint64_t all = BytesOf(*model.file, [](const std::string&) { return true; });
  const auto one = MakePlan(StagesOf({"0-1"}), *model.file, model.shape);
  EXPECT_EQ(one->stages[0].weight_bytes, all);
  const auto two = MakePlan(StagesOf({"0-0", "1-1"}), *model.file, model.shape);
  EXPECT_EQ(two->stages[0].weight_bytes + two->stages[1].weight_bytes, all + embedding);
}

TEST(StagePlan, KvTypesHaveTheirSizes) {
  const Model model = LoadTiny({.embd = 128, .heads = 4, .kv_heads = 2});  // heads of 32 dims
  const uint64_t rows = uint64_t{8} * 4096 * 2 * 2;                        // tokens x (K, V) x heads
  for (const auto& [type, head_bytes] :
       {std::pair<std::string, uint64_t>{"f32", 128}, {"f16", 64}, {"q8_0", 34}, {"q4_0", 18}}) {
    const auto plan = MakePlan(StagesOf({"0-1"}, "kv_type: " + type + "\n"), *model.file, model.shape);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->stages[0].kv_bytes, 2 * rows * head_bytes) << type;
  }
  const Model narrow = LoadTiny({});  // heads of 16 dims
  const auto refused = MakePlan(StagesOf({""}, "kv_type: q8_0\n"), *narrow.file, narrow.shape);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("kv_type q8_0 needs heads of a multiple of 32 dims"));
}

TEST(StagePlan, LayersMustCoverTheModel) {
  const Model model = LoadTiny({.layers = 4});
  const auto error = [&](const Topology& topology) {
    const absl::Status status = MakePlan(topology, *model.file, model.shape).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(StagesOf({"0-1", "2-2"})),
              StartsWith("t.yaml:4: stage 1: the last stage ends at layer 2, the model has 4 layers (0-3)"));
  EXPECT_THAT(error(StagesOf({"0-1", "2-4"})),
              StartsWith("t.yaml:4: stage 1: layers 2-4 go past the model, which has 4"));
  EXPECT_THAT(error(StagesOf({"", "", "", "", ""})), StartsWith("t.yaml:7: 5 stages for a model of 4 layers"));
}

// Every way to cut `n` layers into `stages` parts.
void ForEachSplit(int n, int stages, int begin, std::vector<LayerRange>* ranges,
                  const std::function<void(const std::vector<LayerRange>&)>& visit) {
  if (stages == 1) {
    ranges->push_back({begin, n});
    visit(*ranges);
    ranges->pop_back();
    return;
  }
  for (int end = begin + 1; end <= n - stages + 1; ++end) {
    ranges->push_back({begin, end});
    ForEachSplit(n, stages - 1, end, ranges, visit);
    ranges->pop_back();
  }
}

TEST(StagePlan, AutomaticLayersHaveTheSmallestLargestStage) {
  for (const TinyLlamaOptions& options :
       {TinyLlamaOptions{.layers = 7}, TinyLlamaOptions{.layers = 7, .vocab = 4000, .tied = false},
        TinyLlamaOptions{.layers = 6, .embd = 32, .ff = 512, .vocab = 1000}, TinyLlamaOptions{.layers = 3}}) {
    const Model model = LoadTiny(options);
    for (int stages = 1; stages <= std::min(4, options.layers); ++stages) {
      const std::string settings = "context: 256\nsessions: 2\nchunk: 64\n";
      const auto chosen = MakePlan(StagesOf(std::vector<std::string>(stages), settings), *model.file, model.shape);
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      uint64_t best = ~uint64_t{0};
      std::vector<LayerRange> earliest;  // of the best: the one whose earlier stages take most
      std::vector<LayerRange> ranges;
      ForEachSplit(options.layers, stages, 0, &ranges, [&](const std::vector<LayerRange>& split) {
        std::vector<std::string> layers;
        for (const LayerRange& range : split) {
          layers.push_back(std::to_string(range.begin) + "-" + std::to_string(range.end - 1));
        }
        const auto plan = MakePlan(StagesOf(layers, settings), *model.file, model.shape);
        const uint64_t largest = LargestOf(*plan);
        // Splits come in ascending order of their first ends, so the last of equals is the one wanted.
        if (largest <= best) earliest = split;
        best = std::min(best, largest);
      });
      EXPECT_EQ(LargestOf(*chosen), best);
      EXPECT_EQ(RangesOf(*chosen), earliest) << stages << " stages";
    }
  }
}

TEST(StagePlan, LargeModelsOnManyStagesArePlannedAtOnce) {
  const Model model = LoadTiny({.layers = 200, .embd = 32, .heads = 1, .kv_heads = 1, .ff = 32, .vocab = 260});
  const auto plan = MakePlan(StagesOf(std::vector<std::string>(64)), *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int next = 0;
  for (const StagePlan& stage : plan->stages) {
    EXPECT_EQ(stage.layers.begin, next);
    EXPECT_GT(stage.layers.size(), 0);
    next = stage.layers.end;
  }
  EXPECT_EQ(next, 200);
}

// --- Real-world shapes, from a sparse file of true length that holds nothing but a header.

struct RealShape {
  std::string arch;
  uint32_t layers = 0, embd = 0, heads = 0, kv_heads = 0, ff = 0, key_heads = 0, value_heads = 0, experts = 0, used = 0;
  uint32_t expert_ff = 0;
  uint64_t vocab = 0;
};

GgufBuilder RealKeys(const RealShape& real) {
  GgufBuilder builder;
  const std::string p = real.arch + ".";
  builder.String("general.architecture", real.arch).U32(p + "block_count", real.layers);
  builder.U32(p + "context_length", 262144).U32(p + "embedding_length", real.embd);
  if (real.ff > 0) builder.U32(p + "feed_forward_length", real.ff);
  builder.U32(p + "attention.head_count", real.heads).U32(p + "attention.head_count_kv", real.kv_heads);
  builder.U32(p + "attention.key_length", 256).U32(p + "attention.value_length", 256);
  builder.F32(p + "attention.layer_norm_rms_epsilon", 1e-6f).F32(p + "rope.freq_base", 1e7f);
  builder.U32(p + "rope.dimension_count", 64).U32(p + "ssm.conv_kernel", 4).U32(p + "ssm.state_size", 128);
  builder.U32(p + "ssm.group_count", real.key_heads).U32(p + "ssm.time_step_rank", real.value_heads);
  builder.U32(p + "ssm.inner_size", real.value_heads * 128);
  if (real.arch != "qwen3next") builder.I32s(p + "rope.dimension_sections", {11, 11, 10, 0});
  if (real.experts > 0) {
    builder.U32(p + "expert_count", real.experts).U32(p + "expert_used_count", real.used);
    builder.U32(p + "expert_feed_forward_length", real.expert_ff);
    builder.U32(p + "expert_shared_feed_forward_length", real.expert_ff);
  }
  return builder;
}

// The tensors follow from a shape made by hand; matrices are Q4_K, as in common files.
Model LoadReal(const RealShape& real) {
  ModelShape shape;
  shape.kind = real.arch == "qwen3next" ? Architecture::kQwen3Next : Architecture::kQwen35;
  shape.n_embd = static_cast<int>(real.embd);
  shape.n_vocab = static_cast<int>(real.vocab);
  shape.head_dim_k = 256;
  shape.experts = {static_cast<int>(real.experts), static_cast<int>(real.used), static_cast<int>(real.expert_ff),
                   static_cast<int>(real.expert_ff), 1};
  shape.recurrent = {4, static_cast<int>(real.key_heads), static_cast<int>(real.value_heads), 128};
  GgufBuilder builder = RealKeys(real);
  const auto add = [&builder](const std::vector<TensorSpec>& specs) {
    for (const TensorSpec& spec : specs) {
      builder.Tensor(spec.gguf_name, {spec.dims.begin(), spec.dims.end()},
                     static_cast<uint32_t>(spec.f32_only ? WeightType::kF32 : WeightType::kQ4_K));
    }
  };
  for (uint32_t i = 0; i < real.layers; ++i) {
    const bool full = i % 4 == 3;
    shape.layers.push_back({full ? LayerKind::kFullAttention : LayerKind::kRecurrent,
                            full ? static_cast<int>(real.heads) : 0, full ? static_cast<int>(real.kv_heads) : 0,
                            static_cast<int>(real.ff)});
    add(LayerTensors(shape, static_cast<int>(i)));
  }
  add(EmbeddingTensors(shape));
  add(HeadTensors(shape));
  uint64_t file_bytes = 0;
  const std::string path = testing::WriteTestFile(real.arch + ".gguf", builder.BuildHeader(&file_bytes));
  EXPECT_EQ(truncate(path.c_str(), static_cast<off_t>(file_bytes)), 0);
  auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  auto read = ReadModelShape(**file);
  EXPECT_TRUE(read.ok()) << read.status();
  return {*std::move(file), *std::move(read)};
}

TEST(StagePlan, A27bHybridFromItsHeader) {
  const Model model = LoadReal({.arch = "qwen35",
                                .layers = 64,
                                .embd = 5120,
                                .heads = 24,
                                .kv_heads = 4,
                                .ff = 17408,
                                .key_heads = 16,
                                .value_heads = 48,
                                .vocab = 248320});
  EXPECT_EQ(RecurrentStateBytes(model.shape), 3'145'728u + 122'880u);
  EXPECT_EQ(KvBytesPerToken(model.shape, 3, "f16") * 16, 65'536u);
  const auto plan = MakePlan(StagesOf({"", ""}, "context: 262144\nsessions: 1\n"), *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->n_state_slots, 1);
  uint64_t kv = 0, state = 0;
  for (const StagePlan& stage : plan->stages) {
    kv += stage.kv_bytes;
    state += stage.state_bytes;
    EXPECT_EQ(stage.n_full_layers + stage.n_recurrent_layers, stage.layers.size());
  }
  EXPECT_EQ(kv, 16 * limits::kGiB);
  EXPECT_EQ(state, 156'893'184u);
  const auto q8 = MakePlan(StagesOf({""}, "context: 262144\nsessions: 1\nkv_type: q8_0\n"), *model.file, model.shape);
  EXPECT_EQ(q8->stages[0].kv_bytes, 17 * limits::kGiB / 2);
  const auto json = nlohmann::json::parse(InspectJson(*model.file, model.shape));
  EXPECT_EQ(json["n_layers"], 64);
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(model.file->path()));
}

TEST(StagePlan, An80bHybridWithExpertsFromItsHeader) {
  const Model model = LoadReal({.arch = "qwen3next",
                                .layers = 48,
                                .embd = 2048,
                                .heads = 16,
                                .kv_heads = 2,
                                .key_heads = 16,
                                .value_heads = 32,
                                .experts = 512,
                                .used = 10,
                                .expert_ff = 512,
                                .vocab = 151936});
  const auto plan = MakePlan(StagesOf({"", "", "", ""}, "context: 262144\nsessions: 2\n"), *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  uint64_t kv = 0, state = 0, weights = 0;
  for (const StagePlan& stage : plan->stages) {
    kv += stage.kv_bytes;
    state += stage.state_bytes;
    weights += stage.weight_bytes;
  }
  EXPECT_EQ(kv, 2 * 6 * limits::kGiB);
  EXPECT_EQ(state, 2u * 79'036'416);
  // Four bits and a half for 80 billion weights.
  EXPECT_GT(weights, 40 * limits::kGiB);
  EXPECT_LT(weights, 46 * limits::kGiB);
}

TEST(StagePlan, WindowsNeedFewPages) {
  ModelShape shape;
  shape.kind = Architecture::kGemma3;
  shape.n_layers = 2;
  shape.n_embd = 64;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.head_dim_k = 16;
  shape.window = 512;
  shape.layers = {{LayerKind::kSlidingWindow, 4, 2, 96}, {LayerKind::kFullAttention, 4, 2, 96}};
  const auto file = GgufFile::FromBytes(GgufBuilder().U32("x", 1).Build(), "m.gguf");
  const auto plan = MakePlan(StagesOf({"0-1"}, "context: 32768\nsessions: 2\nchunk: 128\n"), **file, shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->n_pages, 2 * 512);
  // 511 rows back and 128 new ones touch at most 11 pages, wherever they lie.
  EXPECT_EQ(plan->n_window_pages, 2 * 11);
  EXPECT_EQ(plan->stages[0].kv_bytes, uint64_t{2 * 512 + 2 * 11} * 64 * 2 * 2 * 16 * 2);
  const auto small = MakePlan(StagesOf({"0-1"}, "context: 128\nsessions: 2\nchunk: 128\n"), **file, shape);
  EXPECT_EQ(small->n_window_pages, 2 * 2);
}

// --- Reports

TEST(Report, PlanHasTheFieldsOfTheInterface) {
  const Model model = LoadTiny({.layers = 3});
  const auto plan = MakePlan(StagesOf({"0-0", "1-2"}), *model.file, model.shape);
  const auto json = nlohmann::json::parse(PlanJson(*plan, {}));
  EXPECT_EQ(json["context"], 4096);
  EXPECT_EQ(json["sessions"], 8);
  ASSERT_EQ(json["stages"].size(), 2u);
  const auto& stage = json["stages"][1];
  EXPECT_EQ(stage["stage"], 1);
  EXPECT_EQ(stage["device"], "cpu");
  EXPECT_EQ(stage["link"], "shm");
  EXPECT_FALSE(json["stages"][0].contains("link"));
  EXPECT_EQ(stage["layers"], nlohmann::json({1, 3}));
  EXPECT_EQ(stage["weight_bytes"], plan->stages[1].weight_bytes);
  EXPECT_EQ(stage["kv_bytes"], plan->stages[1].kv_bytes);
  EXPECT_EQ(stage["state_bytes"], 0);
  EXPECT_EQ(stage["scratch_bytes"], plan->stages[1].scratch_bytes);
  EXPECT_EQ(stage["total_bytes"], plan->stages[1].total_bytes);
  const std::string text = PlanText(*plan, {});
  EXPECT_THAT(text, HasSubstr("context 4096 tokens, 8 sessions, K/V f16"));
  EXPECT_THAT(text, HasSubstr("1-2"));
  EXPECT_THAT(text, HasSubstr("  shm  "));
}

TEST(Report, InspectHasTheFieldsOfTheInterface) {
  const Model model = LoadTiny({.weight_type = WeightType::kQ8_0, .name = "a\x1b[31mb"});
  const auto json = nlohmann::json::parse(InspectJson(*model.file, model.shape));
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_EQ(json["n_layers"], 2);
  EXPECT_EQ(json["n_embd"], 64);
  EXPECT_EQ(json["n_head"], 4);
  EXPECT_EQ(json["n_head_kv"], 2);
  EXPECT_EQ(json["n_vocab"], 320);
  EXPECT_EQ(json["context_train"], 2048);
  EXPECT_EQ(json["bytes"], model.file->total_bytes());
  EXPECT_EQ(json["types"], nlohmann::json({{"F32", 5}, {"Q8_0", 15}}));
  const std::string text = InspectText(*model.file, model.shape);
  EXPECT_THAT(text, HasSubstr("a?[31mb"));
  EXPECT_THAT(text, HasSubstr("4 query, 2 K/V, 16 dims"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace layover
