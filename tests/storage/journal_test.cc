// The journal: what was appended is replayed; torn tails are mended and nothing else is; failures keep every frame.
#include "common/storage/journal.h"

#include <filesystem>
#include <optional>

#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/journal_format.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::CountFaultPoints;
using testing::ReadFile;
using testing::RunWithFault;
using testing::SampleConversation;
using testing::SampleIds;
using testing::TempFolder;
using testing::WriteFile;

void ExpectDamage(const absl::Status& status, const std::string& what) {
  EXPECT_TRUE(absl::IsDataLoss(status)) << what << ": " << status;
  ASSERT_TRUE(PartOf(status).has_value()) << what;
  EXPECT_EQ(PartOf(status)->file, "journal") << what;
  EXPECT_NE(ToStd(status.message()).find("journal"), std::string_view::npos) << what;
}

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(chat_.Begin());
    ASSERT_OK(chat_.Turn(5, 3));
  }
  std::string file() const { return JoinPath(chat_.path(), "journal"); }
  uint64_t size() const { return std::filesystem::file_size(file()); }
  absl::StatusOr<Journal::Inspection> Inspect(const std::optional<JournalBound>& bound = std::nullopt) const {
    return Journal::Inspect(chat_.path(), bound);
  }
  // Replaces the file, then says what a replay makes of it.
  absl::StatusOr<Journal::Inspection> InspectAs(const std::string& bytes,
                                                const std::optional<JournalBound>& bound = std::nullopt) const {
    WriteFile(file(), bytes);
    return Inspect(bound);
  }
  // Unsynced frames of an unfinished turn, `count` of them with one id each.
  void Generate(int count) {
    PromptFrame prompt;
    prompt.parent = chat_.journal().state().trunk;
    prompt.fork_position = chat_.journal().state().trunk_length;
    const std::vector<int32_t> ids = SampleIds(4);
    prompt.ids = ids;
    ASSERT_OK(chat_.journal().AppendPrompt(prompt));
    for (int i = 0; i < count; ++i) ASSERT_OK(chat_.journal().AppendGenerated(Last(), std::span(ids).first(1)));
  }
  int64_t Last() { return chat_.journal().state().turns.back().number; }

  TempFolder temp_;
  SampleConversation chat_{temp_.path() + "/store"};
};

TEST_F(JournalTest, WhatWasAppendedIsReplayed) {
  ASSERT_OK(chat_.Turn(2, 0));
  const std::vector<int32_t> ids = SampleIds(3, 99);
  PromptFrame side;
  side.parent = 0;
  side.fork_position = 6;
  side.time_ms = 123;
  side.ids = ids;
  side.text = std::string_view("a \0 text", 8);
  side.message_hash = Digest{4, 5};
  ASSERT_OK(chat_.journal().AppendPrompt(side));
  ASSERT_OK(chat_.journal().AppendGenerated(2, ids));
  ASSERT_OK(chat_.journal().AppendSaving(3, Digest{7, 7}));
  ASSERT_OK(chat_.journal().AppendSaved(3, Digest{7, 7}));
  ASSERT_OK(chat_.journal().AppendSaving(4, Digest{8, 8}));
  ASSERT_OK(chat_.journal().AppendTurnEnd({2, TurnEnd::kCancelled, 11, "reply", Digest{6, 6}}));
  ASSERT_OK(chat_.journal().Flush());
  EXPECT_EQ(chat_.journal().bound().bytes, size());

  const absl::StatusOr<Journal::Inspection> replay = Inspect(chat_.journal().bound());
  ASSERT_OK(replay);
  const JournalState& state = replay->state;
  EXPECT_EQ(replay->torn_bytes, 0u);
  EXPECT_EQ(replay->end, chat_.journal().bound());
  EXPECT_EQ(state.owner, "ann");
  EXPECT_EQ(state.id, "chat");
  ASSERT_EQ(state.turns.size(), 3u);
  const JournalTurn& turn = state.turns[2];
  EXPECT_EQ(turn.parent, 0);
  EXPECT_EQ(turn.fork_position, 6);
  EXPECT_EQ(turn.prompt, ids);
  EXPECT_EQ(turn.generated, ids);
  EXPECT_EQ(turn.text, side.text);
  EXPECT_EQ(turn.message_hash, side.message_hash);
  EXPECT_TRUE(turn.ended);
  EXPECT_EQ(turn.end, TurnEnd::kCancelled);
  EXPECT_EQ(turn.reply_text, "reply");
  EXPECT_EQ(turn.reply_hash, (Digest{6, 6}));
  EXPECT_EQ(state.trunk, 2);
  EXPECT_EQ(state.trunk_length, 12);
  EXPECT_EQ(state.highest_generation, 4);
  EXPECT_TRUE(state.Accepts(3, Digest{7, 7}));
  EXPECT_TRUE(state.Accepts(4, Digest{8, 8}));
  EXPECT_FALSE(state.Accepts(4, Digest{7, 7}));
  EXPECT_FALSE(state.Accepts(2, Digest{7, 7}));
}

TEST_F(JournalTest, PathsFollowTheTree) {
  const std::vector<int32_t> first = chat_.journal().state().TrunkIds();
  ASSERT_EQ(first.size(), 8u);
  ASSERT_OK(chat_.Turn(2, 2));  // turn 1 goes on from the trunk
  const std::vector<int32_t> longer = chat_.journal().state().TrunkIds();
  EXPECT_EQ(std::vector<int32_t>(longer.begin(), longer.begin() + 8), first);
  const std::vector<int32_t> ids = SampleIds(3, 99);
  PromptFrame side;
  side.parent = 1;
  side.fork_position = 3;  // inside turn 0, although its parent is named as turn 1
  side.ids = ids;
  ASSERT_OK(chat_.journal().AppendPrompt(side));
  const JournalState& state = chat_.journal().state();
  const std::vector<int32_t> expected = {first[0], first[1], first[2], ids[0], ids[1], ids[2]};
  EXPECT_EQ(state.PathIds(2), expected);
  EXPECT_EQ(state.TrunkIds(), expected);
  EXPECT_EQ(state.PathIds(1), longer);
  EXPECT_EQ(state.FindTurn(5, DigestOfTokens(std::span(longer).first(5))), 1);
  EXPECT_EQ(state.FindTurn(3, DigestOfTokens(std::span(longer).first(3))), 2);
  EXPECT_EQ(state.FindTurn(12, DigestOfTokens(longer)), 1);
  EXPECT_EQ(state.FindTurn(5, Digest{1, 1}), kNoTurn);
  ASSERT_OK(chat_.journal().AppendRewind(1, 9));
  EXPECT_EQ(state.TrunkIds(), std::vector<int32_t>(longer.begin(), longer.begin() + 9));
  EXPECT_EQ(Inspect()->state.TrunkIds(), state.TrunkIds());
}

TEST_F(JournalTest, ASampledTokenNotYetFedIsJournalledNotHeld) {
  EXPECT_EQ(chat_.journal().state().trunk_length, 8);
  EXPECT_EQ(chat_.journal().state().HeldLength(0), 7);
  Generate(0);
  EXPECT_EQ(chat_.journal().state().HeldLength(1), 12);  // only a prompt
  ASSERT_OK(chat_.journal().AppendGenerated(1, SampleIds(2)));
  EXPECT_EQ(chat_.journal().state().HeldLength(1), 13);  // never ended: all but the last
  EXPECT_EQ(chat_.journal().state().HeldLength(kNoTurn), 0);
}

TEST_F(JournalTest, FramesThatBreakARuleAreRefusedAndNotTaken) {
  Journal& journal = chat_.journal();
  const uint64_t before = size();
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<int32_t> negative = {-1};
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendPrompt({7, 0, 0, ids, "", {}})));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendPrompt({0, 9, 0, ids, "", {}}))) << "beyond the parent";
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendPrompt({0, -1, 0, ids, "", {}})));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendPrompt({kNoTurn, 1, 0, ids, "", {}})));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendPrompt({0, 8, 0, negative, "", {}})));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendGenerated(0, ids))) << "turn 0 has ended";
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendGenerated(3, ids)));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendTurnEnd({0, TurnEnd::kStop, 1, "", {}})));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendRewind(0, 9)));
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendSaving(0, {})));
  EXPECT_EQ(size(), before);
  EXPECT_OK(journal.AppendDeleted());
  EXPECT_TRUE(absl::IsInvalidArgument(journal.AppendPrompt({0, 8, 0, ids, "", {}}))) << "deleted";
  EXPECT_OK(Inspect());
}

TEST_F(JournalTest, AnotherConversationsJournalIsRefused) {
  SampleConversation other(chat_.store(), "other");
  ASSERT_OK(other.Begin());
  std::filesystem::copy_file(JoinPath(other.path(), "journal"), file(),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectDamage(Inspect().status(), "swapped");
}

TEST_F(JournalTest, CreatingTwiceIsRefusedUnlessItWasDeleted) {
  EXPECT_TRUE(absl::IsAlreadyExists(Journal::Create(chat_.store(), {"ann", "chat", 0, 1}).status()));
  ASSERT_OK(chat_.journal().AppendDeleted());
  chat_.CloseJournal();
  const absl::StatusOr<std::unique_ptr<Journal>> again = Journal::Create(chat_.store(), {"ann", "chat", 0, 1});
  ASSERT_OK(again);
  EXPECT_TRUE((*again)->state().turns.empty());
}

// ------------------------------------------------------------------------------------------------------- torn tails

TEST_F(JournalTest, CutAnywhereInTheUnsyncedTailIsMended) {
  Generate(3);
  const std::string bytes = ReadFile(file());
  const uint64_t synced = size() - 3 * 84;
  for (uint64_t length = synced; length < bytes.size(); ++length) {
    const auto replay = InspectAs(bytes.substr(0, length));
    ASSERT_TRUE(replay.ok()) << length << replay.status();
    EXPECT_EQ(replay->end.bytes, synced + (length - synced) / 84 * 84) << length;
    EXPECT_EQ(replay->torn_bytes, (length - synced) % 84) << length;
  }
}

// A cut within what was promised. Alone, the journal cannot know, so the manifest's bound must tell.
TEST_F(JournalTest, CutBelowTheBoundIsDamage) {
  const std::string bytes = ReadFile(file());
  const JournalBound bound = chat_.journal().bound();
  for (uint64_t length = 0; length < bytes.size(); ++length) {
    ExpectDamage(InspectAs(bytes.substr(0, length), bound).status(), std::to_string(length));
  }
  EXPECT_OK(InspectAs(bytes, bound));
}

TEST_F(JournalTest, WithoutItsFirstFrameItIsDamage) {
  const std::string bytes = ReadFile(file());
  const size_t open_bytes = kFrameHeaderBytes + 32 + 7 + kFrameTrailerBytes;
  for (size_t length = 0; length < open_bytes; ++length) {
    ExpectDamage(InspectAs(bytes.substr(0, length)).status(), std::to_string(length));
  }
  EXPECT_OK(InspectAs(bytes.substr(0, open_bytes)));
}

TEST_F(JournalTest, EveryFlippedByteIsRefused) {
  Generate(2);
  const std::string bytes = ReadFile(file());
  const JournalBound bound = chat_.journal().bound();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    ExpectDamage(InspectAs(damaged).status(), "byte " + std::to_string(i));
    ExpectDamage(InspectAs(damaged, bound).status(), "bound, byte " + std::to_string(i));
    if (HasFailure()) break;
  }
}

TEST_F(JournalTest, ABoundThatIsNotTheJournalsIsDamage) {
  JournalBound bound = chat_.journal().bound();
  bound.chain.low ^= 1;
  ExpectDamage(Inspect(bound).status(), "another chain");
  bound = chat_.journal().bound();
  bound.bytes -= 1;
  ExpectDamage(Inspect(bound).status(), "no frame ends there");
  bound.bytes += 2;
  ExpectDamage(Inspect(bound).status(), "too short");
}

// The rule to the letter: p = end of the good frames, E = length of the file.
TEST_F(JournalTest, TheRuleOfTheTornTail) {
  const std::string good = ReadFile(file());
  const JournalBound bound = chat_.journal().bound();
  Generate(1);
  const std::string with_prompt = ReadFile(file()).substr(0, size() - 84);
  const std::string prompt = with_prompt.substr(good.size());
  const std::string generated = ReadFile(file()).substr(with_prompt.size());
  ASSERT_GT(prompt.size(), 64u);
  const size_t p = good.size();
  const auto zeros = [](size_t n) { return std::string(n, '\0'); };
  const auto to_boundary = [](size_t from) { return 512 - from % 512; };
  const std::string garbage(600, 'g');

  const struct {
    const char* what;
    std::string tail;
    bool mended;
  } kCases[] = {
      {"part of a header", prompt.substr(0, 20), true},
      {"any bytes shorter than a header", garbage.substr(0, 47), true},
      {"a good header whose payload runs past the end", prompt.substr(0, 60), true},
      {"all but the last byte", prompt.substr(0, prompt.size() - 1), true},
      {"bytes as long as a header that are none", garbage.substr(0, 48), false},
      {"a damaged header that would run past the end", "X" + prompt.substr(1, 60), false},
      {"a whole frame with a damaged payload",
       prompt.substr(0, prompt.size() - 20) + "X" + prompt.substr(prompt.size() - 19), false},
      {"zeros over a multiple of 512", zeros(to_boundary(p) + 1), true},
      {"zeros up to a multiple of 512 only, longer than a header", zeros(to_boundary(p)),
       to_boundary(p) < 48 || p % 512 == 0},
      {"a whole sector of zeros", zeros(1024), true},
      {"garbage, then zeros from a multiple of 512", garbage.substr(0, to_boundary(p)) + zeros(100), true},
      {"garbage over a multiple of 512, then zeros to the end, not over the next",
       garbage.substr(0, to_boundary(p) + 1) + zeros(100), false},
      {"garbage over a multiple of 512, then zeros over the next", garbage.substr(0, to_boundary(p) + 1) + zeros(600),
       true},
      {"zeros, then one byte", zeros(2000) + "x", false},
      {"a good header, then zeros instead of the payload", prompt.substr(0, 48) + zeros(1024), true},
      {"a damaged frame, then a good synced frame", generated + prompt, false},
      {"zeros, a good synced frame, zeros", zeros(1024) + prompt + zeros(1024), false},
      {"zeros, a good unsynced frame, zeros", zeros(1024) + generated + zeros(1024), true},
      {"a synced frame that runs past the end, behind zeros", zeros(1024) + prompt.substr(0, prompt.size() - 1), false},
  };
  for (const auto& test : kCases) {
    const auto replay = InspectAs(good + test.tail, bound);
    if (test.mended) {
      ASSERT_TRUE(replay.ok()) << test.what << ": " << replay.status();
      EXPECT_EQ(replay->end, bound) << test.what;
      EXPECT_EQ(replay->torn_bytes, test.tail.size()) << test.what;
      EXPECT_EQ(ReadFile(file()).size(), p + test.tail.size()) << "inspecting changes nothing";
      ASSERT_OK(Journal::Open(chat_.path(), bound));
      EXPECT_EQ(ReadFile(file()), good) << test.what;
    } else {
      ExpectDamage(replay.status(), test.what);
      EXPECT_FALSE(Journal::Open(chat_.path(), bound).ok());
      EXPECT_EQ(ReadFile(file()), good + test.tail) << "refusing changes nothing";
    }
  }
}

// A user's text that is the image of a good frame: with the salt unknown it is only text.
TEST_F(JournalTest, TextThatLooksLikeAFrameIsOnlyText) {
  Digest chain;
  FrameHeader header;
  header.kind = FrameKind::kDeleted;
  header.sequence = 99;
  std::string forged;
  for (const uint64_t salt : {0ull, 1ull, 4711ull}) forged += EncodeFrame(header, salt, "", &chain);
  PromptFrame prompt;
  prompt.parent = 0;
  prompt.fork_position = 8;
  prompt.text = forged;
  const uint64_t before = size();
  ASSERT_OK(chat_.journal().AppendPrompt(prompt));
  const std::string bytes = ReadFile(file());
  const auto replay = InspectAs(bytes.substr(0, bytes.size() - 1));
  ASSERT_OK(replay);
  EXPECT_EQ(replay->end.bytes, before);
}

TEST_F(JournalTest, AMendedJournalGoesOn) {
  Generate(2);
  const std::string bytes = ReadFile(file());
  chat_.CloseJournal();
  WriteFile(file(), bytes.substr(0, bytes.size() - 10));
  ASSERT_OK(chat_.OpenJournal());
  EXPECT_EQ(chat_.journal().torn_bytes(), 74u);
  EXPECT_EQ(chat_.journal().state().turns[1].generated.size(), 1u);
  ASSERT_OK(chat_.journal().AppendTurnEnd({1, TurnEnd::kUnfinished, 12, "", {}}));
  const auto replay = Inspect();
  ASSERT_OK(replay);
  EXPECT_TRUE(replay->state.turns[1].ended);
}

// --------------------------------------------------------------------------------------------------------- failures

// Each operation of a turn fails once; the chat goes on, and at the end the file says the same as if nothing had
// failed.
TEST_F(JournalTest, AFailedAppendGoesFirstWhenItCan) {
  const auto turns = [this] {
    for (int i = 0; i < 3; ++i) chat_.Turn(4, 3).IgnoreError();
  };
  // Appending to a copy of the store in a child leaves the parent's objects untouched.
  const int points = CountFaultPoints(turns);
  ASSERT_GT(points, 15);
  chat_.CloseJournal();
  for (const char* verb : {"eio", "enospc"}) {
    for (int k = 1; k <= points; ++k) {
      TempFolder temp;
      SampleConversation chat(temp.path() + "/store");
      ASSERT_OK(chat.Begin());
      RunWithFault(std::string(verb) + ":" + std::to_string(k), [&] {
        int failures = 0;
        for (int i = 0; i < 3; ++i) {
          // Turn() stops at the first error, as a caller that insists; this one does not.
          const JournalState& state = chat.journal().state();
          const std::vector<int32_t> ids = SampleIds(4, static_cast<uint64_t>(i));
          failures += !chat.journal().AppendPrompt({state.trunk, state.trunk_length, 0, ids, "text", {}}).ok();
          const int64_t turn = state.turns.back().number;
          for (int g = 0; g < 3; ++g) failures += !chat.journal().AppendGenerated(turn, std::span(ids).first(1)).ok();
          failures += !chat.journal().AppendTurnEnd({turn, TurnEnd::kStop, 1, "", {}}).ok();
        }
        EXPECT_LE(failures, 1);
        EXPECT_OK(chat.journal().Flush());
        EXPECT_EQ(chat.journal().pending_bytes(), 0u);
        const auto replay = Journal::Inspect(chat.path(), chat.journal().bound());
        ASSERT_OK(replay);
        EXPECT_EQ(replay->torn_bytes, 0u);
        EXPECT_EQ(replay->state.turns.size(), 3u);
        EXPECT_EQ(replay->state.TrunkIds(), chat.journal().state().TrunkIds());
        EXPECT_EQ(replay->state.trunk_length, 21);
      });
    }
  }
}

TEST_F(JournalTest, WhileTheDiskRefusesFramesWaitUpToALimit) {
  RunWithFault("enospc:1+", [&] {
    const std::string text(limits::kMaxJournalFrameBytes - 1000, 't');
    const uint64_t on_disk = size();
    absl::Status status;
    int taken = 0;
    for (; taken < 10; ++taken) {
      PromptFrame prompt;
      prompt.text = text;
      status = chat_.journal().AppendPrompt(prompt);
      if (absl::IsUnavailable(status)) break;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    }
    EXPECT_EQ(taken, 4);
    EXPECT_EQ(chat_.journal().state().turns.size(), 1u + 4);
    EXPECT_GT(chat_.journal().pending_bytes(), 4 * text.size());
    EXPECT_LE(chat_.journal().pending_bytes(), limits::kMaxJournalPendingBytes + 1000);
    EXPECT_GE(size(), on_disk);
  });
}

TEST_F(JournalTest, ASavingFrameThatCannotBeWrittenIsForgotten) {
  const std::string before = ReadFile(file());
  for (int k = 1; k <= 2; ++k) {  // the write, the sync
    RunWithFault("eio:" + std::to_string(k), [&] {
      EXPECT_FALSE(chat_.journal().AppendSaving(5, Digest{1, 1}).ok());
      EXPECT_FALSE(chat_.journal().state().Accepts(5, Digest{1, 1}));
      EXPECT_EQ(chat_.journal().state().highest_generation, 5) << "the number is used up";
      EXPECT_EQ(chat_.journal().pending_bytes(), 0u);
      EXPECT_EQ(ReadFile(file()), before);
      ASSERT_OK(chat_.Turn(3, 1));
      EXPECT_FALSE(Inspect()->state.Accepts(5, Digest{1, 1}));
      EXPECT_EQ(Inspect()->state.turns.size(), 2u);
    });
    chat_.CloseJournal();
    WriteFile(file(), before);
    ASSERT_OK(chat_.OpenJournal());
  }
}

// Killed at every moment of a turn: every promised frame is there, the rest is mended.
TEST_F(JournalTest, ACrashLosesNothingThatWasPromised) {
  const auto body = [this] { chat_.Turn(4, 3).IgnoreError(); };
  const int points = CountFaultPoints(body);
  ASSERT_EQ(points, 7);  // prompt: write, sync; three ids: a write each; end: write, sync
  const std::string before = ReadFile(file()).substr(0, chat_.journal().bound().bytes);
  for (const char* verb : {"kill", "killbefore", "torn"}) {
    for (int k = 1; k <= points; ++k) {
      WriteFile(file(), before);
      EXPECT_FALSE(RunWithFault(std::string(verb) + ":" + std::to_string(k), body));
      const auto replay = Inspect();
      ASSERT_TRUE(replay.ok()) << verb << k << replay.status();
      const bool prompt_promised = k > 2 || (k == 2 && verb == std::string("kill"));
      EXPECT_TRUE(replay->state.turns.size() == 2 || !prompt_promised) << verb << k;
      ASSERT_OK(Journal::Open(chat_.path(), std::nullopt));
      EXPECT_EQ(Inspect()->torn_bytes, 0u);
    }
  }
}

TEST_F(JournalTest, ACrashWhileCreatingLeavesNothingOrAWholeJournal) {
  const auto body = [](const std::string& store) {
    return [store] { Journal::Create(store, {"ann", "new", 0, 1}).IgnoreError(); };
  };
  const std::string folder = ConversationPath(chat_.store(), ConversationFolder("ann", "new"));
  const int points = CountFaultPoints(body(chat_.store()));
  std::filesystem::remove_all(folder);
  for (const char* verb : {"kill", "torn"}) {
    for (int k = 1; k <= points; ++k) {
      EXPECT_FALSE(RunWithFault(std::string(verb) + ":" + std::to_string(k), body(chat_.store())));
      ASSERT_OK(CleanStore(chat_.store()));
      const absl::Status status = Journal::Inspect(folder, std::nullopt).status();
      EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
      EXPECT_EQ(std::filesystem::exists(folder), status.ok()) << "an empty folder is removed";
      std::filesystem::remove_all(folder);
    }
  }
}

}  // namespace
}  // namespace layover
