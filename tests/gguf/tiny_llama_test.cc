// The tiny model of the tests is itself a good model file, the same for equal options.
#include <gtest/gtest.h>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"

namespace layover {
namespace {

using testing::BuildTinyLlama;
using testing::TinyLlamaOptions;

TEST(TinyLlama, IsAcceptedInEveryType) {
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16, WeightType::kQ8_0,
                                WeightType::kQ4_0, WeightType::kQ4_1}) {
    TinyLlamaOptions options;
    options.weight_type = type;
    options.rope_freqs = type == WeightType::kF32;
    options.tied = type != WeightType::kF16;
    const auto file = GgufFile::FromBytes(BuildTinyLlama(options), "tiny");
    ASSERT_TRUE(file.ok()) << file.status();
    const auto shape = ReadModelShape(**file);
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->n_layers, 2);
    EXPECT_EQ(shape->tied_output, options.tied);
    EXPECT_EQ(shape->rope.has_freq_factors, options.rope_freqs);
    EXPECT_EQ((*file)->FindTensor("blk.1.ffn_down.weight")->type, static_cast<uint32_t>(type));
  }
}

TEST(TinyLlama, DependsOnItsOptionsOnly) {
  TinyLlamaOptions options;
  const std::string bytes = BuildTinyLlama(options);
  EXPECT_EQ(bytes, BuildTinyLlama(options));
  options.seed = 2;
  EXPECT_NE(bytes, BuildTinyLlama(options));
}

}  // namespace
}  // namespace layover
