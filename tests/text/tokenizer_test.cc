// Ids against goldens of an independent implementation, and the rules one by one on small made-up vocabularies.
#include "coordinator/text/tokenizer.h"

#include <random>
#include <thread>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/vocabulary.h"
#include "fmt/core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr EncodeOptions kWithControl{.add_special = false, .parse_special = true};

// Bytes that SmolLM2 has no token for: they are dropped, so such a text does not come back whole.
bool HasByteWithoutToken(std::string_view text) {
  for (const unsigned char c : text) {
    if (c == 0x04 || c == 0x06 || c == 0x13 || c == 0x14 || c == 0x16 || c == 0x1D || c == 0xF1 || c == 0xF2)
      return true;
  }
  return false;
}

TEST(DemoTokenizer, EqualsGoldens) {
  int64_t n = 0;
  for (const auto& row : ReadJsonLines("smollm2_tokenizer.jsonl")) {
    ++n;
    const std::string text = row["text"];
    const std::vector<int32_t> ids = DemoTokenizer().Encode(text, kPlain);
    EXPECT_EQ(ids, row["ids"].get<std::vector<int32_t>>()) << row["text"];
    if (HasByteWithoutToken(text)) continue;
    EXPECT_EQ(Detokenize(DemoTokenizer(), ids, false), text);
  }
  EXPECT_GE(n, 400);
}

TEST(DemoTokenizer, KnowsItsSpecialTokens) {
  const Tokenizer& tokenizer = DemoTokenizer();
  EXPECT_EQ(tokenizer.n_vocab(), 49152);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.pre(), "smollm");
  EXPECT_THAT(tokenizer.EogIds(), ElementsAre(0, 2, 4));  // <|endoftext|> <|im_end|> <reponame>
  EXPECT_TRUE(tokenizer.IsEog(2));
  EXPECT_FALSE(tokenizer.IsEog(1));
  EXPECT_TRUE(tokenizer.IsControl(16));
  EXPECT_FALSE(tokenizer.IsControl(17));
  EXPECT_EQ(tokenizer.ControlTexts().size(), 17u);
  EXPECT_THAT(tokenizer.Encode("<|im_start|>user<|im_end|>", kWithControl), ElementsAre(1, 4093, 2));
  EXPECT_EQ(tokenizer.TokenBytes(1), "");
  EXPECT_EQ(tokenizer.TokenBytes(1, /*show_special=*/true), "<|im_start|>");
  EXPECT_EQ(tokenizer.TokenBytes(49152), "");
  EXPECT_EQ(tokenizer.TokenBytes(-1), "");
}

TEST(DemoTokenizer, PlainTextNeverBecomesControl) {
  for (const std::string& text : DemoTokenizer().ControlTexts()) {
    const std::vector<int32_t> ids = DemoTokenizer().Encode("a" + text + "b", kPlain);
    for (const int32_t id : ids) EXPECT_FALSE(DemoTokenizer().IsControl(id)) << text;
    EXPECT_EQ(Detokenize(DemoTokenizer(), ids, true), "a" + text + "b");
  }
}

TEST(DemoTokenizer, ThreadsDoNotDisturbEachOther) {
  const auto rows = ReadJsonLines("smollm2_tokenizer.jsonl");
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < rows.size(); ++i) {
        const auto ids = DemoTokenizer().Encode(rows[i]["text"].get<std::string>(), kPlain);
        wrong[t] += ids != rows[i]["ids"].get<std::vector<int32_t>>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// Joins the best pair again and again by looking at all of them: quadratic, and plainly right.
std::vector<std::string> SlowBpe(const std::string& text, const std::vector<std::string>& merges) {
  std::vector<std::string> symbols;
  for (const unsigned char c : text) symbols.push_back(ByteAlphabet()[c]);
  while (true) {
    size_t best_rank = merges.size();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = std::find(merges.begin(), merges.end(), symbols[i] + " " + symbols[i + 1]);
      const auto rank = static_cast<size_t>(it - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best_at = i;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

TEST(Bpe, EqualsSlowMerging) {
  const std::vector<std::string> merges = {"a a",   "b a",  "a b", "aa b",  "ab ab", "c a", "ab a",
                                           "aa aa", "ba c", "c c", "cc ab", "aab c", "a c", "aaaa aa"};
  const auto tokenizer = MakeTokenizer(ByteLevelSpec(merges));
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) text += static_cast<char>('a' + random() % 3);
    std::string expected;
    if (!text.empty()) {
      for (const std::string& symbol : SlowBpe(text, merges)) expected += (expected.empty() ? "" : "|") + symbol;
    }
    EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode(text, kPlain)), expected) << text;
  }
}

TEST(Bpe, SymbolsThatAreNoTokenFallApartIntoBytes) {
  TokenizerSpec spec = ByteLevelSpec({"a b", "ab c"});
  // "ab" stays a step of merging but is no token.
  std::replace(spec.tokens.begin(), spec.tokens.end(), std::string("ab"), std::string("other"));
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("abc", kPlain)), "abc");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("abd", kPlain)), "a|b|d");
}

TEST(Bpe, BytesWithoutTokenAreLeftOut) {
  TokenizerSpec spec = ByteLevelSpec({});
  std::replace(spec.tokens.begin(), spec.tokens.end(), std::string("b"), std::string("other"));
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("abc", kPlain)), "a|c");
}

TEST(Bpe, IgnoreMergesTakesWholePieces) {
  TokenizerSpec spec = ByteLevelSpec({"a b"});
  spec.tokens.push_back("abcd");
  spec.types.push_back(TokenType::kNormal);
  spec.pre = "gpt-2";
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("abcd", kPlain)), "ab|c|d");
  spec.pre = "llama-bpe";
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("abcd", kPlain)), "abcd");
}

TEST(Bpe, MergesNeverMakeAControlToken) {
  TokenizerSpec spec = ByteLevelSpec({"a b", "ab c"});
  spec.types[257] = TokenType::kControl;  // "abc", the second merge's result
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("abc", kPlain)), "a|b|c");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("abc", kWithControl)), "abc");
  spec.pre = "llama-bpe";  // whole pieces are looked up first
  EXPECT_EQ(Spell(*tokenizer, MakeTokenizer(spec)->Encode("abc", kPlain)), "a|b|c");
}

TEST(Bpe, LongPiecesStayFast) {
  // Quadratic merging of these would take minutes, far beyond the test's own time limit.
  const Tokenizer& tokenizer = DemoTokenizer();
  for (const std::string unit : {"a", "xy", " ", "\n", "7", "<", "A", "'", "\xe4\xb8\xad", "<|im_", "ab "}) {
    std::string text;
    while (text.size() < (1u << 19)) text += unit;
    const std::vector<int32_t> ids = tokenizer.Encode(text, kPlain);
    EXPECT_EQ(Detokenize(tokenizer, ids, false), text) << unit;
  }
}

TEST(SpecialTokens, LongestFirstThenLeftToRight) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {{"<a>"}, {"<a><b>"}, {"b><c", TokenType::kUserDefined}}));
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("x<a><b>y<a>", kWithControl)), "x|<a><b>|y|<a>");
  // The longest token is placed first, even where a shorter one begins earlier.
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("<a><a><b><c>", kWithControl)), "<a>|<a><b>|<|c|>");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("<b><c>", kWithControl)), "<|b><c|>");
}

TEST(SpecialTokens, UserDefinedAreAlwaysMatchedControlOnlyOnDemand) {
  const auto tokenizer =
      MakeTokenizer(ByteLevelSpec({}, {{"<c>"}, {"<u>", TokenType::kUserDefined}, {"<k>", TokenType::kUnknown}}));
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("<c><u><k>", kPlain)), "<|c|>|<u>|<|k|>");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("<c><u><k>", kWithControl)), "<c>|<u>|<k>");
  EXPECT_TRUE(tokenizer->IsControl(256));
  EXPECT_FALSE(tokenizer->IsControl(257));
  EXPECT_TRUE(tokenizer->IsControl(258));
  EXPECT_EQ(tokenizer->TokenBytes(257), "<u>");
}

TEST(SpecialTokens, SplitKeepsEveryByte) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {{"<c>"}, {"<u>", TokenType::kUserDefined}}));
  const auto parts = tokenizer->SplitAtControlTokens("<c>ab<u><c><c>z");
  std::string shown;
  for (const ControlSplit& part : parts) shown += fmt::format("[{}:{}]", part.text, part.id);
  EXPECT_EQ(shown, "[<c>:256][ab<u>:-1][<c>:256][<c>:256][z:-1]");
}

TEST(Encode, AddsBosAndEosWhereTheModelWantsThem) {
  TokenizerSpec spec = ByteLevelSpec({}, {{"<b>"}, {"<e>"}});
  spec.bos_id = 256;
  spec.eos_id = 257;
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("x", {})), "x");
  spec.add_bos = true;
  spec.add_eos = true;
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("x", {})), "<b>|x|<e>");
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("", {})), "<b>|<e>");
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("x", kPlain)), "x");
  spec.add_bos.reset();
  spec.pre = "llama-bpe";  // a family whose default is to begin with BOS
  EXPECT_TRUE(MakeTokenizer(spec)->add_bos());
}

TEST(Encode, BytesThatAreNotUtf8AreReadAsReplacementCharacters) {
  EXPECT_EQ(DemoTokenizer().Encode("a\xff\xc3", kPlain), DemoTokenizer().Encode("a\xef\xbf\xbd\xef\xbf\xbd", kPlain));
}

TokenizerSpec SpmSpec() {
  TokenizerSpec spec;
  spec.model = "llama";
  const auto add = [&](const std::string& text, TokenType type, float score) {
    spec.tokens.push_back(text);
    spec.types.push_back(type);
    spec.scores.push_back(score);
  };
  add("<unk>", TokenType::kUnknown, 0);
  add("<s>", TokenType::kControl, 0);
  add("</s>", TokenType::kControl, 0);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenType::kByte, 0);
  const std::string space = "\xE2\x96\x81";
  for (const std::string& letter : {space, std::string("a"), std::string("b"), std::string("c"), std::string("<"),
                                    std::string("/"), std::string("s"), std::string(">")}) {
    add(letter, TokenType::kNormal, -100);
  }
  add("ab", TokenType::kNormal, -2);
  add("bc", TokenType::kNormal, -1);
  add(space + "a", TokenType::kNormal, -3);
  add("</", TokenType::kNormal, -4);
  add("s>", TokenType::kNormal, -5);
  add("  ", TokenType::kUserDefined, 0);
  return spec;
}

TEST(Spm, BestScoreFirstSpacesAndBytes) {
  const auto tokenizer = MakeTokenizer(SpmSpec());
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("abc", {})), "<s>|▁a|bc");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("bab", kPlain)), "▁|b|ab");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("a\xC3\xA9", kPlain)), "▁a|<0xC3>|<0xA9>");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("", kPlain)), "");
}

TEST(Spm, SpaceComesBeforeEveryPartThatFollowsASpecialToken) {
  const auto tokenizer = MakeTokenizer(SpmSpec());
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("a<s>a", kWithControl)), "▁a|<s>|▁a");
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("c  c", kPlain)), "▁|c|  |▁|c");
  TokenizerSpec spec = SpmSpec();
  spec.add_space_prefix = false;
  EXPECT_EQ(Spell(*MakeTokenizer(spec), MakeTokenizer(spec)->Encode("a<s>a", kWithControl)), "a|<s>|a");
}

TEST(Spm, MergesNeverMakeAControlToken) {
  // "</" and "s>" are tokens, and "</s>" would have the best score of all.
  const auto tokenizer = MakeTokenizer(SpmSpec());
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("</s>", kPlain)), "▁|</|s>");
}

TEST(Spm, DecodingDropsTheSpaceThatEncodingPutInFront) {
  const auto tokenizer = MakeTokenizer(SpmSpec());
  EXPECT_EQ(Detokenize(*tokenizer, tokenizer->Encode("a b  c\xC3\xA9", kPlain), false), "a b   c\xC3\xA9");
  EXPECT_EQ(Detokenize(*tokenizer, tokenizer->Encode("abc", {}), true), "<s> abc");
}

TEST(Eog, CollectsIdsAndSpellings) {
  TokenizerSpec spec = ByteLevelSpec({}, {{"<|im_end|>", TokenType::kNormal}, {"</s>"}, {"other"}, {"<fim_pad>"}});
  spec.eos_id = 258;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->EogIds(), ElementsAre(256, 257, 258, 259));
  EXPECT_TRUE(tokenizer->IsControl(256)) << "an end token that the file calls normal";
}

TEST(Eog, ATagOfHtmlIsText) {
  TokenizerSpec spec = ByteLevelSpec({}, {{"<eos>"}, {"</s>", TokenType::kUserDefined}});
  spec.eos_id = 256;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->EogIds(), ElementsAre(256));
  EXPECT_EQ(Spell(*tokenizer, tokenizer->Encode("a</s>", kPlain)), "a|</s>");
  EXPECT_EQ(tokenizer->TokenBytes(257), "</s>");
  spec.eos_id = 257;  // the file says that it ends
  EXPECT_THAT(MakeTokenizer(spec)->EogIds(), ElementsAre(256, 257));
  EXPECT_TRUE(MakeTokenizer(spec)->IsControl(257));
}

TEST(Eog, HarmonyEndStandsBetweenMessages) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {{"<|return|>"}, {"<|call|>"}, {"<|end|>"}, {"<|channel|>"}}));
  EXPECT_THAT(tokenizer->EogIds(), ElementsAre(256, 257));
  EXPECT_EQ(tokenizer->TokenBytes(258), "<|end|>");
  EXPECT_EQ(tokenizer->TokenBytes(259), "<|channel|>");
  EXPECT_EQ(tokenizer->TokenBytes(256), "");
  EXPECT_TRUE(tokenizer->IsControl(259)) << "shown, but still nothing that a user may write";
}

TEST(Eog, WithoutHarmonyEndEnds) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {{"<|end|>"}}));
  EXPECT_THAT(tokenizer->EogIds(), ElementsAre(256));
}

void ExpectRefused(TokenizerSpec spec, const std::string& what) {
  const auto tokenizer = Tokenizer::FromSpec(std::move(spec));
  ASSERT_FALSE(tokenizer.ok()) << what;
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(what));
}

TEST(Refusals, NameWhatIsWrong) {
  TokenizerSpec spec = ByteLevelSpec({"a b"});
  spec.pre = "no-such-family";
  ExpectRefused(spec, "'no-such-family'");
  spec = ByteLevelSpec({"a b"});
  spec.model = "bert";
  ExpectRefused(spec, "'bert'");
  spec = ByteLevelSpec({"a b"});
  spec.merges.push_back("ab");
  ExpectRefused(spec, "entry 1 ('ab')");
  spec = ByteLevelSpec({"a b"});
  spec.tokens.push_back("ab");
  spec.types.push_back(TokenType::kNormal);
  ExpectRefused(spec, "entries 256 and 257 are both 'ab'");
  spec = ByteLevelSpec({"a b"});
  spec.types.pop_back();
  ExpectRefused(spec, "token_type has 256 entries");
  spec = SpmSpec();
  spec.scores.pop_back();
  ExpectRefused(spec, "scores has");
  ExpectRefused({.model = "gpt2"}, "is empty");
}

}  // namespace
}  // namespace layover
