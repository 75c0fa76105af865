// Every family's expressions compile, lose nothing, and cut where the tokenizers' own files say.
#include "coordinator/text/pretokenizer.h"

#include <random>

#include "coordinator/text/utf8.h"
#include "gtest/gtest.h"

namespace layover {
namespace {

std::string SplitBy(std::string_view family, std::string_view text) {
  const PreTokenizerFamily* found = FindPreTokenizerFamily(family);
  if (found == nullptr) return "no such family";
  const auto pre_tokenizer = PreTokenizer::Create(*found);
  if (!pre_tokenizer.ok()) return std::string(pre_tokenizer.status().message());
  std::string joined;
  for (const std::string_view piece : (*pre_tokenizer)->Split(text)) {
    if (!joined.empty()) joined += '|';
    joined += piece;
  }
  return joined;
}

TEST(PreTokenizer, CutsAsEachFamilyDoes) {
  EXPECT_EQ(SplitBy("gpt-2", "I'm 12345 ok!!  \n x"), "I|'m| 12345| ok|!!|  \n| x");
  EXPECT_EQ(SplitBy("smollm", "I'm 12345 ok!!  \n x"), "I|'m| |1|2|3|4|5| ok|!!|  \n| x");
  EXPECT_EQ(SplitBy("llama-bpe", "I'M 12345 ok!!\n\n  x"), "I|'M| |123|45| ok|!!\n\n| | x");
  EXPECT_EQ(SplitBy("qwen2", "a1234 b"), "a|1|2|3|4| b");
  EXPECT_EQ(SplitBy("gpt-4o", "helloWorld HTTPServer don't a/b/\n"), "hello|World| HTTPServer| don't| a|/b|/\n");
  EXPECT_EQ(SplitBy("tekken", "helloWorld 12"), "hello|World| |1|2");
  EXPECT_EQ(SplitBy("deepseek-v3", "x=12345;\xe4\xbd\xa0y"), "x|=|123|45|;|\xe4\xbd\xa0|y");
  EXPECT_EQ(SplitBy("deepseek-llm",
                    "a b  \xe4\xbd\xa0"
                    "1"),
            "a| b|  |\xe4\xbd\xa0|1");
  EXPECT_EQ(SplitBy("deepseek-llm", "a   "), "a|   ");
  EXPECT_EQ(SplitBy("deepseek-coder", "x = 12\n"), "x| = |1|2|\n");
  EXPECT_EQ(SplitBy("falcon", "a, b 1234"), "a|,| b| |123|4");
  // A combining mark belongs to the letter in qwen35, not in qwen2.
  EXPECT_EQ(SplitBy("qwen35", "e\xcc\x81g"), "e\xcc\x81g");
  EXPECT_EQ(SplitBy("qwen2", "e\xcc\x81g"), "e|\xcc\x81g");
}

TEST(PreTokenizer, SpacesAreThoseOfUnicode) {
  // U+180E has not been white space since Unicode 6.3; U+3000 and U+0085 are.
  EXPECT_EQ(SplitBy("gpt-2", "a \xe1\xa0\x8e!"), "a| \xe1\xa0\x8e!");
  EXPECT_EQ(SplitBy("gpt-2",
                    "a\xe3\x80\x80\xe3\x80\x80"
                    "b"),
            "a|\xe3\x80\x80|\xe3\x80\x80|b");
  EXPECT_EQ(SplitBy("gpt-2", "!\xc2\x85!"), "!|\xc2\x85|!");
}

TEST(PreTokenizer, EveryFamilyKeepsEveryByte) {
  const char* alphabet[] = {"a",
                            "Z",
                            "0",
                            "7",
                            " ",
                            "  ",
                            "\n",
                            "\r\n",
                            "\t",
                            "'",
                            "'s",
                            "'LL",
                            "!",
                            "<",
                            "/",
                            "_",
                            "\xc3\xa9",
                            "\xcc\x81",
                            "\xe4\xb8\xad",
                            "\xe3\x81\x82",
                            "\xea\xb0\x80",
                            "\xf0\x9f\x98\x80",
                            "\xc2\xa0",
                            "\xe1\xa0\x8e",
                            "\xc2\xbd",
                            "\xd0\x96",
                            "\xe2\x80\xa6",
                            "\xef\xbc\x81"};
  std::mt19937 random(11);
  for (const PreTokenizerFamily& family : AllPreTokenizerFamilies()) {
    const auto pre_tokenizer = PreTokenizer::Create(family);
    ASSERT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (size_t n = random() % 60; n > 0; --n) text += alphabet[random() % std::size(alphabet)];
      std::string joined;
      for (const std::string_view piece : (*pre_tokenizer)->Split(text)) {
        EXPECT_FALSE(piece.empty());
        EXPECT_TRUE(IsValidUtf8(piece));
        joined += piece;
      }
      EXPECT_EQ(joined, text) << family.names.front();
    }
  }
}

TEST(PreTokenizer, NoFamilyIsSlowOnLongRuns) {
  // A pattern that tries every start inside a run would need hours for these.
  for (const std::string unit : {" ", "\n", "a", "A", "7", "!", "\xcc\x81", " \n", "'", "\xe4\xb8\xad"}) {
    std::string text = "x";
    while (text.size() < (1u << 19)) text += unit;
    text += "y";
    for (const PreTokenizerFamily& family : AllPreTokenizerFamilies()) {
      const auto pre_tokenizer = PreTokenizer::Create(family);
      ASSERT_TRUE(pre_tokenizer.ok());
      size_t bytes = 0;
      for (const std::string_view piece : (*pre_tokenizer)->Split(text)) bytes += piece.size();
      EXPECT_EQ(bytes, text.size());
    }
  }
}

TEST(PreTokenizer, NamesAreGivenOnce) {
  std::vector<std::string_view> names;
  for (const PreTokenizerFamily& family : AllPreTokenizerFamilies()) {
    names.insert(names.end(), family.names.begin(), family.names.end());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(FindPreTokenizerFamily(""), nullptr);
}

TEST(PreTokenizer, BadPatternIsRefused) {
  EXPECT_FALSE(PreTokenizer::Create({.names = {"bad"}, .patterns = {"("}}).ok());
}

}  // namespace
}  // namespace layover
