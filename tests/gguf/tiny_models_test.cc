// The tiny models of the tests are good model files, the same for equal options, in every architecture and weight type.
#include <gtest/gtest.h>

#include <set>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"

namespace layover {
namespace {

using testing::BuildTinyModel;

TEST(TinyModels, EveryArchitectureIsAccepted) {
  std::set<Architecture> seen;
  for (const std::string& name : testing::TinyArchitectures()) {
    const auto file = GgufFile::FromBytes(BuildTinyModel({.architecture = name}), name);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto shape = ReadModelShape(**file);
    ASSERT_TRUE(shape.ok()) << shape.status();
    seen.insert(shape->kind);
    if (shape->recurrent.conv_taps > 0) {
      EXPECT_LT(shape->recurrent.key_heads, shape->recurrent.value_heads);
      EXPECT_EQ(shape->layers[0].kind, LayerKind::kRecurrent);
      EXPECT_EQ(shape->layers[3].kind, LayerKind::kFullAttention);
    }
  }
  EXPECT_EQ(seen.size(), 9u);
}

TEST(TinyModels, EveryWeightTypeIsAccepted) {
  for (const WeightTypeTraits& traits : AllWeightTypes()) {
    if (!traits.supported) continue;
    const auto type = static_cast<WeightType>(traits.id);
    const auto file = GgufFile::FromBytes(BuildTinyModel({.architecture = "qwen35", .weight_type = type}), "tiny");
    ASSERT_TRUE(file.ok()) << traits.name << ": " << file.status();
    const auto shape = ReadModelShape(**file);
    ASSERT_TRUE(shape.ok()) << traits.name << ": " << shape.status();
    EXPECT_EQ((*file)->FindTensor("blk.1.ffn_down.weight")->type, traits.id);
  }
}

TEST(TinyModels, DependOnTheirOptionsOnly) {
  const std::string bytes = BuildTinyModel({.architecture = "qwen3next"});
  EXPECT_EQ(bytes, BuildTinyModel({.architecture = "qwen3next"}));
  EXPECT_NE(bytes, BuildTinyModel({.architecture = "qwen3next", .seed = 2}));
  for (const std::string& name : testing::TinyArchitectures()) {
    const std::string right = BuildTinyModel({.architecture = name});
    for (const std::string& fault : testing::TinyFaults(name)) {
      EXPECT_NE(right, BuildTinyModel({.architecture = name, .fault = fault})) << name << ", " << fault;
    }
  }
}

}  // namespace
}  // namespace layover
