// A crash or an error at any moment of an import or export leaves everything or nothing.
#include <filesystem>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/staging.h"
#include "tests/storage/portable_fixture.h"

namespace layover {
namespace {

namespace fs = std::filesystem;
using testing::CountFaultPoints;
using testing::Fork;
using testing::Import;
using testing::RunWithFault;
using testing::SampleKey;
using testing::Snapshot;
using testing::TransferTest;
using testing::WriteFile;

class TransferFaultTest : public TransferTest {
 protected:
  // Every kind of import there is, each with the state before it: as it came, bound anew, and in place of kept
  // segments.
  struct Way {
    std::string store;
    ImportTarget target;
    std::string id;
  };

  void SetUp() override {
    TransferTest::SetUp();
    ASSERT_OK(chat_.Save());
    ASSERT_OK(Export(chat_));
    ASSERT_OK(Fork(chat_, "fork"));
    absl::StatusOr<SegmentNames> names = SegmentNames::Collect(here_);
    ASSERT_OK(names);
    ASSERT_OK(DeleteConversation(here_, chat_.folder(), &chat_.journal(), &*names));
    chat_.CloseJournal();
    ways_ = {{there_, {}, "chat"}, {there_, {{}, "moved"}, "moved"}, {here_, {}, "chat"}};
  }

  void Restore(const std::string& store, const std::map<std::string, std::string>& files) {
    fs::remove_all(store);
    ASSERT_OK(PrepareStore(store));
    for (const auto& [name, bytes] : files) {
      fs::create_directories(fs::path(JoinPath(store, name)).parent_path());
      WriteFile(JoinPath(store, name), bytes);
    }
  }

  // Whether the conversation is there: whole then, and otherwise the store is as it was.
  bool Arrived(const Way& way, const std::map<std::string, std::string>& before, const std::string& what) {
    const absl::StatusOr<ConversationImage> image = LoadConversation(way.store, ConversationFolder("ann", way.id));
    const bool arrived = image.ok() && image->journal_status.ok();
    if (!arrived) {
      EXPECT_EQ(Snapshot(way.store), before) << what;
    } else {
      EXPECT_TRUE(image->manifest_status.ok()) << what << ": " << image->manifest_status;
      ExpectSound(way.store, "ann", way.id);
    }
    if (way.store == here_) ExpectSound(here_, "ann", "fork");
    return arrived;
  }

  std::vector<Way> ways_;
};

TEST_F(TransferFaultTest, ACrashAtAnyMomentLeavesAllOrNothing) {
  for (const Way& way : ways_) {
    const auto before = Snapshot(way.store);
    const auto body = [&] { Import(way.store, file_, {}, way.target).IgnoreError(); };
    const int points = CountFaultPoints(body);
    ASSERT_GT(points, 10);
    int arrived = 0;
    for (const char* verb : {"kill", "torn"}) {
      for (int k = 1; k <= points; ++k) {
        const std::string fault = std::string(verb) + ":" + std::to_string(k);
        Restore(way.store, before);
        ASSERT_FALSE(RunWithFault(fault, body)) << fault;
        ASSERT_OK(CleanStore(way.store));
        EXPECT_FALSE(fs::exists(StagingPath(way.store)));
        arrived += Arrived(way, before, fault);
      }
    }
    EXPECT_GT(arrived, 0);
    EXPECT_LT(arrived, points);
    Restore(way.store, before);
  }
}

TEST_F(TransferFaultTest, AFailureAtAnyMomentLeavesAllOrNothing) {
  for (const Way& way : ways_) {
    const auto before = Snapshot(way.store);
    const int points = CountFaultPoints([&] { ASSERT_OK(Import(way.store, file_, {}, way.target)); });
    for (const char* verb : {"eio", "enospc"}) {
      for (int k = 1; k <= points; ++k) {
        const std::string fault = std::string(verb) + ":" + std::to_string(k);
        Restore(way.store, before);
        ASSERT_TRUE(RunWithFault(fault, [&] {
          const absl::Status status = Import(way.store, file_, {}, way.target).status();
          EXPECT_EQ(Arrived(way, before, fault), status.ok()) << fault << ": " << status;
        }));
      }
    }
    Restore(way.store, before);
  }
}

TEST_F(TransferFaultTest, AKilledExportLeavesNothingOrAWholeFile) {
  const std::string copy = temp_.path() + "/copy";
  const auto body = [&] {
    ExportConversation(here_, ConversationFolder("ann", "fork"), copy, SampleKey()).IgnoreError();
  };
  const int points = CountFaultPoints(body);
  fs::remove(copy);
  // Without files that have no name a temporary one may stay.
  const bool may_stay = absl::IsFailedPrecondition(OpenUnnamed(temp_.path()).status());
  int whole = 0;
  for (int k = 1; k <= points; ++k) {
    ASSERT_FALSE(RunWithFault("kill:" + std::to_string(k), body)) << k;
    for (const auto& entry : fs::directory_iterator(temp_.path())) {
      const bool known = entry.path() == here_ || entry.path() == there_ || entry.path() == file_ || entry.path() == copy;
      EXPECT_TRUE(known || may_stay) << k << ": " << entry.path();
    }
    if (!fs::exists(copy)) continue;
    EXPECT_OK(PortableReader::Open(copy, SampleKey()));
    fs::remove(copy);
    ++whole;
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, points);
}

TEST_F(TransferFaultTest, AFailedExportLeavesNoFile) {
  const std::string copy = temp_.path() + "/copy";
  const std::string folder = ConversationFolder("ann", "fork");
  const auto body = [&] { ExportConversation(here_, folder, copy, SampleKey()).IgnoreError(); };
  const int points = CountFaultPoints(body);
  ASSERT_GT(points, 3);
  for (int k = 1; k <= points; ++k) {
    fs::remove(copy);
    RunWithFault("enospc:" + std::to_string(k), [&] {
      const absl::Status status = ExportConversation(here_, folder, copy, SampleKey()).status();
      // The last sync comes behind the rename: the file is whole then, and the error is told.
      EXPECT_TRUE(!status.ok() || fs::exists(copy)) << k << status;
      if (fs::exists(copy)) {
        EXPECT_OK(PortableReader::Open(copy, SampleKey()));
      }
    });
    for (const auto& entry : fs::directory_iterator(temp_.path())) {
      EXPECT_NE(entry.path().extension(), ".tmp") << k;
    }
  }
}

}  // namespace
}  // namespace layover
