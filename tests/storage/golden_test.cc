// One example of every record kind, every journal frame, of the manifest and of portable files, byte for byte:
// tests/golden/store_*. They pin the format: a change that makes old files unreadable, or writes other bytes, fails
// here.
//
// Refresh, after a deliberate change of the format (and of its version):
//   LAYOVER_REFRESH_GOLDENS=1 build/bin/storage_test --gtest_filter='GoldenTest.*'
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/journal_format.h"
#include "common/storage/on_disk.h"
#include "common/storage/record_plan.h"
#include "common/storage/segment_reader.h"
#include "fmt/format.h"
#include "tests/storage/portable_fixture.h"

namespace layover {
namespace {

using testing::ReadFile;
using testing::SampleIds;
using testing::SampleRecord;
using testing::TempFolder;
using testing::WriteFile;

constexpr std::string_view kRefresh =
    "# Made by tests/storage/golden_test.cc; refresh: LAYOVER_REFRESH_GOLDENS=1 build/bin/storage_test "
    "--gtest_filter='GoldenTest.*'\n"
    "# offset: 16 bytes; lines of zeros are left out; the last line is the length.\n";

std::string GoldenPath(const std::string& name) {
  return std::string(LAYOVER_SOURCE_DIR) + "/tests/golden/store_" + name;
}

std::string ToHex(std::string_view title, std::string_view bytes) {
  std::string text = fmt::format("# {}\n{}", title, kRefresh);
  for (size_t at = 0; at < bytes.size(); at += 16) {
    const std::string_view line = bytes.substr(at, 16);
    if (AllZero(line)) continue;
    text += fmt::format("{:06x}:", at);
    for (const char c : line) text += fmt::format(" {:02x}", static_cast<uint8_t>(c));
    text += '\n';
  }
  return text + fmt::format("= {}\n", bytes.size());
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    if (line.starts_with("= ")) {
      bytes.resize(std::stoul(line.substr(2)), '\0');
      continue;
    }
    bytes.resize(std::stoul(line.substr(0, 6), nullptr, 16), '\0');
    std::stringstream digits(line.substr(7));
    for (std::string digit; digits >> digit;) bytes += static_cast<char>(std::stoul(digit, nullptr, 16));
  }
  return bytes;
}

// Compares with the golden file, or writes it where that was asked for.
void ExpectGolden(const std::string& name, const std::string& text) {
  if (std::getenv("LAYOVER_REFRESH_GOLDENS") != nullptr) WriteFile(GoldenPath(name), text);
  EXPECT_EQ(ReadFile(GoldenPath(name)), text) << name;
}

SegmentHeader GoldenHeader() {
  SegmentHeader header;
  header.identity = *Digest::FromHex("00112233445566778899aabbccddeeff");
  header.conversation = ConversationDigest("ann", "chat");
  header.stage = 1;
  header.layer_begin = 2;
  header.layer_end = 5;
  header.generation = 17;
  header.n_tokens = 70;
  return header;
}

std::string Counting(size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 7 + 1);
  return out;
}

struct GoldenSegment {
  std::string name;
  std::vector<SampleRecord> records;
};

std::vector<GoldenSegment> GoldenSegments() {
  const std::vector<int32_t> ids = SampleIds(70);
  const PrefixDigests path(ids);
  std::vector<int32_t> other = ids;
  other[66] = 1;
  const PrefixDigests branch(other);
  const auto rows = [&](RecordKind kind, ElementType type, int layer, size_t row_bytes) {
    return std::vector<SampleRecord>{{{kind, type, layer, 0, 64, 0, path.At(64)}, Counting(64 * row_bytes)},
                                     {{kind, type, layer, 64, 70, 0, path.At(70)}, Counting(6 * row_bytes)},
                                     {{kind, type, layer, 64, 68, 1, branch.At(68)}, Counting(4 * row_bytes)}};
  };
  const auto state = [&](RecordKind kind, size_t bytes) {
    return SampleRecord{{kind, ElementType::kF32, 4, 0, 70, 0, path.At(70)}, Counting(bytes)};
  };
  const SampleRecord recurrent = state(RecordKind::kRecurrent, 256);
  const SampleRecord conv = state(RecordKind::kConv, 48);
  const SampleRecord window = {{RecordKind::kWindowKRows, ElementType::kF32, 3, 64, 70, 0, path.At(70)},
                               Counting(6 * 64)};
  Checkpoint checkpoint{70, CheckpointCause::kBeforeReply, {}};
  for (const SampleRecord* record : {&window, &recurrent, &conv}) {
    checkpoint.references.push_back({record->key.kind, record->key.layer, record->key.token_begin,
                                     record->key.token_end, DigestOf(record->payload)});
  }
  const SampleRecord check = {{RecordKind::kCheckpoint, ElementType::kTable, kNoLayer, 0, 70, 0, path.At(70)},
                              EncodeCheckpoint(checkpoint)};
  const auto id_record = [&](int32_t begin, int32_t end) {
    return SampleRecord{
        {RecordKind::kTokenIds, ElementType::kInt32, kNoLayer, begin, end, 0, path.At(end)},
        std::string(reinterpret_cast<const char*>(ids.data() + begin), 4 * static_cast<size_t>(end - begin))};
  };
  return {
      {"k_rows", rows(RecordKind::kKRows, ElementType::kF16, 2, 8)},
      {"v_rows", rows(RecordKind::kVRows, ElementType::kQ8_0, 2, 34)},
      {"window_k_rows", {window}},
      {"window_v_rows",
       {{{RecordKind::kWindowVRows, ElementType::kQ4_0, 3, 64, 70, 0, path.At(70)}, Counting(6 * 18)}}},
      {"recurrent", {recurrent}},
      {"conv", {conv}},
      {"checkpoint", {window, recurrent, conv, check}},
      {"token_ids", {id_record(0, 40), id_record(40, 70)}},
  };
}

TEST(GoldenTest, Segments) {
  for (const GoldenSegment& golden : GoldenSegments()) {
    TempFolder folder;
    const absl::StatusOr<SegmentSummary> summary = testing::WriteSegment(folder.path(), GoldenHeader(), golden.records);
    ASSERT_OK(summary);
    const std::string title = fmt::format("A segment of stage 1, layers [2, 5), generation 17: {}.", golden.name);
    ExpectGolden(golden.name + ".hex", ToHex(title, ReadFile(JoinPath(folder.path(), summary->file))));
  }
}

TEST(GoldenTest, CommittedSegmentsCanBeRead) {
  for (const GoldenSegment& golden : GoldenSegments()) {
    TempFolder folder;
    const std::string path = JoinPath(folder.path(), "s01-g000017.seg");
    WriteFile(path, FromHex(ReadFile(GoldenPath(golden.name + ".hex"))));
    SegmentExpectations expected;
    expected.identity = GoldenHeader().identity;
    expected.conversation = GoldenHeader().conversation;
    auto reader = SegmentReader::Open(path, expected, {testing::Buffered(), nullptr});
    ASSERT_OK(reader);
    std::vector<size_t> all;
    for (size_t i = 0; i < golden.records.size(); ++i) all.push_back(i);
    size_t seen = 0;
    ASSERT_OK((*reader)->ReadRecords(all, [&](const IndexEntry& entry, std::span<const std::byte> payload) {
      EXPECT_EQ(entry.key, golden.records[seen].key) << golden.name;
      EXPECT_EQ(AsText(payload), golden.records[seen].payload) << golden.name;
      ++seen;
      return absl::OkStatus();
    }));
    EXPECT_EQ(seen, golden.records.size());
  }
}

// A journal of one frame of each kind; its frames one by one.
std::vector<std::pair<std::string, std::string>> GoldenFrames() {
  const std::vector<int32_t> ids = {1, 500, 49151};
  const std::vector<std::pair<FrameKind, std::string>> payloads = {
      {FrameKind::kOpen, EncodeOpen({0x1122334455667788, 1'700'000'000'123, "ann", "chat"})},
      {FrameKind::kPrompt, EncodePrompt({kNoTurn, 0, 1'700'000'000'456, ids, "Hello\n", Digest{1, 2}})},
      {FrameKind::kGenerated, EncodeGenerated(0, std::span(ids).first(2))},
      {FrameKind::kTurnEnd, EncodeTurnEnd({0, TurnEnd::kStop, 4, "Hi.", Digest{3, 4}})},
      {FrameKind::kRewind, EncodeRewind(0, 3)},
      {FrameKind::kSaving, EncodeSave(17, Digest{5, 6})},
      {FrameKind::kSaved, EncodeSave(17, Digest{5, 6})},
      {FrameKind::kDeleted, ""},
  };
  std::vector<std::pair<std::string, std::string>> frames;
  FrameHeader header;
  for (const auto& [kind, payload] : payloads) {
    header.kind = kind;
    Digest chain;
    const std::string frame = EncodeFrame(header, kind == FrameKind::kOpen ? 0 : 0x1122334455667788, payload, &chain);
    frames.emplace_back(FrameKindName(kind), frame);
    header.previous = chain;
    ++header.sequence;
  }
  return frames;
}

TEST(GoldenTest, JournalFrames) {
  for (const auto& [name, frame] : GoldenFrames()) {
    ExpectGolden("frame_" + name + ".hex", ToHex(fmt::format("A journal's frame: {}.", name), frame));
  }
}

TEST(GoldenTest, CommittedFramesMakeUpAJournal) {
  TempFolder temp;
  const std::string folder = temp.path() + "/" + ConversationFolder("ann", "chat");
  std::filesystem::create_directory(folder);
  std::string journal;
  for (const auto& [name, frame] : GoldenFrames()) journal += FromHex(ReadFile(GoldenPath("frame_" + name + ".hex")));
  WriteFile(folder + "/journal", journal);
  const absl::StatusOr<Journal::Inspection> replay = Journal::Inspect(folder, std::nullopt);
  ASSERT_OK(replay);
  EXPECT_EQ(replay->torn_bytes, 0u);
  EXPECT_TRUE(replay->state.deleted);
  EXPECT_EQ(replay->state.TrunkIds(), (std::vector<int32_t>{1, 500, 49151}));
  EXPECT_EQ(replay->state.turns[0].text, "Hello\n");
  EXPECT_TRUE(replay->state.Accepts(17, Digest{5, 6}));
}

Manifest GoldenManifest() {
  Manifest manifest;
  manifest.id = "chat";
  manifest.owner = "ann";
  manifest.generation = 17;
  manifest.n_tokens = 70;
  manifest.prefix = DigestOfTokens(SampleIds(70));
  manifest.created_at = 1'700'000'000;
  manifest.saved_at = 1'700'003'600;
  manifest.identity = testing::SampleIdentity();
  manifest.template_digest = DigestOf("template");
  manifest.numerics = "cpu-1";
  manifest.proof = DigestOf("row");
  manifest.journal = {1234, DigestOf("chain")};
  const std::string parent = ConversationFolder("ann", "parent");
  manifest.branches = {{0, -1, 0, 70, manifest.prefix, {64, 69}, {{parent, 16, 0, 64}, {"", 17, 64, 70}}},
                       {1, 0, 66, 68, DigestOf("branch"), {}, {{parent, 16, 0, 64}, {"", 17, 64, 68}}}};
  ManifestSegment segment;
  segment.file = "s00-g000017.seg";
  segment.generation = 17;
  segment.layer_end = 2;
  segment.tokens = {{64, 70}};
  segment.bytes = 16384;
  segment.live_bytes = 4000;
  segment.index_digest = DigestOf("index");
  manifest.segments.push_back(segment);
  segment.folder = parent;
  segment.file = "s00-g000016.seg";
  segment.generation = 16;
  segment.tokens = {{0, 64}};
  segment.host = "tcp://10.0.0.7:7001";
  manifest.segments.push_back(segment);
  return manifest;
}

TEST(GoldenTest, ManifestIsTheSame) {
  const absl::StatusOr<SerializedManifest> out = SerializeManifest(GoldenManifest());
  ASSERT_OK(out);
  ExpectGolden("manifest.json", out->text);
  EXPECT_EQ(ParseManifest(ReadFile(GoldenPath("manifest.json")))->manifest, GoldenManifest());
}

// A portable file of each kind. The passphrase's and the key's hold only a journal: what is encrypted is long in hex.
struct GoldenPortable {
  std::string name;
  PortableSecret secret;
  bool saved = false;
};

std::vector<GoldenPortable> GoldenPortables() {
  return {
      {"plain", {}, true}, {"key", testing::SampleKey(), false}, {"passphrase", testing::SamplePassphrase(), false}};
}

TEST(GoldenTest, PortableFiles) {
  for (const GoldenPortable& golden : GoldenPortables()) {
    TempFolder temp;
    testing::SampleConversation chat(temp.path() + "/store");
    ASSERT_OK(chat.Begin());
    ASSERT_OK(chat.Turn(3, 2));
    if (golden.saved) ASSERT_OK(testing::SaveSmall(&chat));
    PortableWriteOptions options;
    options.chunk_bytes = limits::kMinPortableChunkBytes;
    options.salt.emplace().fill(0x5A);
    const std::string file = temp.path() + "/file";
    ASSERT_OK(ExportConversation(chat.store(), chat.folder(), file, golden.secret, options));
    ExpectGolden("portable_" + golden.name + ".hex",
                 ToHex(fmt::format("A portable file: {}.", golden.name), ReadFile(file)));
  }
}

TEST(GoldenTest, CommittedPortableFilesCanBeImported) {
  for (const GoldenPortable& golden : GoldenPortables()) {
    TempFolder temp;
    const std::string file = temp.path() + "/file";
    WriteFile(file, FromHex(ReadFile(GoldenPath("portable_" + golden.name + ".hex"))));
    const std::string store = temp.path() + "/store";
    ASSERT_OK(PrepareStore(store));
    const absl::StatusOr<PortableSummary> summary = testing::Import(store, file, golden.secret);
    ASSERT_OK(summary);
    EXPECT_EQ(summary->id, "chat");
    EXPECT_EQ(summary->n_segments, golden.saved ? 2 : 0);
    const absl::StatusOr<ConversationImage> image = LoadConversation(store, ConversationFolder("ann", "chat"));
    ASSERT_OK(image);
    EXPECT_EQ(image->journal.state.TrunkIds(), SampleIds(5, 7));
  }
}

}  // namespace
}  // namespace layover
