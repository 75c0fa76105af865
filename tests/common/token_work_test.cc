// What one token asks of the weights: the sums that ratios to a card's limits are made of.
#include "common/plan/token_work.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/common/plan_fixture.h"
#include "tests/gguf/gguf_builder.h"

namespace layover {
namespace {

using testing::BuildTinyLlama;
using testing::BuildTinyModel;

TEST(TokenWork, ADenseModelIsReadWholeButForItsEmbedding) {
  const Model tied = LoadModel(BuildTinyLlama({.weight_type = WeightType::kQ4_0}));
  EXPECT_EQ(WorkOfToken(*tied.file, tied.shape).weight_bytes, BytesOf(*tied.file, [](const auto&) { return true; }));
  const Model untied = LoadModel(BuildTinyLlama({.weight_type = WeightType::kQ4_0, .tied = false}));
  const TokenWork work = WorkOfToken(*untied.file, untied.shape);
  EXPECT_EQ(work.weight_bytes,
            BytesOf(*untied.file, [](const std::string& name) { return name != "token_embd.weight"; }));
  // Two layers: q and o 64 x 64, k and v 64 x 32, three of 64 x 128. The head is not among them.
  EXPECT_EQ(work.layer_operations, 2u * 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128));
}

TEST(TokenWork, OfExpertsOnlyThoseThatAreUsed) {
  const Model model = LoadModel(BuildTinyModel({.architecture = "qwen3moe", .weight_type = WeightType::kQ8_0}));
  ASSERT_GT(model.shape.experts.count, model.shape.experts.used);
  const auto of_experts = [](const std::string& name) { return name.find("_exps") != std::string::npos; };
  const uint64_t all = BytesOf(*model.file, [](const std::string&) { return true; });
  const uint64_t experts = BytesOf(*model.file, of_experts);
  const uint64_t embedding = model.shape.tied_output ? 0 : BytesOf(*model.file, [](const std::string& name) {
    return name == "token_embd.weight";
  });
  ASSERT_GT(experts, 0u);
  const auto used = static_cast<uint64_t>(model.shape.experts.used),
             count = static_cast<uint64_t>(model.shape.experts.count);
  EXPECT_EQ(WorkOfToken(*model.file, model.shape).weight_bytes, all - embedding - experts + experts / count * used);
}

}  // namespace
}  // namespace layover
