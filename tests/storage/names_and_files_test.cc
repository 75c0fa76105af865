// Names, durable files, fault points, the store's lock.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/fault_point.h"
#include "common/storage/file_names.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::CountFaultPoints;
using testing::ReadFile;
using testing::RunWithFault;
using testing::Snapshot;
using testing::TempFolder;
using testing::WriteFile;

mode_t ModeOf(const std::string& path) {
  struct stat info;
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

TEST(FileNamesTest, AFolderIsTheHashOfOwnerAndId) {
  // printf 'ann\0chat' | sha256sum
  EXPECT_EQ(ConversationFolder("ann", "chat"), "b4546a35bbaf689a4519af1f85a4c3e166c1dc5fbbecd16baa301f993cd525ea");
  EXPECT_NE(ConversationFolder("an", "nchat"), ConversationFolder("ann", "chat"));
  const std::string folder = ConversationFolder("", "../../etc/passwd");
  EXPECT_EQ(folder.size(), 64u);
  EXPECT_EQ(folder.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(FolderName(*ParseFolderName(folder)), folder);
}

TEST(FileNamesTest, OnlyExactNamesAreRead) {
  EXPECT_EQ(SegmentFileName(1, 17), "s01-g000017.seg");
  EXPECT_EQ(SegmentFileName(12, 1234567), "s12-g1234567.seg");
  for (const auto& [stage, generation] :
       {std::pair<int, int64_t>(0, 1), {63, 999999}, {7, 1000000}, {1, limits::kMaxGeneration}}) {
    const std::optional<SegmentName> name = ParseSegmentFileName(SegmentFileName(stage, generation));
    ASSERT_TRUE(name.has_value());
    EXPECT_EQ(name->stage, stage);
    EXPECT_EQ(name->generation, generation);
  }
  for (const char* bad :
       {"", "s01-g000017", "s1-g000017.seg", "s01-g17.seg", "s01-g000000.seg", "s64-g000001.seg", "s01-g0000017.seg",
        "s01-g-00017.seg", "s01-g000017.seg.tmp", "S01-g000017.seg", "s01-g000017.seg ", "s01g000017.seg", "s-g.seg",
        "s01-g99999999999999999999.seg", "s01-g9007199254740992.seg", "../s01-g000017.seg", "s-1-g000017.seg"}) {
    EXPECT_FALSE(ParseSegmentFileName(bad).has_value()) << bad;
  }
  EXPECT_FALSE(ParseFolderName("abc").has_value());
  EXPECT_FALSE(ParseFolderName(std::string(64, 'G')).has_value());
  EXPECT_FALSE(ParseFolderName(std::string(64, 'A')).has_value());
}

TEST(FileNamesTest, PathsSplit) {
  EXPECT_EQ(BaseName("/a/b"), "b");
  EXPECT_EQ(DirName("/a/b"), "/a");
  EXPECT_EQ(DirName("b"), ".");
  EXPECT_EQ(DirName("/b"), "/");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
}

TEST(DurableFileTest, WritesReplacesAndIsPrivate) {
  TempFolder temp;
  const std::string folder = temp.path() + "/c";
  const mode_t mask = umask(0);
  ASSERT_OK(EnsureFolder(folder));
  EXPECT_EQ(ModeOf(folder), 0700u);
  ASSERT_OK(WriteFileDurably(folder, "a", "one"));
  EXPECT_EQ(ModeOf(folder + "/a"), 0600u);
  umask(mask);
  ASSERT_OK(WriteFileDurably(folder, "a", "two"));
  EXPECT_EQ(ReadFile(folder + "/a"), "two");
  EXPECT_EQ(Snapshot(folder).size(), 1u);
  EXPECT_EQ(ReadWholeFile(folder + "/a", 3).value(), "two");
  EXPECT_TRUE(absl::IsResourceExhausted(ReadWholeFile(folder + "/a", 2).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadWholeFile(folder + "/b", 2).status()));
  ASSERT_OK(RemoveDurably(folder, "a"));
  ASSERT_OK(RemoveDurably(folder, "a"));  // can be repeated
  ASSERT_OK(RemoveEmptyFolder(folder));
  ASSERT_OK(RemoveEmptyFolder(folder));
}

TEST(DurableFileTest, AFolderThatWasOpenToOthersBecomesPrivate) {
  TempFolder temp;
  const std::string folder = temp.path() + "/c";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  ASSERT_OK(EnsureFolder(folder));
  EXPECT_EQ(ModeOf(folder), 0700u);
  WriteFile(folder + "/x", "x");
  EXPECT_TRUE(absl::IsFailedPrecondition(RemoveEmptyFolder(folder)));
}

TEST(DurableFileTest, SymbolicLinksAreNotFollowed) {
  TempFolder temp;
  const std::string real = temp.path() + "/real";
  ASSERT_EQ(mkdir(real.c_str(), 0700), 0);
  WriteFile(real + "/file", "secret");
  std::filesystem::create_symlink(real, temp.path() + "/folder-link");
  std::filesystem::create_symlink(real + "/file", real + "/file-link");
  EXPECT_TRUE(absl::IsDataLoss(ReadWholeFile(real + "/file-link", 100).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReadWholeFile(temp.path() + "/folder-link/file", 100).status()));
  EXPECT_FALSE(OpenFile(real + "/file-link", OpenMode::kReadWrite).ok());
  EXPECT_FALSE(WriteFileDurably(temp.path() + "/folder-link", "new", "x").ok());
  EXPECT_FALSE(EnsureFolder(temp.path() + "/folder-link").ok());
  EXPECT_FALSE(ListFolder(temp.path() + "/folder-link").ok());
  // Replacing a link replaces the link, not what it points to.
  ASSERT_OK(WriteFileDurably(real, "file-link", "new"));
  EXPECT_EQ(ReadFile(real + "/file"), "secret");
  // A link where the temporary file goes is removed, not written through.
  std::filesystem::create_symlink(real + "/file", real + "/a.tmp");
  ASSERT_OK(WriteFileDurably(real, "a", "new"));
  EXPECT_EQ(ReadFile(real + "/file"), "secret");
}

TEST(DurableFileTest, OnlyRegularFilesAreOpened) {
  TempFolder temp;
  ASSERT_EQ(mkfifo((temp.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(OpenFile(temp.path() + "/pipe", OpenMode::kRead).ok());
  EXPECT_FALSE(OpenFile(temp.path() + "/pipe", OpenMode::kReadWrite).ok());
  ASSERT_EQ(mkdir((temp.path() + "/d").c_str(), 0700), 0);
  EXPECT_FALSE(OpenFile(temp.path() + "/d", OpenMode::kRead).ok());
}

TEST(DurableFileTest, ErrorsNameThePathAndMeanWhatTheySay) {
  TempFolder temp;
  const absl::Status missing = OpenFile(temp.path() + "/nothing", OpenMode::kRead).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_NE(ToStd(missing.message()).find(temp.path() + "/nothing"), std::string_view::npos);
  EXPECT_TRUE(absl::IsNotFound(WriteFileDurably(temp.path() + "/nowhere", "a", "x")));
  const absl::StatusOr<uint64_t> free = FreeBytes(temp.path());
  ASSERT_OK(free);
  EXPECT_GT(*free, 0u);
}

// Every moment of a replacement: the old content or the new one, nothing else, and nothing left over that a second
// try does not clean up.
TEST(DurableFileTest, ACrashLeavesTheOldOrTheNewFile) {
  const auto body = [](const std::string& folder) {
    return [folder] { WriteFileDurably(folder, "a", "the new content").IgnoreError(); };
  };
  TempFolder counted;
  WriteFile(counted.path() + "/a", "old");
  const int points = CountFaultPoints(body(counted.path()));
  ASSERT_EQ(points, 5);  // remove of an older temporary file, write, sync, rename, sync of the folder
  std::set<std::string> seen;
  for (const char* verb : {"kill", "killbefore", "torn"}) {
    for (int k = 1; k <= points; ++k) {
      TempFolder temp;
      WriteFile(temp.path() + "/a", "old");
      EXPECT_FALSE(RunWithFault(std::string(verb) + ":" + std::to_string(k), body(temp.path())));
      const std::string content = ReadFile(temp.path() + "/a");
      EXPECT_TRUE(content == "old" || content == "the new content") << verb << k << content;
      seen.insert(content);
      ASSERT_OK(WriteFileDurably(temp.path(), "a", "again"));
      EXPECT_EQ(Snapshot(temp.path()), (std::map<std::string, std::string>{{"a", "again"}}));
    }
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(DurableFileTest, AFailureLeavesTheOldFileAndNothingElse) {
  for (int k = 1; k <= 4; ++k) {
    for (const char* verb : {"eio", "enospc"}) {
      TempFolder temp;
      WriteFile(temp.path() + "/a", "old");
      RunWithFault(std::string(verb) + ":" + std::to_string(k), [&] {
        const absl::Status status = WriteFileDurably(temp.path(), "a", "new");
        EXPECT_EQ(status.code(), verb[1] == 'i' ? absl::StatusCode::kInternal : absl::StatusCode::kResourceExhausted);
      });
      EXPECT_EQ(Snapshot(temp.path()), (std::map<std::string, std::string>{{"a", "old"}})) << verb << k;
    }
  }
}

TEST(FaultPointTest, CountsOnlyWhatIsAskedFor) {
  TempFolder temp;
  const auto body = [&] {
    WriteFileDurably(temp.path(), "a", "x").IgnoreError();
    WriteFileDurably(temp.path(), "b", "x").IgnoreError();
  };
  setenv("LAYOVER_FAULT_MATCH", "/b", 1);
  EXPECT_EQ(CountFaultPoints(body), 4);  // all but the folder's sync, which does not name the file
  unsetenv("LAYOVER_FAULT_MATCH");
  setenv("LAYOVER_FAULT_PROGRAM", "stage-1", 1);
  EXPECT_EQ(CountFaultPoints(body), 0);
  EXPECT_EQ(CountFaultPoints([&] {
              SetFaultProgram("stage-1");
              body();
            }),
            10);
  unsetenv("LAYOVER_FAULT_PROGRAM");
}

TEST(FaultPointTest, FromThereOnFailsEveryLaterOne) {
  TempFolder temp;
  EXPECT_TRUE(RunWithFault("enospc:3+", [&] {
    EXPECT_FALSE(WriteFileDurably(temp.path(), "a", "x").ok());
    EXPECT_FALSE(WriteFileDurably(temp.path(), "b", "x").ok());
  }));
}

TEST(StoreLockTest, OneAtATimeAndItSaysWho) {
  TempFolder temp;
  const std::string store = temp.path() + "/store";
  ASSERT_OK(PrepareStore(store));
  EXPECT_EQ(StoreLock::Holder(store).value(), 0);
  {
    auto lock = StoreLock::Acquire(store);
    ASSERT_OK(lock);
    EXPECT_EQ(StoreLock::Holder(store).value(), getpid());
    EXPECT_EQ(ModeOf(store + "/lock"), 0600u);
    const absl::Status second = StoreLock::Acquire(store).status();
    EXPECT_TRUE(absl::IsAborted(second));
    EXPECT_NE(ToStd(second.message()).find(std::to_string(getpid())), std::string_view::npos) << second;
  }
  EXPECT_EQ(StoreLock::Holder(store).value(), 0);
  EXPECT_OK(StoreLock::Acquire(store));
}

TEST(StoreLockTest, ADeadHolderHoldsNothing) {
  TempFolder temp;
  ASSERT_OK(PrepareStore(temp.path() + "/store"));
  EXPECT_FALSE(RunWithFault("kill:1", [&] {
    auto lock = StoreLock::Acquire(temp.path() + "/store");  // killed right after it wrote its pid
  }));
  EXPECT_OK(StoreLock::Acquire(temp.path() + "/store"));
}

TEST(PrepareStoreTest, MakesItAndRefusesAFolderOfOtherThings) {
  TempFolder temp;
  ASSERT_OK(PrepareStore(temp.path() + "/store"));
  EXPECT_EQ(ModeOf(temp.path() + "/store"), 0700u);
  EXPECT_EQ(ModeOf(temp.path() + "/store/c"), 0700u);
  ASSERT_OK(PrepareStore(temp.path() + "/store"));
  ASSERT_EQ(mkdir((temp.path() + "/empty").c_str(), 0755), 0);
  ASSERT_OK(PrepareStore(temp.path() + "/empty"));
  EXPECT_EQ(ModeOf(temp.path() + "/empty"), 0700u);
  ASSERT_EQ(mkdir((temp.path() + "/house").c_str(), 0755), 0);
  WriteFile(temp.path() + "/house/letter", "x");
  EXPECT_TRUE(absl::IsInvalidArgument(PrepareStore(temp.path() + "/house")));
  EXPECT_EQ(ModeOf(temp.path() + "/house"), 0755u);
  WriteFile(temp.path() + "/file", "x");
  EXPECT_FALSE(PrepareStore(temp.path() + "/file").ok());
}

}  // namespace
}  // namespace layover
