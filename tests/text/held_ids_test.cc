// Held ids against the ids of a text that says the same: chats in real vocabularies, the held side in pieces that a
// model might have drawn, against a slow oracle; and the cases in which little must not be taken for much.
#include "coordinator/text/held_ids.h"

#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/text_fixtures.h"

namespace layover {
namespace {

using Ids = std::vector<int32_t>;

Ids Joined(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// A vocabulary with a control token between turns, and ways to spell a text with it.
class Speller {
 public:
  explicit Speller(TokenizerSpec spec) : turn_(static_cast<int32_t>(spec.tokens.size())) {
    spec.tokens.push_back("<|turn|>");
    spec.types.push_back(TokenType::kControl);
    if (!spec.scores.empty()) spec.scores.push_back(0);
    tokenizer_ = MakeTokenizer(std::move(spec));
    for (int32_t id = 0; id < tokenizer_->n_vocab(); ++id) {
      const std::string bytes(tokenizer_->TokenBytes(id));
      if (!bytes.empty() && !tokenizer_->IsControl(id)) ids_of_[bytes].push_back(id);
      longest_ = std::max(longest_, bytes.size());
    }
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Ids turn() const { return {turn_}; }
  Ids Encode(const std::string& text) const { return tokenizer_->Encode(text, {.add_special = false}); }

  // Some ids that spell `text`; false: it has a byte that no ids spell.
  bool Draw(const std::string& text, std::mt19937* random, Ids* ids) const {
    std::vector<bool> ends(text.size() + 1, false);  // the rest from here on can be spelled
    ends[text.size()] = true;
    const auto each = [&](size_t begin, const auto& use) {
      for (size_t n = 1; n <= longest_ && begin + n <= text.size(); ++n) {
        const auto found = ids_of_.find(text.substr(begin, n));
        if (found != ids_of_.end() && ends[begin + n]) use(n, found->second);
      }
    };
    for (size_t begin = text.size(); begin-- > 0;) {
      each(begin, [&](size_t, const Ids&) { ends[begin] = true; });
    }
    if (!ends[0]) return false;
    for (size_t begin = 0; begin < text.size();) {
      std::vector<std::pair<size_t, int32_t>> choices;
      each(begin, [&](size_t n, const Ids& with) {
        for (const int32_t id : with) choices.emplace_back(n, id);
      });
      const auto& [n, id] = choices[(*random)() % choices.size()];
      ids->push_back(id);
      begin += n;
    }
    return true;
  }

  // Bytes, and control tokens as symbols of their own.
  std::u32string Symbols(const Ids& ids) const {
    std::u32string symbols;
    for (const int32_t id : ids) {
      if (tokenizer_->IsControl(id)) symbols.push_back(0x110000 + static_cast<char32_t>(id));
      if (tokenizer_->IsControl(id)) continue;
      for (const char c : tokenizer_->TokenBytes(id)) symbols.push_back(static_cast<unsigned char>(c));
    }
    return symbols;
  }

  // What CommonTextOf promises where no space is put before a text.
  CommonText Oracle(const Ids& held, const Ids& fresh) const {
    CommonText best;
    const std::u32string all = Symbols(fresh);
    std::map<size_t, int64_t> ends;  // length in symbols to tokens of fresh
    for (size_t j = 0; j <= fresh.size(); ++j) {
      ends[Symbols({fresh.begin(), fresh.begin() + static_cast<ptrdiff_t>(j)}).size()] = static_cast<int64_t>(j);
    }
    for (size_t i = 1; i <= held.size(); ++i) {
      const std::u32string said = Symbols({held.begin(), held.begin() + static_cast<ptrdiff_t>(i)});
      if (all.compare(0, said.size(), said) != 0 || !ends.contains(said.size())) continue;
      best = {static_cast<int64_t>(i), ends[said.size()]};
    }
    return best;
  }

 private:
  int32_t turn_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::map<std::string, Ids> ids_of_;
  size_t longest_ = 0;
};

// The prompt that is read: what is held, then the rest of what was encoded.
Ids Spliced(const Ids& held, const Ids& fresh, const CommonText& common) {
  Ids ids(held.begin(), held.begin() + common.held_n);
  ids.insert(ids.end(), fresh.begin() + common.fresh_n, fresh.end());
  return ids;
}

struct Chat {
  Ids held;           // a prompt, and what the model drew, its end included
  Ids fresh;          // the same, encoded, and what the user says next
  int64_t old_n = 0;  // of fresh, what is held
};

class HeldIds : public ::testing::Test {
 protected:
  // use(speller, chat) for every two texts of every vocabulary.
  template <typename Use>
  void ForEachChat(Use use) {
    std::mt19937 random(20);
    for (const PublishedVocabulary& vocabulary : PublishedVocabularies()) {
      SCOPED_TRACE(vocabulary.label);
      const Speller speller(vocabulary.spec);
      for (size_t i = 1; i < vocabulary.texts.size(); ++i) {
        const std::string& question = vocabulary.texts[i - 1];
        const std::string& answer = vocabulary.texts[i];
        SCOPED_TRACE(answer);
        const Ids prompt = Joined({speller.turn(), speller.Encode(question), speller.turn()});
        Ids drawn;
        ASSERT_TRUE(speller.Draw(answer, &random, &drawn));
        Chat chat{.held = Joined({prompt, drawn, speller.turn()}),
                  .fresh = Joined({prompt, speller.Encode(answer), speller.turn()})};
        chat.old_n = static_cast<int64_t>(chat.fresh.size());
        chat.fresh = Joined({chat.fresh, speller.Encode(question), speller.turn()});
        use(speller, chat, random);
      }
    }
  }
};

TEST_F(HeldIds, AWholeTurnIsKeptWhateverItsIds) {
  int n_chats = 0, n_differ = 0;
  ForEachChat([&](const Speller& speller, const Chat& chat, std::mt19937&) {
    const CommonText common = CommonTextOf(speller.tokenizer(), chat.held, chat.fresh);
    EXPECT_EQ(common.held_n, static_cast<int64_t>(chat.held.size()));
    EXPECT_EQ(common.fresh_n, chat.old_n);
    ++n_chats;
    n_differ += !std::equal(chat.held.begin(), chat.held.end(), chat.fresh.begin());
    // Once they are used they are a prefix.
    const CommonText again = CommonTextOf(speller.tokenizer(), chat.held, Spliced(chat.held, chat.fresh, common));
    EXPECT_EQ(again.held_n, common.held_n);
    EXPECT_EQ(again.fresh_n, common.held_n);
  });
  EXPECT_GT(n_chats, 900);
  EXPECT_GT(n_differ, n_chats * 3 / 4) << "the encoding alone would have kept them";
}

TEST_F(HeldIds, ATurnCutAnywhereIsKeptToTheLastPlaceThatBothHave) {
  ForEachChat([&](const Speller& speller, const Chat& chat, std::mt19937& random) {
    Ids held = chat.held;
    held.resize(random() % (held.size() + 1));
    const CommonText common = CommonTextOf(speller.tokenizer(), held, chat.fresh);
    if (speller.tokenizer().drops_leading_space()) return;  // the oracle knows nothing of spaces
    const CommonText expected = speller.Oracle(held, chat.fresh);
    EXPECT_EQ(common.held_n, expected.held_n);
    EXPECT_EQ(common.fresh_n, expected.fresh_n);
    EXPECT_EQ(speller.Symbols(Spliced(held, chat.fresh, common)), speller.Symbols(chat.fresh));
  });
}

TEST_F(HeldIds, WhatSaysSomethingElseEndsIt) {
  ForEachChat([&](const Speller& speller, const Chat& chat, std::mt19937& random) {
    Ids held = chat.held;
    held[random() % held.size()] =
        static_cast<int32_t>(random() % static_cast<uint32_t>(speller.tokenizer().n_vocab()));
    const CommonText common = CommonTextOf(speller.tokenizer(), held, chat.fresh);
    const auto controls = [&](const Ids& ids) {
      return std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return speller.tokenizer().IsControl(id); });
    };
    EXPECT_EQ(controls(Spliced(held, chat.fresh, common)), controls(chat.fresh));
    if (speller.tokenizer().drops_leading_space()) return;
    const CommonText expected = speller.Oracle(held, chat.fresh);
    EXPECT_EQ(common.held_n, expected.held_n);
    EXPECT_EQ(common.fresh_n, expected.fresh_n);
  });
}

// ------------------------------------------------------------------------------------------------------------ cases

// Ids by the spelling of their tokens, joined by '|'.
Ids Spelled(const Tokenizer& tokenizer, const std::string& spelled) {
  Ids ids;
  for (size_t begin = 0; begin <= spelled.size() && !spelled.empty();) {
    const size_t end = std::min(spelled.find('|', begin), spelled.size());
    const std::string text = spelled.substr(begin, end - begin);
    int32_t id = tokenizer.n_vocab() - 1;
    while (id >= 0 && tokenizer.TokenText(id) != text) --id;
    EXPECT_GE(id, 0) << text;
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

struct Case {
  const char* what;
  const char* held;
  const char* fresh;
  int64_t held_n;
  int64_t fresh_n;
};

void Check(const Tokenizer& tokenizer, std::span<const Case> cases) {
  for (const Case& c : cases) {
    const CommonText common = CommonTextOf(tokenizer, Spelled(tokenizer, c.held), Spelled(tokenizer, c.fresh));
    EXPECT_EQ(common.held_n, c.held_n) << c.what;
    EXPECT_EQ(common.fresh_n, c.fresh_n) << c.what;
  }
}

TEST(HeldIdsCases, ByteLevel) {
  TokenizerSpec spec = ByteLevelSpec(
      {"a b", "ab c", "b c", "< t"},
      {{"<t>"}, {"<e>"}, {"<w>", TokenType::kUserDefined}, {"<n>", TokenType::kUnused}, {"<m>", TokenType::kUnused}});
  const auto tokenizer = MakeTokenizer(std::move(spec));
  const Case cases[] = {
      {"nothing held", "", "<t>|a", 0, 0},
      {"nothing asked", "<t>|a", "", 0, 0},
      {"equal", "<t>|abc|<e>", "<t>|abc|<e>|x", 3, 3},
      {"pieces held", "<t>|a|b|c|<e>", "<t>|abc|<e>|x", 5, 3},
      {"pieces encoded", "<t>|abc|<e>", "<t>|a|bc|<e>|x", 3, 4},
      {"other borders", "<t>|ab|c|<e>", "<t>|a|bc|<e>", 4, 4},
      {"several turns", "<t>|a|b|<e>|<t>|b|c|<e>", "<t>|ab|<e>|<t>|bc|<e>|x", 8, 6},
      {"the held text goes on", "<t>|a|b|c|a|<e>", "<t>|abc|<e>|x", 4, 2},
      {"the new text goes on", "<t>|a|b|<e>", "<t>|ab|a|<e>", 3, 2},
      {"held ends within a new token", "<t>|a|b", "<t>|abc|<e>", 1, 1},
      {"held ends between two", "<t>|a|b|c", "<t>|abc|<e>", 4, 2},
      {"a prompt that ends within what is held", "<t>|a|b|c|<e>", "<t>|ab", 3, 2},
      {"another control token", "<t>|a|b|<e>", "<t>|ab|<t>", 3, 2},
      {"text that spells a control token", "<t>|a|b|<|t|>|c", "<t>|ab|<t>|c", 3, 2},
      {"a control token where text spells it", "<t>|a|b|<t>|c", "<t>|ab|<|t|>|c", 3, 2},
      {"text that spells one, twice", "<t>|a|b|<t|>|c|<e>", "<t>|ab|<|t|>|c|<e>", 7, 7},
      {"a control token that the client does not see", "<t>|a|<t>|b|<e>", "<t>|ab|<e>", 1, 1},
      {"user-defined ones are text", "<t>|<|w|>|a|b|<e>", "<t>|<w>|ab|<e>", 7, 4},
      {"what is never shown is itself alone", "<t>|<n>|a|b|<e>", "<t>|<n>|ab|<e>", 5, 4},
      {"and no other", "<t>|<n>|a|b|<e>", "<t>|<m>|ab|<e>", 1, 1},
      {"and not nothing", "<t>|a|b|<n>|<e>", "<t>|ab|<e>", 3, 2},
      {"nothing is common", "<e>|a", "<t>|a", 0, 0},
  };
  Check(*tokenizer, cases);
}

// gpt-oss shows some of its control tokens: they have a text, and are none.
TEST(HeldIdsCases, ControlTokensThatAreShown) {
  const auto tokenizer =
      MakeTokenizer(ByteLevelSpec({}, {{"<|return|>"}, {"<|call|>"}, {"<|channel|>"}, {"<|message|>"}}));
  const std::string text = "a<|channel|>b<|message|>";
  const Ids control = tokenizer->Encode(text, {.add_special = false, .parse_special = true});
  const Ids spelled = tokenizer->Encode(text, {.add_special = false});
  ASSERT_EQ(control.size(), 4u);
  ASSERT_EQ(tokenizer->TokenBytes(control[1]), "<|channel|>");
  EXPECT_EQ(CommonTextOf(*tokenizer, control, spelled).held_n, 1);
  EXPECT_EQ(CommonTextOf(*tokenizer, spelled, control).held_n, 1);
  EXPECT_EQ(CommonTextOf(*tokenizer, control, control).held_n, 4);
}

// Llama's vocabularies begin a text after a special token with a space.
TEST(HeldIdsCases, SpacesBeforeText) {
  TokenizerSpec spec;
  spec.model = "llama";
  spec.tokens = {"<unk>", "<t>", "<e>", "<w>", "\u2581", "\u2581\u2581", "\u2581a", "a", "b", "ab", "\u2581ab"};
  spec.types.assign(spec.tokens.size(), TokenType::kNormal);
  spec.types[0] = TokenType::kUnknown;
  spec.types[1] = spec.types[2] = TokenType::kControl;
  spec.types[3] = TokenType::kUserDefined;
  spec.scores.assign(spec.tokens.size(), 0);
  const auto tokenizer = MakeTokenizer(std::move(spec));
  const Case cases[] = {
      {"drawn with its space, sent back with it", "<t>|\u2581a|b|<e>", "<t>|\u2581|\u2581ab|<e>|<t>", 4, 4},
      {"in one token", "<t>|\u2581|a|b|<e>", "<t>|\u2581\u2581|ab|<e>|<t>", 5, 4},
      {"drawn without", "<t>|a|b|<e>", "<t>|\u2581ab|<e>|<t>", 4, 3},
      {"drawn with it, sent back without", "<t>|\u2581a|b|<e>", "<t>|\u2581ab|<e>|<t>", 4, 3},
      {"in a later turn", "<t>|\u2581a|<e>|a|b|<e>", "<t>|\u2581a|<e>|\u2581ab|<e>|<t>", 6, 5},
      {"the first ids are equal, the text is not", "<t>|\u2581|a|b|<e>", "<t>|\u2581|\u2581ab|<e>", 5, 4},
      {"a space is all that was drawn", "<t>|\u2581|<e>", "<t>|\u2581|\u2581|<e>", 3, 4},
      {"after a user-defined token", "<t>|\u2581a|<w>|a|b|<e>", "<t>|\u2581a|<w>|\u2581ab|<e>", 6, 5},
      {"one space only", "<t>|a|b|<e>", "<t>|\u2581|\u2581ab|<e>", 1, 1},
      {"only where text begins", "<t>|\u2581a|b|<e>", "<t>|\u2581a|\u2581|b|<e>", 2, 2},
      {"never in what is held", "<t>|\u2581|\u2581a|<e>", "<t>|\u2581a|<e>", 1, 1},
      {"at the beginning of all", "a|b|<e>", "\u2581ab|<e>|<t>", 3, 2},
  };
  Check(*tokenizer, cases);
}

TEST(HeldIdsCases, AsLongAsChatsGet) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({"a b"}, {{"<t>"}}));
  const Ids a_b = Spelled(*tokenizer, "a|b"), ab = Spelled(*tokenizer, "ab");
  Ids held, fresh;
  for (int i = 0; i < 150'000; ++i) {
    held.insert(held.end(), a_b.begin(), a_b.end());
    fresh.insert(fresh.end(), ab.begin(), ab.end());
  }
  const CommonText common = CommonTextOf(*tokenizer, held, fresh);
  EXPECT_EQ(common.held_n, 300'000);
  EXPECT_EQ(common.fresh_n, 150'000);
}

TEST(HeldIdsCases, TheDemoModelsChat) {
  const Tokenizer& tokenizer = DemoTokenizer();
  const auto encode = [&](const std::string& text) {
    return tokenizer.Encode(text, {.add_special = false, .parse_special = true});
  };
  const std::string answer = "The weather is fine, isn't it?\n";
  const Ids prompt = encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
  Ids drawn;
  for (const char c : answer) drawn.push_back(encode(std::string(1, c)).at(0));
  const Ids end = {tokenizer.eos_id()};
  const Ids held = Joined({prompt, drawn, end});
  const Ids old = Joined({prompt, encode(answer), end});
  const CommonText common = CommonTextOf(tokenizer, held, Joined({old, encode("\n<|im_start|>user\nbye<|im_end|>\n")}));
  EXPECT_EQ(common.held_n, static_cast<int64_t>(held.size()));
  EXPECT_EQ(common.fresh_n, static_cast<int64_t>(old.size()));
  EXPECT_LT(old.size(), held.size());
}

}  // namespace
}  // namespace layover
