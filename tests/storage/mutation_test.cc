// Seeded damage with right digests: whatever is accepted keeps the promises of the format page, whatever is not is an
// error and nothing worse. tests/fuzz/segment_fuzz.cc looks further with the same functions.
#include <random>

#include "common/storage/journal_format.h"
#include "tests/storage/storage_exercise.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::ExerciseFrames;
using testing::ExerciseManifest;
using testing::ExerciseSegment;
using testing::MutateBytes;
using testing::ReadFile;
using testing::ResealManifest;
using testing::ResealSegment;

class MutationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(chat_.Begin());
    ASSERT_OK(chat_.Turn(60, 10));
    ASSERT_OK(chat_.Save());
  }
  uint64_t Next() { return generator_(); }

  testing::TempFolder temp_;
  testing::SampleConversation chat_{temp_.path() + "/store"};
  std::mt19937_64 generator_{20};
};

TEST_F(MutationTest, Segments) {
  const std::string good = ReadFile(chat_.path() + "/s00-g000001.seg");
  ASSERT_TRUE(ExerciseSegment(ResealSegment(good)));
  EXPECT_EQ(ResealSegment(good), good);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    accepted += ExerciseSegment(ResealSegment(MutateBytes(good, [this] { return Next(); })));
  }
  EXPECT_GT(accepted, 0) << "payload bytes may change";
  EXPECT_LT(accepted, 15'000);
}

TEST_F(MutationTest, Manifests) {
  const std::string good = ReadFile(chat_.path() + "/manifest.json");
  ASSERT_TRUE(ExerciseManifest(ResealManifest(good)));
  int accepted = 0;
  for (int i = 0; i < 5'000; ++i) {
    accepted += ExerciseManifest(ResealManifest(MutateBytes(good, [this] { return Next(); })));
  }
  EXPECT_GT(accepted, 0) << "a digit of a digest may change";
  EXPECT_LT(accepted, 4'000);
}

TEST_F(MutationTest, Frames) {
  const std::vector<int32_t> ids = {1, 2, 3};
  std::string good;
  const auto add = [&](FrameKind kind, const std::string& payload) {
    const auto length = static_cast<uint16_t>(payload.size());
    good += static_cast<char>(kind);
    good.append(reinterpret_cast<const char*>(&length), sizeof(length));
    good += payload;
  };
  add(FrameKind::kPrompt, EncodePrompt({kNoTurn, 0, 0, ids, "text", {}}));
  add(FrameKind::kGenerated, EncodeGenerated(0, ids));
  add(FrameKind::kTurnEnd, EncodeTurnEnd({0, TurnEnd::kStop, 5, "reply", {}}));
  add(FrameKind::kPrompt, EncodePrompt({0, 4, 0, ids, "text", {}}));
  add(FrameKind::kRewind, EncodeRewind(1, 5));
  add(FrameKind::kSaving, EncodeSave(3, {}));
  add(FrameKind::kSaved, EncodeSave(3, {}));
  ASSERT_TRUE(ExerciseFrames(good));
  int accepted = 0;
  for (int i = 0; i < 50'000; ++i) accepted += ExerciseFrames(MutateBytes(good, [this] { return Next(); }));
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 45'000);
}

}  // namespace
}  // namespace layover
