// Export and import of conversations: what arrives, under which name, and what is refused.
#include <filesystem>
#include <random>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/on_disk.h"
#include "common/storage/staging.h"
#include "tests/storage/portable_fixture.h"
#include "tests/storage/storage_exercise.h"

namespace layover {
namespace {

namespace fs = std::filesystem;
using testing::Fork;
using testing::Import;
using testing::PartsOf;
using testing::PortableParts;
using testing::ReadFile;
using testing::SampleConversation;
using testing::SampleKey;
using testing::SamplePassphrase;
using testing::Snapshot;
using testing::TransferTest;
using testing::WriteFile;
using testing::WritePortable;

TEST_F(TransferTest, ArrivesByteForByte) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(chat_.Turn(5, 4));  // the journal is ahead of the image
  for (const PortableSecret& secret : {PortableSecret(), SampleKey(), SamplePassphrase()}) {
    const auto before = Snapshot(here_);
    const absl::StatusOr<PortableSummary> out = Export(chat_, secret);
    ASSERT_OK(out);
    EXPECT_EQ(out->id, "chat");
    EXPECT_EQ(out->generation, 1);
    EXPECT_EQ(out->n_tokens, 131);
    EXPECT_EQ(out->n_segments, 2);
    EXPECT_EQ(out->bytes, fs::file_size(file_));
    EXPECT_EQ(Snapshot(here_), before) << "an export changes nothing";
    fs::remove_all(there_);
    ASSERT_OK(PrepareStore(there_));
    const absl::StatusOr<PortableSummary> in = Import(there_, file_, secret);
    ASSERT_OK(in);
    EXPECT_EQ(in->generation, 1);
    EXPECT_EQ(in->owner, "ann");
    EXPECT_EQ(in->bytes, out->bytes);
    EXPECT_EQ(Snapshot(there_), before);
    EXPECT_FALSE(fs::exists(StagingPath(there_)));
    ExpectSound(there_, "ann", "chat");
  }
}

TEST_F(TransferTest, OneThatWasNeverSaved) {
  const absl::StatusOr<PortableSummary> out = Export(chat_, SampleKey());
  ASSERT_OK(out);
  EXPECT_EQ(out->generation, 0);
  const absl::StatusOr<PortableSummary> in = Import(there_, file_, SampleKey(), {{}, "moved"});
  ASSERT_OK(in);
  EXPECT_EQ(in->generation, 0);
  EXPECT_EQ(Load(there_, "ann", "moved").journal.state.TrunkIds(), chat_.journal().state().TrunkIds());
  ExpectSound(there_, "ann", "moved");
}

TEST_F(TransferTest, UnderAnotherIdAndOwner) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(Export(chat_));
  ASSERT_OK(Import(there_, file_, {}, {"bob", "moved"}));
  ASSERT_OK(Import(there_, file_, {}, {"", {}}));
  for (const auto& [owner, id] : {std::pair("bob", "moved"), std::pair("", "chat")}) {
    const ConversationImage image = Load(there_, owner, id);
    ASSERT_OK(image.manifest_status);
    EXPECT_EQ(image.owner, owner);
    EXPECT_EQ(image.id, id);
    EXPECT_EQ(image.manifest->generation, 2) << "a save of its own";
    EXPECT_FALSE(image.missing_saved);
    EXPECT_EQ(image.manifest->n_tokens, 131);
    EXPECT_EQ(image.journal.state.TrunkIds(), chat_.journal().state().TrunkIds());
    EXPECT_EQ(image.journal.state.turns[0].text, "hello");
    EXPECT_EQ(image.journal.state.turns[0].reply_text, "there");
    ExpectSound(there_, owner, id);
    // The records are where they were.
    for (const std::string& name : {SegmentFileName(0, 1), SegmentFileName(1, 1)}) {
      const std::string was = ReadFile(JoinPath(chat_.path(), name));
      const std::string is = ReadFile(JoinPath(ConversationPath(there_, image.folder), name));
      ASSERT_EQ(is.size(), was.size());
      EXPECT_NE(is.substr(0, limits::kBlockBytes), was.substr(0, limits::kBlockBytes));
      EXPECT_EQ(is.substr(limits::kBlockBytes, is.size() - 2 * limits::kBlockBytes),
                was.substr(limits::kBlockBytes, was.size() - 2 * limits::kBlockBytes));
    }
  }
}

TEST_F(TransferTest, NamesThatAreNone) {
  ASSERT_OK(Export(chat_));
  const std::vector<ImportTarget> kTargets = {{{}, ""},         {{}, std::string(257, 'a')}, {{}, "a\n"},
                                              {{}, "\xC3\xA9"}, {std::string(257, 'a'), {}}, {"a\n", {}}};
  for (const ImportTarget& target : kTargets) {
    const absl::Status status = Import(there_, file_, {}, target).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  EXPECT_TRUE(Snapshot(there_).empty());
  // Any id is only hashed.
  ASSERT_OK(Import(there_, file_, {}, {{}, "../../escape"}));
  EXPECT_EQ(fs::exists(temp_.path() + "/escape"), false);
  EXPECT_TRUE(fs::exists(ConversationPath(there_, ConversationFolder("ann", "../../escape"))));
}

// ------------------------------------------------------------------------------------------------------------ forks

TEST_F(TransferTest, AForkBringsWhatItShares) {
  ASSERT_OK(chat_.Save());
  const auto fork = Fork(chat_, "fork");
  ASSERT_OK(fork);
  ASSERT_OK(Export(**fork, SampleKey()));
  ASSERT_OK(Import(there_, file_, SampleKey()));
  const ConversationImage image = Load(there_, "ann", "fork");
  ASSERT_OK(image.manifest_status);
  EXPECT_EQ(image.manifest->segments.size(), 2u);
  for (const ManifestSegment& segment : image.manifest->segments) {
    EXPECT_EQ(segment.folder, "") << "nothing is shared there";
    EXPECT_EQ(segment.generation, 2) << "a number that was never used";
  }
  EXPECT_EQ(image.manifest->branches[0].chain, (std::vector<ChainLink>{{"", 2, 0, 131}}));
  EXPECT_EQ(image.manifest->generation, 3);
  EXPECT_EQ(image.journal.state.TrunkIds(), (*fork)->journal().state().TrunkIds());
  ExpectSound(there_, "ann", "fork");
  EXPECT_EQ(ListConversationFolders(there_)->size(), 1u);
}

// A deleted conversation's segments that a fork still needs, and the same conversation back again.
TEST_F(TransferTest, IntoAFolderThatKeepsSegmentsForOthers) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(Export(chat_));
  ASSERT_OK(Fork(chat_, "fork"));
  absl::StatusOr<SegmentNames> names = SegmentNames::Collect(here_);
  ASSERT_OK(names);
  ASSERT_OK(DeleteConversation(here_, chat_.folder(), &chat_.journal(), &*names));
  const auto before = Snapshot(here_);
  ASSERT_OK(Import(here_, file_));
  for (const auto& [name, bytes] : before) EXPECT_EQ(ReadFile(JoinPath(here_, name)), bytes) << name;
  const ConversationImage image = Load(here_, "ann", "chat");
  ASSERT_OK(image.manifest_status);
  for (const ManifestSegment& segment : image.manifest->segments) EXPECT_EQ(segment.generation, 2);
  ExpectSound(here_, "ann", "chat");
  ExpectSound(here_, "ann", "fork");
  const absl::StatusOr<StartReport> clean = CleanStore(here_);
  ASSERT_OK(clean);
  EXPECT_TRUE(clean->removed.empty()) << clean->removed[0];
}

// --------------------------------------------------------------------------------------------------------- refusals

TEST_F(TransferTest, OneThatIsThereIsNeverReplaced) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(Export(chat_));
  const std::function<void()> kStates[] = {
      [] {},
      [&] { WriteFile(chat_.path() + "/manifest.json", "damage"); },
      [&] { fs::remove(chat_.path() + "/manifest.json"); },
      [&] { WriteFile(chat_.path() + "/journal", "damage"); },
      [&] { fs::remove(chat_.path() + "/journal"); },
  };
  const auto good = Snapshot(here_);
  for (const auto& damage : kStates) {
    damage();
    const auto before = Snapshot(here_);
    const absl::Status status = Import(here_, file_).status();
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_EQ(Snapshot(here_), before);
    for (const auto& [name, bytes] : good) WriteFile(JoinPath(here_, name), bytes);
  }
}

TEST_F(TransferTest, AWrongKeyImportsNothing) {
  ASSERT_OK(chat_.Save());
  ASSERT_OK(Export(chat_, SampleKey()));
  EXPECT_TRUE(absl::IsDataLoss(Import(there_, file_, SampleKey('l')).status()));
  EXPECT_TRUE(Snapshot(there_).empty());
}

TEST_F(TransferTest, DamageInTheStoreIsNotExported) {
  ASSERT_OK(chat_.Save());
  for (const std::string& name : {std::string("journal"), std::string("manifest.json"), SegmentFileName(1, 1)}) {
    const std::string path = JoinPath(chat_.path(), name);
    const std::string good = ReadFile(path);
    std::string bad = good;
    bad[bad.size() / 2] ^= 4;
    WriteFile(path, bad);
    const absl::Status status = Export(chat_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_EQ(PartOf(status).value_or(StatusPart{}).file, name) << status;
    EXPECT_FALSE(fs::exists(file_));
    WriteFile(path, good);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator()), 2) << "temporary left";
}

TEST_F(TransferTest, WhatCannotBeExported) {
  EXPECT_TRUE(absl::IsNotFound(ExportConversation(here_, ConversationFolder("ann", "x"), file_, {}).status()));
  ASSERT_OK(chat_.Save());
  WriteFile(file_, "mine");
  EXPECT_TRUE(absl::IsAlreadyExists(ExportConversation(here_, chat_.folder(), file_, {}).status()));
  EXPECT_EQ(ReadFile(file_), "mine");
  Manifest manifest = *Load(here_, "ann", "chat").manifest;
  manifest.generation = 2;
  manifest.segments[1].host = "tcp://10.0.0.7:7001";
  ASSERT_OK(CommitSave(here_, chat_.folder(), &manifest, &chat_.journal()).status);
  const absl::Status status = Export(chat_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.ToString().find("10.0.0.7"), std::string::npos);
  ASSERT_OK(chat_.journal().AppendDeleted());
  EXPECT_TRUE(absl::IsNotFound(Export(chat_).status()));
}

// A whole import of files with one flipped byte: never anything in the store. (Every byte of a file: portable_test.cc.)
TEST_F(TransferTest, AFlippedByteImportsNothing) {
  SampleConversation small(here_, "small");
  ASSERT_OK(small.Begin());
  ASSERT_OK(small.Turn(3, 2));
  ASSERT_OK(testing::SaveSmall(&small));
  for (const PortableSecret& secret : {PortableSecret(), SampleKey()}) {
    ASSERT_OK(Export(small, secret));
    const std::string good = ReadFile(file_);
    for (size_t at = 0; at < good.size(); at += 101) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      WriteFile(file_, bad);
      const absl::Status status = Import(there_, file_, secret).status();
      ASSERT_TRUE(absl::IsDataLoss(status)) << at << ": " << status;
      ASSERT_FALSE(fs::exists(StagingPath(there_)));
      ASSERT_TRUE(ListConversationFolders(there_)->empty()) << at;
    }
  }
}

// Damage under right digests, as a hostile file has it: whatever is taken in is sound, everything else leaves no trace.
TEST_F(TransferTest, HostileParts) {
  SampleConversation small(here_, "small");
  ASSERT_OK(small.Begin());
  ASSERT_OK(small.Turn(3, 2));
  ASSERT_OK(testing::SaveSmall(&small));
  const PortableParts good = PartsOf(small);
  std::mt19937_64 generator(5);
  const auto next = [&] { return generator(); };
  int taken = 0;
  for (int i = 0; i < 1'500; ++i) {
    PortableParts bad = good;
    switch (next() % 4) {
      case 0:
        bad.head.manifest = testing::ResealManifest(testing::MutateBytes(bad.head.manifest, next));
        break;
      case 1:
        bad.body[0] = testing::MutateBytes(bad.body[0], next);
        bad.head.journal_bytes = next() % 8 == 0 ? next() % 5000 : bad.body[0].size();
        break;
      default: {
        std::string& segment = bad.body[1 + next() % 2];
        segment = testing::ResealSegment(testing::MutateBytes(segment, next));
      }
    }
    if (!WritePortable(file_, bad, {}).ok()) continue;  // nothing is left of a part
    const ImportTarget target = next() % 2 == 0 ? ImportTarget{} : ImportTarget{"bob", "moved"};
    const absl::StatusOr<PortableSummary> in = Import(there_, file_, {}, target);
    ASSERT_FALSE(fs::exists(StagingPath(there_)));
    if (in.ok()) {
      ++taken;
      ExpectSound(there_, in->owner, in->id);
      fs::remove_all(ConversationPath(there_, ConversationFolder(in->owner, in->id)));
    }
    ASSERT_TRUE(ListConversationFolders(there_)->empty());
  }
  EXPECT_LT(taken, 750);
}

// The same with a manifest and a journal that say what the damaged segments say: nothing of them is caught before the
// segments themselves are looked at, and bound anew.
TEST_F(TransferTest, HostileSegmentsUnderTheirOwnManifest) {
  std::mt19937_64 generator(6);
  const auto next = [&] { return generator(); };
  int taken = 0;
  for (int i = 0; i < 400; ++i) {
    fs::remove_all(temp_.path() + "/evil");
    SampleConversation evil(temp_.path() + "/evil");
    ASSERT_OK(evil.Begin());
    ASSERT_OK(evil.Turn(3, 2));
    std::vector<SegmentSummary> summaries;
    for (int stage = 0; stage < SampleConversation::kStages; ++stage) {
      absl::StatusOr<SegmentSummary> summary =
          testing::WriteSegment(evil.path(), evil.HeaderOf(stage, 1), evil.RecordsOf(stage, 5, 17));
      ASSERT_OK(summary);
      const std::string path = JoinPath(evil.path(), summary->file);
      const std::string bytes = testing::ResealSegment(testing::MutateBytes(ReadFile(path), next));
      if (bytes.size() >= limits::kBlockBytes) {
        WriteFile(path, bytes);
        summary->bytes = bytes.size();
        summary->payload_bytes = 0;
        summary->index_digest = LoadBytes<DigestBytes>(bytes, bytes.size() - limits::kBlockBytes + 56).Value();
      }
      summaries.push_back(*summary);
    }
    Manifest manifest = evil.ManifestOf(1, summaries);
    ASSERT_OK(CommitSave(evil.store(), evil.folder(), &manifest, &evil.journal()).status);
    ASSERT_OK(WritePortable(file_, PartsOf(evil), {}));
    const absl::StatusOr<PortableSummary> in =
        Import(there_, file_, {}, next() % 2 == 0 ? ImportTarget{} : ImportTarget{"bob", "moved"});
    ASSERT_FALSE(fs::exists(StagingPath(there_)));
    if (in.ok()) {
      ++taken;
      ExpectSound(there_, in->owner, in->id);
      fs::remove_all(ConversationPath(there_, ConversationFolder(in->owner, in->id)));
    }
    ASSERT_TRUE(ListConversationFolders(there_)->empty());
  }
  EXPECT_GT(taken, 0) << "payload bytes may change";
  EXPECT_LT(taken, 300);
}

// Parts that are sound by themselves and do not belong together.
TEST_F(TransferTest, PartsOfSeveralConversations) {
  ASSERT_OK(chat_.Save());
  SampleConversation other(here_, "other");
  ASSERT_OK(other.Begin());
  ASSERT_OK(other.Turn(100, 31));
  ASSERT_OK(other.Save());
  const PortableParts a = PartsOf(chat_);
  const PortableParts b = PartsOf(other);
  std::vector<std::pair<std::string, PortableParts>> mixes(5, {"", a});
  mixes[0].first = "journal";
  mixes[0].second.body[0] = b.body[0];
  mixes[0].second.head.journal_bytes = b.body[0].size();
  mixes[1].first = "s00-g000001.seg";
  mixes[1].second.body[1] = b.body[1];
  mixes[2].first = "s00-g000001.seg";
  std::swap(mixes[2].second.body[1], mixes[2].second.body[2]);
  mixes[3].first = "manifest.json";
  mixes[3].second.head.manifest = b.head.manifest;
  mixes[4].first = "manifest.json";  // an image left out
  mixes[4].second.head.manifest.clear();
  mixes[4].second.body.resize(1);
  for (const auto& [file, parts] : mixes) {
    ASSERT_OK(WritePortable(file_, parts, SampleKey()));
    for (const ImportTarget& target : {ImportTarget{}, ImportTarget{{}, "moved"}}) {
      const absl::Status status = Import(there_, file_, SampleKey(), target).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << file << ": " << status;
      EXPECT_EQ(PartOf(status).value_or(StatusPart{}).file, file) << status;
      EXPECT_TRUE(Snapshot(there_).empty());
    }
  }
}

}  // namespace
}  // namespace layover
