// A store as a whole: crashes and failures at every moment of a save, files put in each other's place, what a start
// cleans up and what it must leave, deletion, verification.
#include "common/storage/store_layout.h"

#include <filesystem>
#include <functional>
#include <set>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

namespace fs = std::filesystem;
using testing::CountFaultPoints;
using testing::ReadFile;
using testing::RunWithFault;
using testing::SampleConversation;
using testing::Snapshot;
using testing::TempFolder;
using testing::WriteFile;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(chat_.Begin());
    ASSERT_OK(chat_.Turn(100, 31));
  }

  absl::StatusOr<VerifyReport> Verify(const SampleConversation& chat) {
    return VerifyConversation(chat.store(), chat.folder(), nullptr);
  }
  absl::StatusOr<VerifyReport> Verify() { return Verify(chat_); }

  ConversationImage Load(const SampleConversation& chat) {
    absl::StatusOr<ConversationImage> image = LoadConversation(chat.store(), chat.folder());
    EXPECT_OK(image);
    return *std::move(image);
  }

  std::string File(std::string_view name) const { return JoinPath(chat_.path(), name); }

  // Names in the conversation's folder.
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(chat_.path())) names.insert(entry.path().filename().string());
    return names;
  }

  void ExpectProblem(std::string_view file, std::string_view what) {
    const absl::StatusOr<VerifyReport> report = Verify();
    ASSERT_OK(report);
    EXPECT_FALSE(report->ok()) << what;
    ASSERT_FALSE(report->problems.empty()) << what;
    EXPECT_EQ(report->problems[0].file, file) << what << ": " << report->problems[0].what;
  }

  TempFolder temp_;
  SampleConversation chat_{temp_.path() + "/store"};
};

std::string Stage(int stage, int64_t generation) {
  return SegmentFileName(stage, generation);
}

TEST_F(StoreTest, ASavedConversationIsWhole) {
  ASSERT_OK(chat_.Save());
  const ConversationImage image = Load(chat_);
  EXPECT_OK(image.manifest_status);
  EXPECT_OK(image.journal_status);
  EXPECT_EQ(image.id, "chat");
  EXPECT_EQ(image.owner, "ann");
  EXPECT_EQ(image.manifest->generation, 1);
  EXPECT_EQ(image.next_generation, 2);
  EXPECT_FALSE(image.missing_saved);
  const absl::StatusOr<VerifyReport> report = Verify();
  ASSERT_OK(report);
  EXPECT_TRUE(report->ok()) << report->problems[0].what;
  EXPECT_EQ(report->generation, 1);
  EXPECT_EQ(report->n_records, 2u * (1 + 2 * 2 * 3));  // ids; two layers, K and V, three pages
  EXPECT_EQ(report->bytes, fs::file_size(File("journal")) + fs::file_size(File("manifest.json")) +
                               fs::file_size(File(Stage(0, 1))) + fs::file_size(File(Stage(1, 1))));
}

TEST_F(StoreTest, EverythingIsPrivate) {
  ASSERT_OK(chat_.Save());
  for (const auto& entry : fs::recursive_directory_iterator(chat_.store())) {
    const auto mode = entry.status().permissions() & fs::perms::mask;
    EXPECT_EQ(mode, entry.is_directory() ? fs::perms::owner_all : fs::perms::owner_read | fs::perms::owner_write)
        << entry;
  }
}

TEST_F(StoreTest, ANewSaveTakesTheOldOnesPlace) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(chat_.Turn(3, 3));
  ASSERT_OK(chat_.Save());
  EXPECT_EQ(Names(), (std::set<std::string>{"journal", "manifest.json", Stage(0, 2), Stage(1, 2)}));
  EXPECT_TRUE(Verify()->ok());
  EXPECT_EQ(Load(chat_).manifest->n_tokens, 137);
}

// ------------------------------------------------------------------------------------------------- crash and failure

// Stops a second save after, before and in the middle of every write, sync, rename, unlink and truncate: after a start
// the old or the new generation is there, all of it is sound, and nothing is left over.
TEST_F(StoreTest, ACrashAtAnyMomentLeavesTheOldOrTheNewGeneration) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(chat_.Turn(3, 3));
  chat_.CloseJournal();
  const std::map<std::string, std::string> before = Snapshot(chat_.store());
  const std::string folder = fs::relative(chat_.path(), chat_.store()).string() + "/";
  const auto restore = [&] {
    fs::remove_all(chat_.path());
    ASSERT_OK(EnsureFolder(chat_.path()));
    for (const auto& [name, bytes] : before) WriteFile(JoinPath(chat_.store(), name), bytes);
  };
  const auto body = [&] {
    ASSERT_OK(chat_.OpenJournal());
    chat_.Save().IgnoreError();
  };
  const int points = CountFaultPoints(body);
  ASSERT_GT(points, 20);
  restore();
  std::map<int64_t, int> outcomes;
  for (const char* verb : {"kill", "killbefore", "torn"}) {
    for (int k = 1; k <= points; ++k) {
      const std::string fault = std::string(verb) + ":" + std::to_string(k);
      ASSERT_FALSE(RunWithFault(fault, body)) << fault;
      ASSERT_OK(CleanStore(chat_.store()));
      const ConversationImage image = Load(chat_);
      ASSERT_TRUE(image.manifest_status.ok()) << fault << image.manifest_status;
      const int64_t generation = image.manifest->generation;
      EXPECT_TRUE(generation == 1 || generation == 2) << fault;
      ++outcomes[generation];
      EXPECT_EQ(Names(),
                (std::set<std::string>{"journal", "manifest.json", Stage(0, generation), Stage(1, generation)}))
          << fault;
      EXPECT_FALSE(image.missing_saved) << fault;
      if (generation == 1) {
        for (const std::string& name : {std::string("manifest.json"), Stage(0, 1), Stage(1, 1)}) {
          EXPECT_EQ(ReadFile(File(name)), before.at(folder + name)) << fault;
        }
      }
      const absl::StatusOr<VerifyReport> report = Verify();
      ASSERT_OK(report);
      EXPECT_TRUE(report->ok()) << fault << report->problems[0].file << report->problems[0].what;
      restore();
    }
  }
  EXPECT_GT(outcomes[1], 10);
  EXPECT_GT(outcomes[2], 5);
}

// The same with an error instead of a death: the process lives on, says so, and the next save works.
TEST_F(StoreTest, AFailureAtAnyMomentKeepsTheOldGeneration) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(chat_.Turn(3, 3));
  chat_.CloseJournal();
  const std::map<std::string, std::string> before = Snapshot(chat_.store());
  const auto restore = [&] {
    fs::remove_all(chat_.path());
    ASSERT_OK(EnsureFolder(chat_.path()));
    for (const auto& [name, bytes] : before) WriteFile(JoinPath(chat_.store(), name), bytes);
  };
  const auto body = [&] {
    ASSERT_OK(chat_.OpenJournal());
    chat_.Save().IgnoreError();
  };
  const int points = CountFaultPoints(body);
  restore();
  for (const char* verb : {"eio", "enospc"}) {
    for (int k = 1; k <= points; ++k) {
      const std::string fault = std::string(verb) + ":" + std::to_string(k);
      RunWithFault(fault, [&] {
        const absl::Status opened = chat_.OpenJournal();
        if (!opened.ok()) return;  // the very first sync
        const absl::Status saved = chat_.Save();
        const ConversationImage image = Load(chat_);
        ASSERT_TRUE(image.manifest_status.ok()) << fault << image.manifest_status;
        const bool is_new = image.manifest->generation == 2;
        // A save that says it is done is done; one that failed before the rename left no file of its own.
        EXPECT_TRUE(is_new || !saved.ok()) << fault;
        if (!is_new) {
          EXPECT_EQ(Names(), (std::set<std::string>{"journal", "manifest.json", Stage(0, 1), Stage(1, 1)})) << fault;
        }
        EXPECT_TRUE(Verify()->ok()) << fault;
        ASSERT_OK(chat_.Turn(1, 1));
        ASSERT_OK(chat_.Save());
        EXPECT_GT(Load(chat_).manifest->generation, image.manifest->generation);
        EXPECT_TRUE(Verify()->ok()) << fault;
      });
      ASSERT_OK(CleanStore(chat_.store()));
      EXPECT_EQ(Names().size(), 4u) << fault;
      EXPECT_TRUE(Verify()->ok()) << fault;
      restore();
    }
  }
}

// The crash came between the rename and the `saved` frame.
TEST_F(StoreTest, AMissingSavedIsAppended) {
  std::vector<SegmentSummary> summaries;
  for (int stage = 0; stage < 2; ++stage) {
    summaries.push_back(
        *testing::WriteSegment(chat_.path(), chat_.HeaderOf(stage, 1), chat_.RecordsOf(stage, chat_.n_tokens(), 17)));
  }
  Manifest manifest = chat_.ManifestOf(1, summaries);
  manifest.journal = chat_.journal().bound();
  const absl::StatusOr<SerializedManifest> text = SerializeManifest(manifest);
  ASSERT_OK(text);
  ASSERT_OK(chat_.journal().AppendSaving(1, text->digest));
  bool visible = false;
  ASSERT_OK(PublishManifest(chat_.path(), *text, &visible));
  EXPECT_TRUE(Load(chat_).missing_saved);
  EXPECT_OK(Load(chat_).manifest_status);
  const absl::StatusOr<StartReport> report = CleanStore(chat_.store());
  ASSERT_OK(report);
  EXPECT_EQ(report->completed, std::vector<std::string>{chat_.folder()});
  EXPECT_FALSE(Load(chat_).missing_saved);
  EXPECT_EQ(Load(chat_).journal.state.saved->generation, 1);
}

// ------------------------------------------------------------------------------------------------- wrong files

TEST_F(StoreTest, AnOlderCopyOfTheManifestIsRefused) {
  ASSERT_OK(chat_.Save());
  const std::map<std::string, std::string> old = Snapshot(chat_.path());
  ASSERT_OK(chat_.Turn(3, 3));
  ASSERT_OK(chat_.Save());
  WriteFile(File("manifest.json"), old.at("manifest.json"));
  WriteFile(File(Stage(0, 1)), old.at(Stage(0, 1)));
  WriteFile(File(Stage(1, 1)), old.at(Stage(1, 1)));
  EXPECT_TRUE(absl::IsDataLoss(Load(chat_).manifest_status));
  ExpectProblem("manifest.json", "older");
  // It is unreadable in this sense, so a start removes no segment: the right one may be put back.
  ASSERT_OK(CleanStore(chat_.store()));
  EXPECT_TRUE(Names().contains(Stage(0, 2)));
}

TEST_F(StoreTest, AnOlderCopyOfTheJournalIsRefused) {
  ASSERT_OK(chat_.Save());
  const std::string old = ReadFile(File("journal"));
  ASSERT_OK(chat_.Turn(3, 3));
  ASSERT_OK(chat_.Save());
  WriteFile(File("journal"), old);
  ExpectProblem("journal", "older");
}

TEST_F(StoreTest, OlderSegmentsUnderNewNamesAreRefused) {
  ASSERT_OK(chat_.Save());
  const std::map<std::string, std::string> old = Snapshot(chat_.path());
  ASSERT_OK(chat_.Turn(3, 3));
  ASSERT_OK(chat_.Save());
  WriteFile(File(Stage(0, 2)), old.at(Stage(0, 1)));
  ExpectProblem(Stage(0, 2), "older segment");
  EXPECT_EQ(Verify()->problems[0].stage, 0);
}

TEST_F(StoreTest, FilesOfAnotherConversationAreRefused) {
  SampleConversation other(chat_.store(), "other");
  ASSERT_OK(other.Begin());
  ASSERT_OK(other.Turn(100, 31));
  ASSERT_OK(other.Save());
  ASSERT_OK(chat_.Save());
  for (const std::string& name : {std::string("manifest.json"), std::string("journal"), Stage(0, 1), Stage(1, 1)}) {
    const std::string own = ReadFile(File(name));
    WriteFile(File(name), ReadFile(JoinPath(other.path(), name)));
    ExpectProblem(name, "swapped " + name);
    WriteFile(File(name), own);
  }
  EXPECT_TRUE(Verify()->ok());
  EXPECT_TRUE(Verify(other)->ok());
}

TEST_F(StoreTest, SwappedStagesAreRefused) {
  ASSERT_OK(chat_.Save());
  const std::string zero = ReadFile(File(Stage(0, 1)));
  WriteFile(File(Stage(0, 1)), ReadFile(File(Stage(1, 1))));
  WriteFile(File(Stage(1, 1)), zero);
  ExpectProblem(Stage(0, 1), "swapped stages");
}

TEST_F(StoreTest, MissingFilesAreProblems) {
  ASSERT_OK(chat_.Save());
  for (const std::string& name : {std::string("manifest.json"), std::string("journal"), Stage(0, 1), Stage(1, 1)}) {
    const std::string own = ReadFile(File(name));
    fs::remove(File(name));
    ExpectProblem(name, "missing " + name);
    WriteFile(File(name), own);
  }
}

// 200 flipped bytes over all files of a conversation: each is found, in the file where it is.
TEST_F(StoreTest, FlippedBytesAnywhereAreFound) {
  ASSERT_OK(chat_.Save());
  const std::map<std::string, std::string> files = Snapshot(chat_.path());
  for (const auto& [name, bytes] : files) {
    for (int i = 0; i < 50; ++i) {
      std::string damaged = bytes;
      const size_t at = bytes.size() * static_cast<size_t>(i) / 50 + static_cast<size_t>(i) % 7;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (i % 8)));
      WriteFile(File(name), damaged);
      ExpectProblem(name, name + " byte " + std::to_string(at));
      // Other conversations and this one's other files do not care.
    }
    WriteFile(File(name), bytes);
  }
  EXPECT_TRUE(Verify()->ok());
}

// Records that are sound one by one but do not make up the state.
TEST_F(StoreTest, AStateWithAHoleIsAProblem) {
  const auto without = [&](const std::function<bool(const RecordKey&)>& drop, int64_t generation) {
    std::vector<SegmentSummary> summaries;
    for (int stage = 0; stage < 2; ++stage) {
      std::vector<testing::SampleRecord> records = chat_.RecordsOf(stage, chat_.n_tokens(), 17);
      std::erase_if(records, [&](const testing::SampleRecord& record) { return drop(record.key); });
      summaries.push_back(*testing::WriteSegment(chat_.path(), chat_.HeaderOf(stage, generation), records));
    }
    Manifest manifest = chat_.ManifestOf(generation, summaries);
    ASSERT_OK(CommitSave(chat_.store(), chat_.folder(), &manifest, &chat_.journal()).status);
  };
  without(
      [](const RecordKey& key) { return key.layer == 2 && key.kind == RecordKind::kVRows && key.token_begin == 64; },
      1);
  absl::StatusOr<VerifyReport> report = Verify();
  ASSERT_OK(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_EQ(report->problems[0].layer, 2);
  EXPECT_NE(report->problems[0].what.find("V rows of layer 2 at token 64"), std::string::npos)
      << report->problems[0].what;
  without([](const RecordKey& key) { return key.layer == 3; }, 2);
  report = Verify();
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_EQ(report->problems[0].layer, 3);
  without([](const RecordKey&) { return false; }, 3);
  EXPECT_TRUE(Verify()->ok());
}

TEST_F(StoreTest, TokenIdsThatAreNotTheJournalsAreAProblem) {
  std::vector<SegmentSummary> summaries;
  for (int stage = 0; stage < 2; ++stage) {
    std::vector<testing::SampleRecord> records = chat_.RecordsOf(stage, chat_.n_tokens(), 17);
    if (stage == 1) records[0].payload[8] ^= 1;
    summaries.push_back(*testing::WriteSegment(chat_.path(), chat_.HeaderOf(stage, 1), records));
  }
  Manifest manifest = chat_.ManifestOf(1, summaries);
  ASSERT_OK(CommitSave(chat_.store(), chat_.folder(), &manifest, &chat_.journal()).status);
  ExpectProblem(Stage(1, 1), "ids");
}

// ------------------------------------------------------------------------------------------------- starts

TEST_F(StoreTest, AStartRemovesWhatNothingNames) {
  ASSERT_OK(chat_.Save());
  WriteFile(File(Stage(0, 7)), "left by a crash");
  WriteFile(File("manifest.json.tmp"), "left by a crash");
  const std::string empty = ConversationPath(chat_.store(), ConversationFolder("ann", "never"));
  ASSERT_OK(EnsureFolder(empty));
  WriteFile(JoinPath(empty, "journal.tmp"), "left by a crash");
  EXPECT_EQ(Load(chat_).next_generation, 8) << "a number that was used is not used again";
  const absl::StatusOr<StartReport> report = CleanStore(chat_.store());
  ASSERT_OK(report);
  EXPECT_EQ(report->removed.size(), 3u);
  EXPECT_FALSE(fs::exists(empty));
  EXPECT_EQ(Names(), (std::set<std::string>{"journal", "manifest.json", Stage(0, 1), Stage(1, 1)}));
  EXPECT_TRUE(CleanStore(chat_.store())->removed.empty());
}

TEST_F(StoreTest, WhileAManifestIsUnreadableNoSegmentIsRemoved) {
  ASSERT_OK(chat_.Save());
  SampleConversation other(chat_.store(), "other");
  ASSERT_OK(other.Begin());
  ASSERT_OK(other.Turn(10, 2));
  ASSERT_OK(other.Save());
  WriteFile(File(Stage(0, 7)), "left by a crash");
  const std::string good = ReadFile(JoinPath(other.path(), "manifest.json"));
  const std::string journal = ReadFile(JoinPath(other.path(), "journal"));
  const std::function<void()> kDamages[] = {
      [&] { WriteFile(JoinPath(other.path(), "manifest.json"), good.substr(1)); },
      [&] { fs::remove(JoinPath(other.path(), "manifest.json")); },
      [&] { WriteFile(JoinPath(other.path(), "journal"), journal.substr(10)); },
      [&] { fs::remove(JoinPath(other.path(), "journal")); },
  };
  for (const auto& damage : kDamages) {
    damage();
    const absl::StatusOr<StartReport> report = CleanStore(chat_.store());
    ASSERT_OK(report);
    EXPECT_FALSE(report->names.MayRemove());
    EXPECT_TRUE(report->names.unreadable().contains(other.folder()));
    EXPECT_TRUE(report->removed.empty());
    EXPECT_TRUE(Names().contains(Stage(0, 7)));
    EXPECT_TRUE(RemoveDeadSegments(chat_.store(), chat_.folder(), report->names)->empty());
    WriteFile(JoinPath(other.path(), "manifest.json"), good);
    WriteFile(JoinPath(other.path(), "journal"), journal);
  }
  EXPECT_EQ(CleanStore(chat_.store())->removed.size(), 1u);
}

TEST_F(StoreTest, ATornJournalIsMendedByAStart) {
  ASSERT_OK(chat_.Save());
  const std::string journal = ReadFile(File("journal"));
  WriteFile(File("journal"), journal + "LYJ1 half a frame");
  const absl::StatusOr<StartReport> report = CleanStore(chat_.store());
  ASSERT_OK(report);
  EXPECT_EQ(report->mended, std::vector<std::string>{chat_.folder()});
  EXPECT_EQ(ReadFile(File("journal")), journal);
}

TEST_F(StoreTest, SegmentsThatAnotherManifestNamesStay) {
  ASSERT_OK(chat_.Save());
  // A fork: its manifest names this conversation's segments.
  SampleConversation fork(chat_.store(), "fork");
  ASSERT_OK(fork.Begin());
  ASSERT_OK(fork.Turn(100, 31));
  Manifest manifest = *Load(chat_).manifest;
  manifest.id = "fork";
  manifest.prefix = manifest.branches[0].prefix = DigestOfTokens(fork.journal().state().TrunkIds());
  for (ManifestSegment& segment : manifest.segments) segment.folder = chat_.folder();
  for (ChainLink& link : manifest.branches[0].chain) link.folder = chat_.folder();
  ASSERT_OK(CommitSave(fork.store(), fork.folder(), &manifest, &fork.journal()).status);
  ASSERT_TRUE(Verify(fork)->ok()) << Verify(fork)->problems[0].what;

  absl::StatusOr<SegmentNames> names = SegmentNames::Collect(chat_.store());
  ASSERT_OK(names);
  ASSERT_OK(DeleteConversation(chat_.store(), chat_.folder(), &chat_.journal(), &*names));
  EXPECT_EQ(Names(), (std::set<std::string>{Stage(0, 1), Stage(1, 1)}));
  ASSERT_OK(CleanStore(chat_.store()));
  EXPECT_EQ(Names(), (std::set<std::string>{Stage(0, 1), Stage(1, 1)}));
  EXPECT_TRUE(Verify(fork)->ok());
  // The same id again: its numbers do not collide with the segments that stayed.
  EXPECT_EQ(Load(chat_).next_generation, 2);
  ASSERT_OK(DeleteConversation(fork.store(), fork.folder(), &fork.journal(), &*names));
  ASSERT_OK(CleanStore(chat_.store()));
  EXPECT_TRUE(ListConversationFolders(chat_.store())->empty());
}

// ------------------------------------------------------------------------------------------------- deletion

TEST_F(StoreTest, ACrashNeverBringsADeletedConversationBack) {
  ASSERT_OK(chat_.Save());
  chat_.CloseJournal();
  const std::map<std::string, std::string> before = Snapshot(chat_.store());
  const auto body = [&] {
    absl::StatusOr<SegmentNames> names = SegmentNames::Collect(chat_.store());
    DeleteConversation(chat_.store(), chat_.folder(), nullptr, &*names).IgnoreError();
  };
  const int points = CountFaultPoints(body);
  ASSERT_GT(points, 8);
  EXPECT_FALSE(fs::exists(chat_.path()));
  bool was_deleted = false;
  for (int k = 1; k <= points; ++k) {
    fs::remove_all(chat_.path());
    ASSERT_OK(EnsureFolder(chat_.path()));
    for (const auto& [name, bytes] : before) WriteFile(JoinPath(chat_.store(), name), bytes);
    EXPECT_FALSE(RunWithFault("kill:" + std::to_string(k), body));
    ASSERT_OK(CleanStore(chat_.store()));
    const bool deleted = !fs::exists(chat_.path());
    EXPECT_TRUE(deleted || !was_deleted) << k;
    was_deleted = deleted;
    EXPECT_TRUE(deleted || Verify()->ok()) << k;
  }
  EXPECT_TRUE(was_deleted);
}

TEST_F(StoreTest, ADamagedConversationCanBeDeleted) {
  ASSERT_OK(chat_.Save());
  chat_.CloseJournal();
  for (const char* name : {"journal", "manifest.json"}) WriteFile(File(name), "damage");
  absl::StatusOr<SegmentNames> names = SegmentNames::Collect(chat_.store());
  ASSERT_OK(names);
  EXPECT_FALSE(names->MayRemove());
  ASSERT_OK(DeleteConversation(chat_.store(), chat_.folder(), nullptr, &*names));
  EXPECT_FALSE(fs::exists(chat_.path()));
}

TEST_F(StoreTest, ADeletionThatCouldNotBeJournalledDidNotHappen) {
  ASSERT_OK(chat_.Save());
  absl::StatusOr<SegmentNames> names = SegmentNames::Collect(chat_.store());
  RunWithFault("enospc:1", [&] {
    EXPECT_FALSE(DeleteConversation(chat_.store(), chat_.folder(), &chat_.journal(), &*names).ok());
    EXPECT_TRUE(Verify()->ok());
    EXPECT_OK(chat_.Turn(1, 1));
  });
}

TEST_F(StoreTest, VerifyingNothingIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(VerifyConversation(chat_.store(), ConversationFolder("", "x"), nullptr).status()));
  const absl::StatusOr<VerifyReport> unsaved = Verify();
  ASSERT_OK(unsaved);
  EXPECT_TRUE(unsaved->ok());
  EXPECT_EQ(unsaved->generation, 0);
}

TEST_F(StoreTest, VerifyReportsItsProgress) {
  ASSERT_OK(chat_.Save());
  std::vector<uint64_t> seen;
  ASSERT_OK(VerifyConversation(chat_.store(), chat_.folder(), [&](uint64_t bytes) { seen.push_back(bytes); }));
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

}  // namespace
}  // namespace layover
