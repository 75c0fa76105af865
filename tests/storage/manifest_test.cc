// The manifest: round trip, every byte and every length, every field's bounds, hostile JSON.
#include "common/storage/manifest.h"

#include <functional>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::ReadFile;
using testing::SampleIdentity;
using testing::TempFolder;
using testing::WriteFile;

Manifest SampleManifest() {
  Manifest manifest;
  manifest.id = "my chat/../\"x\"";
  manifest.owner = "Jürgen";
  manifest.generation = 17;
  manifest.n_tokens = 130;
  manifest.prefix = Digest{1, 2};
  manifest.created_at = 1'700'000'000;
  manifest.saved_at = 1'700'000'100;
  manifest.identity = SampleIdentity();
  manifest.template_digest = Digest{8, 9};
  manifest.numerics = "cpu-1";
  manifest.proof = Digest{10, 11};
  manifest.journal = {4711, Digest{12, 13}};
  const std::string other = ConversationFolder("", "other");
  manifest.branches = {{0, -1, 0, 130, Digest{1, 2}, {64, 129}, {{other, 900, 0, 64}, {"", 17, 64, 130}}},
                       {1, 0, 100, 120, Digest{3, 4}, {}, {{other, 900, 0, 64}, {"", 17, 64, 120}}}};
  ManifestSegment own;
  own.file = "s01-g000017.seg";
  own.stage = 1;
  own.generation = 17;
  own.layer_begin = 2;
  own.layer_end = 4;
  own.tokens = {{0, 64}, {100, 130}};
  own.bytes = 81920;
  own.live_bytes = 70000;
  own.index_digest = Digest{14, 15};
  ManifestSegment shared = own;
  shared.folder = other;
  shared.file = "s00-g000900.seg";
  shared.stage = 0;
  shared.generation = 900;
  shared.host = "tcp://10.0.0.7:7001";
  manifest.segments = {own, shared};
  return manifest;
}

// The text with its digest computed anew, as somebody who edits the file on purpose could do.
std::string Reseal(std::string text) {
  const size_t at = text.size() - 4 - 32;
  text.replace(at, 32, std::string(32, '0'));
  return text.replace(at, 32, DigestOf(text).Hex());
}

std::string Replace(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void ExpectRefused(const absl::StatusOr<ParsedManifest>& parsed, std::string_view field, std::string_view what) {
  EXPECT_TRUE(absl::IsDataLoss(parsed.status())) << what << parsed.status();
  EXPECT_NE(ToStd(parsed.status().message()).find("manifest.json"), std::string_view::npos) << parsed.status();
  EXPECT_NE(ToStd(parsed.status().message()).find(field), std::string_view::npos) << what << ": " << parsed.status();
  ASSERT_TRUE(PartOf(parsed.status()).has_value());
  EXPECT_EQ(PartOf(parsed.status())->file, "manifest.json");
}

TEST(ManifestTest, WhatIsWrittenIsRead) {
  const absl::StatusOr<SerializedManifest> out = SerializeManifest(SampleManifest());
  ASSERT_OK(out);
  const absl::StatusOr<ParsedManifest> in = ParseManifest(out->text);
  ASSERT_OK(in);
  EXPECT_EQ(in->manifest, SampleManifest());
  EXPECT_EQ(in->digest, out->digest);
  EXPECT_NE(out->text.find("\"id\": \"my chat/../\\\"x\\\"\""), std::string::npos);
  EXPECT_NE(out->text.find(ConversationFolder("", "other") + "/s00-g000900.seg\""), std::string::npos);
  EXPECT_EQ(in->manifest.TotalBytes(), 2 * 81920u);
}

TEST(ManifestTest, WithoutProofAndHost) {
  Manifest manifest = SampleManifest();
  manifest.proof.reset();
  manifest.segments[1].host.clear();
  const absl::StatusOr<SerializedManifest> out = SerializeManifest(manifest);
  ASSERT_OK(out);
  EXPECT_NE(out->text.find("\"proof\": null"), std::string::npos);
  EXPECT_EQ(ParseManifest(out->text)->manifest, manifest);
}

TEST(ManifestTest, EveryFlippedByteIsRefused) {
  const std::string text = SerializeManifest(SampleManifest())->text;
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      ASSERT_TRUE(absl::IsDataLoss(ParseManifest(damaged).status())) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(ManifestTest, EveryOtherLengthIsRefused) {
  const std::string text = SerializeManifest(SampleManifest())->text;
  for (size_t length = 0; length < text.size(); ++length) {
    ASSERT_TRUE(absl::IsDataLoss(ParseManifest(text.substr(0, length)).status())) << length;
  }
  for (const std::string& more : {std::string(" "), std::string("\n"), std::string("{}"), std::string(1, '\0')}) {
    ExpectRefused(ParseManifest(text + more), "digest", more);
  }
}

// With a right self-digest, so that only the content is wrong.
TEST(ManifestTest, WrongFieldsAreNamed) {
  const std::string text = SerializeManifest(SampleManifest())->text;
  ASSERT_OK(ParseManifest(Reseal(text)));
  const struct {
    const char* from;
    const char* to;
    const char* names;
  } kCases[] = {
      {"\"layover_manifest\": 1", "\"layover_manifest\": 2", "layover_manifest"},
      {"\"generation\": 17,", "\"generation\": 0,", "generation"},
      {"\"generation\": 17,", "\"generation\": -1,", "generation"},
      {"\"generation\": 17,", "\"generation\": 1.5,", "generation"},
      {"\"generation\": 17,", "\"generation\": \"17\",", "generation"},
      {"\"generation\": 17,", "\"generation\": 99999999999999999999,", "generation"},
      {"\"generation\": 17,", "\"generation\": 17,\n  \"generation\": 17,", "generation"},
      {"\"generation\": 17,", "", "generation"},
      {"\"generation\": 17,", "\"generation\": 17,\n  \"extra\": 1,", "order"},
      {"\"n_tokens\": 130", "\"n_tokens\": 131", "trunk"},
      {"\"n_tokens\": 130", "\"n_tokens\": 99999999", "n_tokens"},
      {"\"page_tokens\": 64", "\"page_tokens\": 32", "page_tokens"},
      {"\"owner\": \"J", "\"owner\": 3, \"x\": \"J", "owner"},
      {"\"prefix_digest\": \"0", "\"prefix_digest\": \"g", "prefix_digest"},
      {"\"prefix_digest\": \"0", "\"prefix_digest\": \"", "prefix_digest"},
      {"\"file\": \"s01-g000017.seg\"", "\"file\": \"../s01-g000017.seg\"", "segments"},
      {"\"file\": \"s01-g000017.seg\"", "\"file\": \"s02-g000017.seg\"", "segments"},
      {"\"live_bytes\": 70000", "\"live_bytes\": 81921", "live bytes"},
      {"\"fork_position\": 100", "\"fork_position\": 121", "branches"},
      {"\"parent\": 0", "\"parent\": 1", "branches"},
      {"\"parent\": 0", "\"parent\": 7", "branches"},
      {"\"bytes\": 4711", "\"bytes\": null", "journal: bytes"},
  };
  for (const auto& test : kCases)
    ExpectRefused(ParseManifest(Reseal(Replace(text, test.from, test.to))), test.names, test.to);
}

TEST(ManifestTest, HostileJsonIsRefused) {
  const std::string tail =
      SerializeManifest(SampleManifest())->text.substr(SerializeManifest(SampleManifest())->text.rfind(",\n"));
  std::string deep = "{\"a\": ";
  for (int i = 0; i < 200'000; ++i) deep += '[';
  ExpectRefused(ParseManifest(Reseal(deep + tail)), "deep", "deep");
  ExpectRefused(ParseManifest(Reseal("[1" + tail)), "JSON", "not an object");
  ExpectRefused(ParseManifest(Reseal("{\"id\": \"\xff\"" + tail)), "JSON", "not UTF-8");
  ExpectRefused(ParseManifest(Reseal("{\"a\": 1" + tail)), "layover_manifest", "nothing there");
}

TEST(ManifestTest, WhatBreaksARuleIsNotWritten) {
  const std::function<void(Manifest*)> kCases[] = {
      [](Manifest* m) { m->id = ""; },
      [](Manifest* m) { m->id = std::string(257, 'x'); },
      [](Manifest* m) { m->id = "a\nb"; },
      [](Manifest* m) { m->owner = "\xff\xfe"; },
      [](Manifest* m) { m->numerics = "\xff"; },
      [](Manifest* m) { m->branches.clear(); },
      [](Manifest* m) {
        m->branches[0].checkpoints = {64, 64};
      },
      [](Manifest* m) { m->branches[0].checkpoints = {131}; },
      [](Manifest* m) { m->branches[0].chain.pop_back(); },
      [](Manifest* m) { m->branches[0].chain[1].begin = 63; },
      [](Manifest* m) { m->branches[0].chain[1].end = 131; },
      [](Manifest* m) { m->branches[0].chain[1].generation = 16; },
      [](Manifest* m) { m->branches[1].chain[0].folder.clear(); },
      [](Manifest* m) {
        m->segments[0].tokens = {{5, 5}};
      },
      [](Manifest* m) {
        m->segments[0].tokens = {{5, 9}, {8, 10}};
      },
      [](Manifest* m) { m->segments[0].generation = 18, m->segments[0].file = "s01-g000018.seg"; },
      [](Manifest* m) { m->segments.push_back(m->segments[0]); },
      [](Manifest* m) { m->segments[1].folder = "../x"; },
      [](Manifest* m) { m->identity.weights.clear(); },
      [](Manifest* m) { m->identity.page_tokens = 63; },
  };
  for (const auto& change : kCases) {
    Manifest manifest = SampleManifest();
    change(&manifest);
    const absl::Status status = SerializeManifest(manifest).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << &change - kCases << status;
  }
}

TEST(ManifestTest, PublishingReplacesAndReadingNamesTheFile) {
  TempFolder folder;
  EXPECT_TRUE(absl::IsNotFound(ReadManifest(folder.path()).status()));
  bool visible = false;
  ASSERT_OK(PublishManifest(folder.path(), *SerializeManifest(SampleManifest()), &visible));
  EXPECT_TRUE(visible);
  Manifest newer = SampleManifest();
  newer.generation = 18;
  ASSERT_OK(PublishManifest(folder.path(), *SerializeManifest(newer), &visible));
  EXPECT_EQ(ReadManifest(folder.path())->manifest, newer);
  WriteFile(folder.path() + "/manifest.json", "x");
  ExpectRefused(ReadManifest(folder.path()), "digest", "x");
}

// If only the folder's last sync fails, the new manifest is there all the same, and the caller is told.
TEST(ManifestTest, AFailedLastSyncIsVisible) {
  TempFolder folder;
  bool visible = false;
  ASSERT_OK(PublishManifest(folder.path(), *SerializeManifest(SampleManifest()), &visible));
  for (int k = 1; k <= 5; ++k) {
    testing::RunWithFault("eio:" + std::to_string(k), [&] {
      Manifest newer = SampleManifest();
      newer.generation = 18 + k;
      bool now_visible = true;
      EXPECT_FALSE(PublishManifest(folder.path(), *SerializeManifest(newer), &now_visible).ok());
      EXPECT_EQ(now_visible, k == 5) << k;
    });
  }
}

TEST(ManifestTest, DifferencesOfIdentitiesAreNamed) {
  const StoredIdentity identity = SampleIdentity();
  EXPECT_TRUE(StoredIdentityDifferences(identity, identity).empty());
  StoredIdentity other = SampleIdentity(2);
  EXPECT_EQ(StoredIdentityDifferences(identity, other), std::vector<std::string>{"weights"});
  other.kv_type = "q8_0";
  other.rope = Digest{};
  EXPECT_EQ(StoredIdentityDifferences(identity, other), (std::vector<std::string>{"weights", "rope", "kv_type"}));
}

}  // namespace
}  // namespace layover
