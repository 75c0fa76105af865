// Real vocabularies against ids that others made: the ones llama.cpp publishes, and those of Hugging Face's tokenizers,
// bpe-openai and sentencepiece (tests/golden/make_vocabulary_goldens.py says how, and why cutting them down is exact).
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

const PublishedVocabulary& VocabularyOf(const std::string& label) {
  for (const PublishedVocabulary& vocabulary : PublishedVocabularies()) {
    if (vocabulary.label == label) return vocabulary;
  }
  ADD_FAILURE() << "no vocabulary " << label;
  return PublishedVocabularies()[0];
}

TEST(Vocabularies, IdsEqualThoseOfOthers) {
  EXPECT_EQ(PublishedVocabularies().size(), 21u);
  for (const PublishedVocabulary& vocabulary : PublishedVocabularies()) {
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
  for (const PublishedVocabulary& vocabulary : PublishedVocabularies()) {
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
