// The identity changes with what changes the bytes of saved state, and with nothing else.
#include "common/gguf/model_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "common/limits.h"
#include "tests/gguf/gguf_builder.h"
#include "tests/gguf/shape_models.h"

namespace layover {
namespace {

using testing::BuildTinyLlama;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::IsEmpty;
using testing::SmallModel;
using testing::SmallModelOf;
using testing::TinyLlamaOptions;

ModelIdentity IdentityOf(std::string_view bytes, const std::string& kv_type = "f16") {
  const auto file = GgufFile::FromBytes(bytes, "m.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  const auto shape = ReadModelShape(**file);
  EXPECT_TRUE(shape.ok()) << shape.status();
  auto identity = ReadModelIdentity(**file, *shape, kv_type);
  EXPECT_TRUE(identity.ok()) << identity.status();
  return *std::move(identity);
}

std::vector<std::string> Differences(const TinyLlamaOptions& a, const TinyLlamaOptions& b) {
  const ModelIdentity first = IdentityOf(BuildTinyLlama(a));
  const ModelIdentity second = IdentityOf(BuildTinyLlama(b));
  const std::vector<std::string> fields = IdentityDifferences(first, second);
  EXPECT_EQ(fields.empty(), first.Combined() == second.Combined());
  return fields;
}

TEST(ModelIdentity, HasADigestOfEachLayerAndBothEnds) {
  const ModelIdentity identity = IdentityOf(BuildTinyLlama({}));
  ASSERT_EQ(identity.weights.size(), 4u);
  std::set<Digest> distinct(identity.weights.begin(), identity.weights.end());
  EXPECT_EQ(distinct.size(), 4u);
  EXPECT_FALSE(distinct.contains(Digest{}));
  EXPECT_EQ(identity.page_tokens, limits::kPageTokens);
  EXPECT_EQ(identity.kv_type, "f16");
  EXPECT_EQ(identity.architecture, "llama");
}

TEST(ModelIdentity, StagesDigestTheirOwnLayers) {
  const auto file = GgufFile::FromBytes(BuildTinyLlama({.layers = 3}), "m.gguf");
  const auto shape = ReadModelShape(**file);
  const auto whole = ReadModelIdentity(**file, *shape, "f16");
  auto assembled = ReadIdentityButWeights(**file, *shape, "f16");
  ASSERT_TRUE(whole.ok() && assembled.ok());
  EXPECT_THAT(IdentityDifferences(*whole, *assembled), ElementsAre("weights"));
  for (int layer = 0; layer < 3; ++layer) assembled->weights[layer] = LayerWeightDigest(**file, *shape, layer);
  assembled->weights[3] = EmbeddingDigest(**file, *shape);
  assembled->weights[4] = HeadDigest(**file, *shape);
  EXPECT_THAT(IdentityDifferences(*whole, *assembled), IsEmpty());
  EXPECT_EQ(whole->Combined(), assembled->Combined());
}

TEST(ModelIdentity, NamesWhatDiffers) {
  const TinyLlamaOptions base;
  EXPECT_THAT(Differences(base, base), IsEmpty());
  EXPECT_THAT(Differences(base, {.seed = 2}), ElementsAre("weights"));
  EXPECT_THAT(Differences(base, {.weight_type = WeightType::kQ8_0}), ElementsAre("weights"));
  EXPECT_THAT(Differences(base, {.rope_base = 10100}), ElementsAre("rope"));
  EXPECT_THAT(Differences(base, {.rope_freqs = true}), ElementsAre("rope"));
  EXPECT_THAT(Differences(base, {.pre_tokenizer = "gpt-2"}), ElementsAre("tokenizer"));
  EXPECT_THAT(Differences(base, {.heads = 2}), ElementsAre("weights", "rope", "arch"));
  EXPECT_THAT(Differences(base, {.vocab = 321}), ElementsAre("weights", "tokenizer", "arch"));
  const std::string bytes = BuildTinyLlama(base);
  EXPECT_THAT(IdentityDifferences(IdentityOf(bytes), IdentityOf(bytes, "q8_0")), ElementsAre("kv_type"));
  ModelIdentity other = IdentityOf(bytes);
  other.format += 1;
  EXPECT_THAT(IdentityDifferences(IdentityOf(bytes), other), ElementsAre("format"));
  EXPECT_NE(IdentityOf(bytes).Combined(), other.Combined());
  other = IdentityOf(bytes);
  other.page_tokens = 128;
  EXPECT_THAT(IdentityDifferences(IdentityOf(bytes), other), ElementsAre("format"));
}

TEST(ModelIdentity, DoesNotSeeNamesContextOrTemplate) {
  const TinyLlamaOptions base;
  EXPECT_THAT(Differences(base, {.context = 4096}), IsEmpty());
  EXPECT_THAT(Differences(base, {.name = "other"}), IsEmpty());
  EXPECT_THAT(Differences(base, {.chat_template = "{{ messages }}"}), IsEmpty());
  EXPECT_NE(IdentityOf(BuildTinyLlama(base)).chat_template,
            IdentityOf(BuildTinyLlama({.chat_template = "{{ messages }}"})).chat_template);
}

TEST(ModelIdentity, OneFlippedBitOfAWeightShowsInItsLayerOnly) {
  const std::string bytes = BuildTinyLlama({.layers = 3});
  const auto file = GgufFile::FromBytes(bytes, "m.gguf");
  for (const auto& [tensor, index] : std::vector<std::pair<std::string, size_t>>{{"blk.0.attn_norm.weight", 0},
                                                                                 {"blk.1.ffn_down.weight", 1},
                                                                                 {"blk.2.attn_q.weight", 2},
                                                                                 {"output_norm.weight", 4}}) {
    const std::byte* begin = (*file)->tensors()[0].data;
    const GgufTensor* found = (*file)->FindTensor(tensor);
    // Where tensor data begins in the file: the first tensor's place, counted from the end.
    size_t data_bytes = 0;
    for (const GgufTensor& t : (*file)->tensors()) {
      data_bytes = std::max<size_t>(data_bytes, static_cast<size_t>(t.data - begin) + (t.bytes + 31) / 32 * 32);
    }
    std::string damaged = bytes;
    damaged[bytes.size() - data_bytes + static_cast<size_t>(found->data - begin) + found->bytes - 1] ^= 1;
    const ModelIdentity good = IdentityOf(bytes), bad = IdentityOf(damaged);
    for (size_t i = 0; i < good.weights.size(); ++i) EXPECT_EQ(good.weights[i] != bad.weights[i], i == index) << tensor;
  }
}

// The tied head is digested as if it stood in the file, so a copy of it there is the same model.
TEST(ModelIdentity, ATiedHeadEqualsItsCopy) {
  const SmallModel tied = SmallModelOf("qwen2");
  SmallModel copied = tied;
  copied.tensors.push_back({"output.weight", {64, 300}});
  EXPECT_THAT(IdentityDifferences(IdentityOf(tied.Builder().Build()), IdentityOf(copied.Builder().Build())), IsEmpty());
}

TEST(ModelIdentity, DoesNotSeeHowFilesAreSplit) {
  const SmallModel model = SmallModelOf("qwen3");
  GgufBuilder first = model.keys, second;
  first.U16("split.no", 0).U16("split.count", 2).I32("split.tensors.count", static_cast<int32_t>(model.tensors.size()));
  second.U16("split.no", 1).U16("split.count", 2);
  const auto value = [](uint64_t count, size_t i) {
    return testing::EncodeWeights(std::vector<float>(count, static_cast<float>(i)), WeightType::kF32);
  };
  GgufBuilder whole = model.keys;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const auto& [name, dims] = model.tensors[i];
    const uint64_t count = dims[0] * (dims.size() > 1 ? dims[1] : 1);
    // The split set has another order and other files.
    (i % 2 == 0 ? second : first).Tensor(name, dims, 0, value(count, i));
  }
  for (size_t i = model.tensors.size(); i-- > 0;) {
    const auto& [name, dims] = model.tensors[i];
    whole.Tensor(name, dims, 0, value(dims[0] * (dims.size() > 1 ? dims[1] : 1), i));
  }
  testing::WriteTestFile("identity/m-00002-of-00002.gguf", second.Build());
  const auto file = GgufFile::Open(testing::WriteTestFile("identity/m-00001-of-00002.gguf", first.Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto shape = ReadModelShape(**file);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(ReadModelIdentity(**file, *shape, "f16")->Combined(), IdentityOf(whole.Build()).Combined());
}

TEST(ModelIdentity, SettingsThatMeanTheSameAreTheSame) {
  const auto identity_of = [](const std::function<void(GgufBuilder*)>& more) {
    SmallModel model = SmallModelOf("qwen3");
    more(&model.keys);
    return IdentityOf(model.Builder().Build()).Combined();
  };
  const Digest plain = identity_of([](GgufBuilder*) {});
  EXPECT_EQ(plain, identity_of([](GgufBuilder* b) { b->F32("qwen3.rope.freq_base", 10000); }));
  EXPECT_EQ(plain, identity_of([](GgufBuilder* b) { b->U64("qwen3.rope.dimension_count", 16); }));
  EXPECT_EQ(plain, identity_of([](GgufBuilder* b) { b->String("qwen3.rope.scaling.type", "none"); }));
  EXPECT_EQ(plain, identity_of([](GgufBuilder* b) { b->F32("qwen3.rope.scaling.factor", 1); }));
  EXPECT_NE(plain, identity_of([](GgufBuilder* b) { b->F32("qwen3.rope.scaling.factor", 2); }));
  EXPECT_NE(plain, identity_of([](GgufBuilder* b) { b->F32("qwen3.attention.scale", 0.5f); }));
}

TEST(TokenizerDigest, ChangesWithEveryKeyThatChangesIds) {
  const auto digest_of = [](const std::function<void(GgufBuilder*)>& fill) {
    GgufBuilder builder;
    fill(&builder);
    return TokenizerDigest(**GgufFile::FromBytes(builder.Build(), "m.gguf")).value();
  };
  const std::string p = "tokenizer.ggml.";
  const Digest empty = digest_of([](GgufBuilder*) {});
  std::set<Digest> seen = {empty};
  for (const char* key : {"model", "pre"}) {
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->String(p + key, "x"); })).second) << key;
  }
  for (const char* key : {"tokens", "merges"}) {
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->Strings(p + key, {"x"}); })).second) << key;
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->Strings(p + key, {"x", ""}); })).second) << key;
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->Strings(p + key, {"", "x"}); })).second) << key;
  }
  EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->F32s(p + "scores", {1}); })).second);
  EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->I32s(p + "token_type", {1}); })).second);
  for (const char* key : {"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"}) {
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->U32(p + key + "_token_id", 1); })).second) << key;
  }
  for (const char* key :
       {"add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"}) {
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->Bool(p + key, false); })).second) << key;
    EXPECT_TRUE(seen.insert(digest_of([&](GgufBuilder* b) { b->Bool(p + key, true); })).second) << key;
  }
  // The width of an integer is no difference, nor is a key that changes no ids.
  EXPECT_EQ(digest_of([&](GgufBuilder* b) { b->U32(p + "bos_token_id", 1); }),
            digest_of([&](GgufBuilder* b) { b->U64(p + "bos_token_id", 1); }));
  EXPECT_EQ(empty, digest_of([](GgufBuilder* b) { b->String("tokenizer.chat_template", "x"); }));
}

}  // namespace
}  // namespace layover
