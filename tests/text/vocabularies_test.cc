// Real vocabularies against ids that others made: the ones llama.cpp publishes, and those of Hugging Face's tokenizers,
// bpe-openai and sentencepiece (tests/golden/make_vocabulary_goldens.py says how, and why cutting them down is exact).
#include "absl/container/flat_hash_map.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

struct Vocabulary {
  std::string label;
  std::unique_ptr<Tokenizer> tokenizer;
  absl::flat_hash_map<int32_t, int32_t> own_ids;  // the model's id to that of the cut-down vocabulary
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;  // per text, own ids
};

TokenizerSpec SpecOf(const Json& row, const absl::flat_hash_map<int32_t, int32_t>& own_ids) {
  TokenizerSpec spec;
  spec.model = row["model"];
  spec.pre = row["pre"];
  spec.tokens = row["tokens"].get<std::vector<std::string>>();
  for (const int type : row["types"]) spec.types.push_back(static_cast<TokenType>(type));
  spec.scores = row["scores"].get<std::vector<float>>();
  spec.merges = row["merges"].get<std::vector<std::string>>();
  const Json& keys = row["keys"];
  const std::pair<const char*, int32_t*> special[] = {
      {"bos_token_id", &spec.bos_id}, {"eos_token_id", &spec.eos_id}, {"unknown_token_id", &spec.unk_id}};
  for (const auto& [key, id] : special) {
    if (keys.contains(key)) *id = own_ids.at(keys[key].get<int32_t>());
  }
  if (keys.contains("add_bos_token")) spec.add_bos = keys["add_bos_token"].get<bool>();
  if (keys.contains("add_eos_token")) spec.add_eos = keys["add_eos_token"].get<bool>();
  if (keys.contains("add_space_prefix")) spec.add_space_prefix = keys["add_space_prefix"].get<bool>();
  return spec;
}

std::vector<Vocabulary> ReadVocabularies() {
  const auto rows = ReadJsonLines("vocabularies.jsonl");
  std::vector<Vocabulary> vocabularies;
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& row = rows[i];
    Vocabulary vocabulary;
    vocabulary.label = row["kind"].get<std::string>() + " " + row["name"].get<std::string>();
    int32_t next = 0;
    for (const int32_t id : row["token_ids"]) vocabulary.own_ids[id] = next++;
    vocabulary.tokenizer = MakeTokenizer(SpecOf(row, vocabulary.own_ids));
    const Json& texts = row["texts"].is_array() ? row["texts"] : rows[0]["texts"];
    vocabulary.texts = texts.get<std::vector<std::string>>();
    for (const Json& ids : row["ids"]) {
      std::vector<int32_t>& own = vocabulary.ids.emplace_back();
      for (const int32_t id : ids) own.push_back(vocabulary.own_ids.at(id));
    }
    vocabularies.push_back(std::move(vocabulary));
  }
  return vocabularies;
}

const std::vector<Vocabulary>& Vocabularies() {
  static const std::vector<Vocabulary> vocabularies = ReadVocabularies();
  return vocabularies;
}

const Vocabulary& VocabularyOf(const std::string& label) {
  for (const Vocabulary& vocabulary : Vocabularies()) {
    if (vocabulary.label == label) return vocabulary;
  }
  ADD_FAILURE() << "no vocabulary " << label;
  return Vocabularies()[0];
}

TEST(Vocabularies, IdsEqualThoseOfOthers) {
  EXPECT_EQ(Vocabularies().size(), 21u);
  for (const Vocabulary& vocabulary : Vocabularies()) {
    ASSERT_EQ(vocabulary.texts.size(), vocabulary.ids.size()) << vocabulary.label;
    ASSERT_GE(vocabulary.texts.size(), 46u) << vocabulary.label;
    for (size_t i = 0; i < vocabulary.texts.size(); ++i) {
      const auto ids = vocabulary.tokenizer->Encode(vocabulary.texts[i], {.add_special = false});
      EXPECT_EQ(Spell(*vocabulary.tokenizer, ids), Spell(*vocabulary.tokenizer, vocabulary.ids[i]))
          << vocabulary.label << ", text " << i << ": " << vocabulary.texts[i];
      EXPECT_EQ(ids, vocabulary.ids[i]) << vocabulary.label << ", text " << i;
    }
  }
}

TEST(Vocabularies, IdsComeBackAsTheirText) {
  for (const Vocabulary& vocabulary : Vocabularies()) {
    for (size_t i = 0; i < vocabulary.texts.size(); ++i) {
      EXPECT_EQ(Detokenize(*vocabulary.tokenizer, vocabulary.ids[i], false), vocabulary.texts[i]) << vocabulary.label;
      StreamingDetokenizer stream;
      std::string streamed;
      for (const int32_t id : vocabulary.ids[i]) streamed += stream.Push(vocabulary.tokenizer->TokenBytes(id));
      streamed += stream.Flush();
      const bool has_space = vocabulary.tokenizer->drops_leading_space() && !vocabulary.texts[i].empty();
      EXPECT_EQ(streamed, (has_space ? " " : "") + vocabulary.texts[i]) << vocabulary.label;
    }
  }
}

TEST(Vocabularies, FlagsAreThoseOfTheFile) {
  const Tokenizer& gemma = *VocabularyOf("wide gemma3").tokenizer;
  EXPECT_FALSE(gemma.drops_leading_space());
  EXPECT_TRUE(gemma.add_bos());
  EXPECT_FALSE(gemma.add_eos());
  EXPECT_EQ(gemma.TokenText(gemma.bos_id()), "<bos>");
  EXPECT_EQ(Detokenize(gemma, gemma.Encode("  a\n\n\nb", {}), false), "  a\n\n\nb");
  const Tokenizer& llama = *VocabularyOf("published llama-spm").tokenizer;
  EXPECT_TRUE(llama.drops_leading_space());
  EXPECT_TRUE(llama.add_bos());
  EXPECT_EQ(llama.TokenText(llama.bos_id()), "<s>");
  EXPECT_TRUE(VocabularyOf("published llama-bpe").tokenizer->add_bos()) << "the family's default";
  EXPECT_FALSE(VocabularyOf("published qwen2").tokenizer->add_bos());
}

}  // namespace
}  // namespace layover
