// What gc removes: what nothing needs, and nothing else; while something cannot be read, nothing at all.
#include "common/storage/garbage.h"

#include <filesystem>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/staging.h"
#include "tests/storage/portable_fixture.h"

namespace layover {
namespace {

namespace fs = std::filesystem;
using testing::Fork;
using testing::SampleConversation;
using testing::Snapshot;
using testing::TempFolder;
using testing::WriteFile;

class GarbageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(chat_.Begin());
    ASSERT_OK(chat_.Turn(100, 31));
    ASSERT_OK(chat_.Save());
    ASSERT_OK(Fork(chat_, "fork"));
  }

  // Plants garbage of every kind; what gc should say of it, in its order.
  std::vector<GarbageFile> Plant() {
    const std::string fork = ConversationFolder("ann", "fork");
    const std::string staged = JoinPath(ConversationPath(StagingPath(store_), fork), "s00-g000001.seg");
    std::vector<GarbageFile> planted;
    const auto plant = [&](const std::string& path, const std::string& name, size_t bytes) {
      fs::create_directories(fs::path(path).parent_path());
      WriteFile(path, std::string(bytes, 'x'));
      planted.push_back({name, bytes});
    };
    plant(JoinPath(chat_.path(), "s00-g000007.seg"), JoinPath(chat_.folder(), "s00-g000007.seg"), 5);
    plant(JoinPath(chat_.path(), "manifest.json.tmp"), JoinPath(chat_.folder(), "manifest.json.tmp"), 6);
    plant(JoinPath(ConversationPath(store_, fork), "s01-g000002.seg"), JoinPath(fork, "s01-g000002.seg"), 7);
    plant(staged, std::string(kStagingName) + "/c/" + fork + "/s00-g000001.seg", 8);
    std::sort(planted.begin(), planted.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
    return planted;
  }

  TempFolder temp_;
  const std::string store_ = temp_.path() + "/store";
  SampleConversation chat_{store_};
};

TEST_F(GarbageTest, ASoundStoreHasNone) {
  const auto before = Snapshot(store_);
  EXPECT_TRUE(FindGarbage(store_)->empty());
  EXPECT_TRUE(CollectGarbage(store_)->empty());
  EXPECT_EQ(Snapshot(store_), before);
}

TEST_F(GarbageTest, WhatNothingNeedsGoesAndNothingElse) {
  const auto before = Snapshot(store_);
  const std::vector<GarbageFile> planted = Plant();
  const auto with = Snapshot(store_);
  EXPECT_EQ(*FindGarbage(store_), planted);
  EXPECT_EQ(Snapshot(store_), with) << "finding removes nothing";
  EXPECT_EQ(*CollectGarbage(store_), planted);
  EXPECT_EQ(Snapshot(store_), before);
  EXPECT_FALSE(fs::exists(StagingPath(store_)));
  EXPECT_TRUE(CollectGarbage(store_)->empty());
}

TEST_F(GarbageTest, OfADeletedConversationOnlyWhatOthersNeedStays) {
  ASSERT_OK(chat_.journal().AppendDeleted());  // and a crash
  const std::vector<GarbageFile> garbage = *FindGarbage(store_);
  ASSERT_EQ(garbage.size(), 2u);
  EXPECT_EQ(garbage[0].file, JoinPath(chat_.folder(), "journal"));
  EXPECT_EQ(garbage[1].file, JoinPath(chat_.folder(), "manifest.json"));
  EXPECT_EQ(*CollectGarbage(store_), garbage);
  EXPECT_TRUE(VerifyConversation(store_, ConversationFolder("ann", "fork"), nullptr)->ok());
}

TEST_F(GarbageTest, WhileAnythingIsUnreadableNothingIsRemoved) {
  Plant();
  const std::string fork = ConversationPath(store_, ConversationFolder("ann", "fork"));
  const auto before = Snapshot(store_);
  for (const char* name : {"manifest.json", "journal"}) {
    const std::string good = testing::ReadFile(JoinPath(fork, name));
    for (const std::string& bad : {std::string(), std::string("damage"), good.substr(1)}) {
      WriteFile(JoinPath(fork, name), bad);
      const auto damaged = Snapshot(store_);
      for (const absl::Status& status : {FindGarbage(store_).status(), CollectGarbage(store_).status()}) {
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_NE(status.ToString().find(ConversationFolder("ann", "fork")), std::string::npos) << status;
        EXPECT_EQ(PartOf(status).value_or(StatusPart{}).file, name);
      }
      EXPECT_EQ(Snapshot(store_), damaged);
    }
    WriteFile(JoinPath(fork, name), good);
  }
  EXPECT_EQ(Snapshot(store_), before);
  EXPECT_EQ(CollectGarbage(store_)->size(), 4u);
}

}  // namespace
}  // namespace layover
