// Segments: what is written is read; every byte that could be wrong is refused, with the file and its stage named.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/fork_join.h"
#include "common/storage/on_disk.h"
#include "common/storage/segment_reader.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::Buffered;
using testing::Noise;
using testing::ReadFile;
using testing::SampleRecord;
using testing::TempFolder;
using testing::WriteFile;
using testing::WriteSegment;

SegmentHeader SampleHeader() {
  SegmentHeader header;
  header.identity = Digest{11, 12};
  header.conversation = ConversationDigest("ann", "chat");
  header.stage = 1;
  header.layer_begin = 2;
  header.layer_end = 5;
  header.generation = 17;
  header.n_tokens = 70;
  return header;
}

RecordKey Rows(RecordKind kind, int layer, int begin, int end) {
  return {kind, ElementType::kF16, layer, begin, end, 0, Digest{static_cast<uint64_t>(end), 1}};
}

// Records of every kind, with lengths that leave padding behind some and none behind others.
std::vector<SampleRecord> SampleRecords() {
  std::vector<SampleRecord> records;
  records.push_back({{RecordKind::kTokenIds, ElementType::kInt32, kNoLayer, 0, 70, 0, Digest{70, 1}}, Noise(1, 280)});
  records.push_back({Rows(RecordKind::kKRows, 2, 0, 64), Noise(2, 64 * 16)});
  records.push_back({Rows(RecordKind::kKRows, 2, 64, 70), Noise(3, 6 * 16)});
  records.push_back({Rows(RecordKind::kVRows, 2, 0, 64), Noise(4, 64 * 2)});
  records.push_back({Rows(RecordKind::kWindowKRows, 3, 64, 70), Noise(5, 6 * 34)});
  records.push_back({Rows(RecordKind::kWindowVRows, 3, 64, 70), Noise(6, 6 * 34)});
  records.push_back({{RecordKind::kRecurrent, ElementType::kF32, 4, 0, 70, 0, Digest{70, 1}}, Noise(7, 4000)});
  records.push_back({{RecordKind::kConv, ElementType::kF32, 4, 0, 70, 0, Digest{70, 1}}, Noise(8, 52)});
  Checkpoint checkpoint{70, CheckpointCause::kTurnEnd, {{RecordKind::kConv, 4, 0, 70, Digest{5, 5}}}};
  records.push_back({{RecordKind::kCheckpoint, ElementType::kTable, kNoLayer, 0, 70, 0, Digest{70, 1}},
                     EncodeCheckpoint(checkpoint)});
  return records;
}

SegmentExpectations Expected(const SegmentHeader& header, const SegmentSummary& summary) {
  SegmentExpectations expected;
  expected.identity = header.identity;
  expected.conversation = header.conversation;
  expected.generation = header.generation;
  expected.stage = header.stage;
  expected.layer_begin = header.layer_begin;
  expected.layer_end = header.layer_end;
  expected.index_digest = summary.index_digest;
  expected.bytes = summary.bytes;
  return expected;
}

SegmentReader::Options ReadOptions(const BlockIoOptions& io = Buffered()) {
  SegmentReader::Options options;
  options.io = io;
  return options;
}

// Opens and reads all of it.
absl::Status ReadWhole(const std::string& path, const SegmentExpectations& expected) {
  absl::StatusOr<std::unique_ptr<SegmentReader>> reader = SegmentReader::Open(path, expected, ReadOptions());
  return reader.ok() ? (*reader)->VerifyAll() : reader.status();
}

void ExpectRefused(const absl::Status& status, const std::string& what) {
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) << what << ": " << status;
  const std::optional<StatusPart> part = PartOf(status);
  ASSERT_TRUE(part.has_value()) << what << ": " << status;
  EXPECT_EQ(part->file, "s01-g000017.seg") << what;
  EXPECT_EQ(part->stage, 1) << what;
  EXPECT_NE(ToStd(status.message()).find("s01-g000017.seg"), std::string_view::npos) << what;
}

class SegmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<SegmentSummary> summary = WriteSegment(folder_.path(), header_, records_);
    ASSERT_OK(summary);
    summary_ = *summary;
    path_ = JoinPath(folder_.path(), summary_.file);
    expected_ = Expected(header_, summary_);
    bytes_ = ReadFile(path_);
  }

  TempFolder folder_;
  const SegmentHeader header_ = SampleHeader();
  const std::vector<SampleRecord> records_ = SampleRecords();
  SegmentSummary summary_;
  std::string path_;
  std::string bytes_;
  SegmentExpectations expected_;
};

TEST_F(SegmentTest, WhatIsWrittenIsRead) {
  auto opened = SegmentReader::Open(path_, expected_, ReadOptions());
  ASSERT_OK(opened);
  SegmentReader& reader = **opened;
  EXPECT_EQ(reader.header(), header_);
  EXPECT_EQ(reader.index_digest(), summary_.index_digest);
  EXPECT_EQ(reader.file_bytes(), summary_.bytes);
  ASSERT_EQ(reader.index().size(), records_.size());
  std::vector<size_t> all(records_.size());
  std::iota(all.begin(), all.end(), 0);
  size_t seen = 0;
  EXPECT_OK(reader.ReadRecords(all, [&](const IndexEntry& entry, std::span<const std::byte> payload) {
    EXPECT_EQ(entry.key, records_[seen].key);
    EXPECT_EQ(AsText(payload), records_[seen].payload);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(payload.data()) % kRecordAlignment, 0u);
    ++seen;
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen, records_.size());
  EXPECT_OK(reader.VerifyAll());
}

TEST_F(SegmentTest, SummaryCountsWhatIsInTheFile) {
  uint64_t payload_bytes = 0;
  for (const SampleRecord& record : records_) payload_bytes += record.payload.size();
  EXPECT_EQ(summary_.payload_bytes, payload_bytes);
  EXPECT_EQ(summary_.n_records, records_.size());
  EXPECT_EQ(summary_.bytes, bytes_.size());
  EXPECT_EQ(summary_.file, "s01-g000017.seg");
}

TEST_F(SegmentTest, TheSameStateGivesTheSameFile) {
  TempFolder other;
  ASSERT_OK(WriteSegment(other.path(), header_, records_));
  EXPECT_EQ(ReadFile(JoinPath(other.path(), summary_.file)), bytes_);
}

// One byte at a time, all of them: headers, index, payloads, padding, footer.
TEST_F(SegmentTest, EveryFlippedByteIsRefused) {
  const int fd = open(path_.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const char flipped = static_cast<char>(bytes_[i] ^ (1 << (i % 8)));
    ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(i)), 1);
    ExpectRefused(ReadWhole(path_, expected_), "byte " + std::to_string(i));
    ASSERT_EQ(pwrite(fd, &bytes_[i], 1, static_cast<off_t>(i)), 1);
    if (HasFailure()) break;
  }
  close(fd);
  EXPECT_OK(ReadWhole(path_, expected_));
}

// The same without a manifest: a segment alone knows that it is damaged.
TEST_F(SegmentTest, EveryFlippedByteIsRefusedWithoutTheManifest) {
  const int fd = open(path_.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const char flipped = static_cast<char>(bytes_[i] ^ (0x80 >> (i % 8)));
    ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(i)), 1);
    ExpectRefused(ReadWhole(path_, {}), "byte " + std::to_string(i));
    ASSERT_EQ(pwrite(fd, &bytes_[i], 1, static_cast<off_t>(i)), 1);
    if (HasFailure()) break;
  }
  close(fd);
}

TEST_F(SegmentTest, EveryShorterFileIsRefused) {
  for (size_t length = bytes_.size(); length-- > 0;) {
    ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(length)), 0);
    ExpectRefused(ReadWhole(path_, expected_), "cut to " + std::to_string(length));
    ExpectRefused(ReadWhole(path_, {}), "cut to " + std::to_string(length) + ", no manifest");
    if (HasFailure()) break;
  }
}

TEST_F(SegmentTest, ALongerFileIsRefused) {
  WriteFile(path_, bytes_ + std::string(4096, '\0'));
  ExpectRefused(ReadWhole(path_, {}), "longer");
  WriteFile(path_, bytes_ + bytes_);
  ExpectRefused(ReadWhole(path_, {}), "twice");
}

TEST_F(SegmentTest, AFileThatIsNotTheManifestsIsRefused) {
  SegmentExpectations other = expected_;
  other.identity = Digest{99, 99};
  const absl::Status identity = ReadWhole(path_, other);
  EXPECT_TRUE(absl::IsFailedPrecondition(identity)) << identity;
  ExpectRefused(identity, "identity");
  EXPECT_EQ(PartOf(identity)->field, "weights");

  other = expected_;
  other.conversation = ConversationDigest("bob", "chat");
  ExpectRefused(ReadWhole(path_, other), "conversation");
  other = expected_;
  other.generation = 16;
  ExpectRefused(ReadWhole(path_, other), "generation");
  other = expected_;
  other.stage = 0;
  ExpectRefused(ReadWhole(path_, other), "stage");
  other = expected_;
  other.layer_end = 6;
  ExpectRefused(ReadWhole(path_, other), "layers");
  other = expected_;
  other.index_digest->low ^= 1;
  ExpectRefused(ReadWhole(path_, other), "index digest");
  other = expected_;
  *other.bytes += 4096;
  ExpectRefused(ReadWhole(path_, other), "length");
}

// The index digest binds the header too: the header of another generation on the same records is another file.
TEST_F(SegmentTest, AHeaderOfAnotherGenerationIsRefused) {
  SegmentHeader newer = header_;
  newer.n_tokens = 71;
  const std::string block = EncodeHeader(newer);
  WriteFile(path_, block + bytes_.substr(block.size()));
  ExpectRefused(ReadWhole(path_, {}), "exchanged header");
}

TEST_F(SegmentTest, DamageOfOneLayerNamesItAndLeavesTheOthersReadable) {
  auto reader = SegmentReader::Open(path_, expected_, ReadOptions());
  ASSERT_OK(reader);
  const IndexEntry entry = (*reader)->index()[4];
  ASSERT_EQ(entry.key.layer, 3);
  std::string damaged = bytes_;
  damaged[entry.offset + 5] ^= 4;
  WriteFile(path_, damaged);
  const size_t others[] = {0, 1, 2, 3};
  EXPECT_OK((*reader)->ReadRecords(others, nullptr));
  EXPECT_TRUE(absl::IsDataLoss((*reader)->VerifyAll()));
  EXPECT_EQ((*reader)->damaged_layer(), 3);
  // Nothing of the damaged record is handed over.
  std::vector<RecordKind> seen;
  const size_t positions[] = {3, 4, 5};
  EXPECT_TRUE(absl::IsDataLoss((*reader)->ReadRecords(positions, [&](const IndexEntry& e, std::span<const std::byte>) {
    seen.push_back(e.key.kind);
    return absl::OkStatus();
  })));
  EXPECT_EQ(seen, std::vector<RecordKind>{RecordKind::kVRows});
}

TEST_F(SegmentTest, TheCallersErrorComesBackAsItIs) {
  auto reader = SegmentReader::Open(path_, expected_, ReadOptions());
  ASSERT_OK(reader);
  const size_t positions[] = {0, 1};
  const absl::Status status = (*reader)->ReadRecords(
      positions, [](const IndexEntry&, std::span<const std::byte>) { return Cancelled("enough"); });
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_FALSE(PartOf(status).has_value());
  EXPECT_OK((*reader)->VerifyAll());
}

TEST_F(SegmentTest, AMissingFileIsNotFoundAndNamed) {
  std::filesystem::remove(path_);
  const absl::Status status = ReadWhole(path_, expected_);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(PartOf(status)->file, "s01-g000017.seg");
}

TEST_F(SegmentTest, AnExistingFileIsNotOverwritten) {
  EXPECT_TRUE(absl::IsAlreadyExists(WriteSegment(folder_.path(), header_, records_).status()));
  EXPECT_EQ(ReadFile(path_), bytes_);
}

TEST(SegmentWriterTest, AnUnfinishedFileIsRemoved) {
  TempFolder folder;
  const std::string path = JoinPath(folder.path(), "s01-g000017.seg");
  {
    auto writer = SegmentWriter::Create(path, SampleHeader(), {Buffered(), nullptr, 1});
    ASSERT_OK(writer);
    ASSERT_OK((*writer)->AppendRecord(Rows(RecordKind::kKRows, 2, 0, 64), 640));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SegmentWriterTest, RecordsThatBreakARuleAreRefusedAndTheFileGoes) {
  const struct {
    RecordKey key;
    size_t bytes;
    const char* why;
  } kCases[] = {
      {Rows(RecordKind::kKRows, 2, 63, 65), 32, "crosses a page"},
      {Rows(RecordKind::kKRows, 2, 64, 64), 32, "no tokens"},
      {Rows(RecordKind::kKRows, 2, -1, 3), 32, "negative"},
      {Rows(RecordKind::kKRows, 1, 0, 4), 32, "another stage's layer"},
      {Rows(RecordKind::kVRows, 5, 0, 4), 32, "another stage's layer"},
      {Rows(RecordKind::kVRows, kNoLayer, 0, 4), 32, "no layer"},
      {Rows(RecordKind::kVRows, 2, 0, 5), 32, "no whole rows"},
      {Rows(RecordKind::kVRows, 2, 0, 4), 0, "empty"},
      {{RecordKind::kRecurrent, ElementType::kF16, 2, 0, 4, 0, {}}, 32, "state is float32"},
      {{RecordKind::kRecurrent, ElementType::kF32, 2, 1, 4, 0, {}}, 32, "state begins at 0"},
      {{RecordKind::kTokenIds, ElementType::kInt32, 2, 0, 4, 0, {}}, 16, "ids have no layer"},
      {{RecordKind::kTokenIds, ElementType::kInt32, kNoLayer, 0, 4, 0, {}}, 12, "four bytes an id"},
      {{RecordKind::kKRows, ElementType::kInt32, 2, 0, 4, 0, {}}, 32, "rows of ids"},
      {{static_cast<RecordKind>(9), ElementType::kF32, 2, 0, 4, 0, {}}, 32, "unknown kind"},
      {Rows(RecordKind::kVRows, 2, 0, 4), limits::kMaxRecordBytes + 4, "too long"},
  };
  for (const auto& test : kCases) {
    TempFolder folder;
    const std::string path = JoinPath(folder.path(), "s01-g000017.seg");
    auto writer = SegmentWriter::Create(path, SampleHeader(), {Buffered(), nullptr, 1});
    ASSERT_OK(writer);
    const absl::Status status = (*writer)->AppendRecord(test.key, test.bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << test.why << ": " << status;
    EXPECT_FALSE(std::filesystem::exists(path)) << test.why;
  }
}

TEST(SegmentWriterTest, ASegmentWithoutRecordsIsValid) {
  TempFolder folder;
  const absl::StatusOr<SegmentSummary> summary = WriteSegment(folder.path(), SampleHeader(), {});
  ASSERT_OK(summary);
  EXPECT_EQ(summary->bytes, 2 * limits::kBlockBytes);
  EXPECT_OK(ReadWhole(JoinPath(folder.path(), summary->file), Expected(SampleHeader(), *summary)));
}

// Runs as long as limits::kMinRunBytes start on a block of their own, shorter ones are joined.
TEST(SegmentWriterTest, OnlyLongRunsAreAligned) {
  TempFolder folder;
  std::vector<SampleRecord> records;
  for (int layer = 2; layer < 5; ++layer) {
    const int pages = layer == 2 ? 1 : 8;
    for (int page = 0; page < pages; ++page) {
      records.push_back({Rows(RecordKind::kKRows, layer, 64 * page, 64 * page + 64), Noise(9, 64 * 700), page == 0});
    }
  }
  const absl::StatusOr<SegmentSummary> summary = WriteSegment(folder.path(), SampleHeader(), records);
  ASSERT_OK(summary);
  auto reader = SegmentReader::Open(JoinPath(folder.path(), summary->file), {}, ReadOptions());
  ASSERT_OK(reader);
  const std::vector<IndexEntry>& index = (*reader)->index();
  EXPECT_EQ(index[1].offset, index[0].offset + index[0].bytes);  // 44,800 is a multiple of 64
  EXPECT_NE(index[1].offset % limits::kBlockBytes, 0u);
  EXPECT_EQ(index[9].offset % limits::kBlockBytes, 0u);
}

// A stage that owns one of ten layers reads little more than that layer.
TEST(SegmentReaderTest, ReadsOnlyWhatItsLayersNeed) {
  TempFolder folder(testing::Place::kOnDisk);
  SegmentHeader header = SampleHeader();
  header.layer_begin = 0;
  header.layer_end = 10;
  std::vector<SampleRecord> records;
  for (int layer = 0; layer < 10; ++layer) {
    for (int page = 0; page < 16; ++page) {
      records.push_back({Rows(RecordKind::kKRows, layer, 64 * page, 64 * page + 64), Noise(9, 64 * 384), page == 0});
    }
  }
  const absl::StatusOr<SegmentSummary> summary = WriteSegment(folder.path(), header, records, BlockIoOptions{});
  ASSERT_OK(summary);
  auto reader = SegmentReader::Open(JoinPath(folder.path(), summary->file), {}, ReadOptions(BlockIoOptions{}));
  ASSERT_OK(reader);
  const uint64_t opened = (*reader)->bytes_read();
  EXPECT_LE(opened, 5 * limits::kBlockBytes);  // header, footer, 160 entries of 72 bytes
  std::vector<size_t> layer_seven(16);
  std::iota(layer_seven.begin(), layer_seven.end(), 7 * 16);
  ASSERT_OK((*reader)->ReadRecords(layer_seven, nullptr));
  EXPECT_EQ((*reader)->bytes_read() - opened, 16u * 64 * 384);
}

// Records larger and smaller than a buffer, with both engines, direct and buffered.
TEST(SegmentReaderTest, LargeAndSmallRecordsRoundTripWithEveryEngine) {
  std::vector<SampleRecord> records;
  const size_t kSizes[] = {64 * 500, 64 * 90'000, 64 * 3, 64 * 40'000, 64 * 40'000, 64 * 65'537, 64};
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const int begin = 64 * static_cast<int>(i);
    records.push_back({Rows(RecordKind::kKRows, 2, begin, begin + 64), Noise(i, kSizes[i]), i % 2 == 0});
  }
  for (const IoEngine engine : {IoEngine::kUring, IoEngine::kThreads}) {
    for (const bool direct : {true, false}) {
      TempFolder folder(testing::Place::kOnDisk);
      const BlockIoOptions io{engine, direct};
      const absl::StatusOr<SegmentSummary> summary = WriteSegment(folder.path(), SampleHeader(), records, io);
      ASSERT_OK(summary);
      auto reader = SegmentReader::Open(JoinPath(folder.path(), summary->file), {}, ReadOptions(io));
      ASSERT_OK(reader);
      std::vector<size_t> all(records.size());
      std::iota(all.begin(), all.end(), 0);
      size_t seen = 0;
      ASSERT_OK((*reader)->ReadRecords(all, [&](const IndexEntry&, std::span<const std::byte> payload) {
        EXPECT_TRUE(AsText(payload) == records[seen].payload) << seen;
        ++seen;
        return absl::OkStatus();
      }));
      EXPECT_EQ(seen, records.size());
    }
  }
}

TEST(SegmentReaderTest, ProgressRisesToTheEnd) {
  TempFolder folder;
  std::vector<SampleRecord> records;
  for (int page = 0; page < 100; ++page) {
    records.push_back({Rows(RecordKind::kKRows, 2, 64 * page, 64 * page + 64), Noise(9, 64 * 1000)});
  }
  std::vector<uint64_t> written;
  SegmentWriter::Options write_options{Buffered(), [&](uint64_t bytes) { written.push_back(bytes); }, 1};
  const std::string path = JoinPath(folder.path(), "s01-g000017.seg");
  auto writer = SegmentWriter::Create(path, SampleHeader(), write_options);
  ASSERT_OK(writer);
  for (const SampleRecord& record : records) {
    auto room = (*writer)->AppendRecord(record.key, record.payload.size());
    ASSERT_OK(room);
    std::memcpy(room->data(), record.payload.data(), record.payload.size());
  }
  const absl::StatusOr<SegmentSummary> summary = (*writer)->Finish();
  ASSERT_OK(summary);
  ASSERT_GE(written.size(), 3u);
  EXPECT_TRUE(std::is_sorted(written.begin(), written.end()));
  EXPECT_EQ(written.back(), summary->bytes);

  std::vector<uint64_t> read;
  SegmentReader::Options options{Buffered(), [&](uint64_t bytes) { read.push_back(bytes); }, 1};
  auto reader = SegmentReader::Open(path, {}, options);
  ASSERT_OK(reader);
  ASSERT_OK((*reader)->VerifyAll());
  ASSERT_GE(read.size(), 3u);
  EXPECT_TRUE(std::is_sorted(read.begin(), read.end()));
  EXPECT_EQ(read.back(), summary->payload_bytes);
}

// ------------------------------------------------------------------------------------------------- several threads

std::vector<SampleRecord> ManyRecords() {
  std::vector<SampleRecord> records;
  for (int layer = 2; layer < 5; ++layer) {
    for (int page = 0; page < 60; ++page) {
      const auto seed = static_cast<uint64_t>(layer * 100 + page);
      records.push_back({Rows(RecordKind::kKRows, layer, 64 * page, 64 * page + 64), Noise(seed, 64 * (900 + seed))});
    }
  }
  return records;
}

TEST(SegmentThreadsTest, TheFileIsTheSame) {
  const std::vector<SampleRecord> records = ManyRecords();
  TempFolder one_by_one;
  ASSERT_OK(WriteSegment(one_by_one.path(), SampleHeader(), records));
  for (const int threads : {1, 3}) {
    TempFolder folder;
    const std::string path = JoinPath(folder.path(), "s01-g000017.seg");
    auto writer = SegmentWriter::Create(path, SampleHeader(), {Buffered(), nullptr, threads});
    ASSERT_OK(writer);
    std::vector<SegmentWriter::RecordSize> sizes;
    for (const SampleRecord& record : records) sizes.push_back({record.key, record.payload.size()});
    ASSERT_OK((*writer)->AppendRecords(sizes, [&](size_t i, std::span<std::byte> room) {
      std::memcpy(room.data(), records[i].payload.data(), room.size());
    }));
    ASSERT_OK((*writer)->Finish());
    EXPECT_TRUE(ReadFile(path) == ReadFile(JoinPath(one_by_one.path(), "s01-g000017.seg"))) << threads;
  }
}

TEST(SegmentThreadsTest, EveryRecordIsHandedOverOnce) {
  const std::vector<SampleRecord> records = ManyRecords();
  TempFolder folder;
  ASSERT_OK(WriteSegment(folder.path(), SampleHeader(), records));
  const std::string path = JoinPath(folder.path(), "s01-g000017.seg");
  auto reader = SegmentReader::Open(path, {}, {Buffered(), nullptr, 3});
  ASSERT_OK(reader);
  std::vector<size_t> all(records.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::atomic<int>> seen(records.size());
  ASSERT_OK((*reader)->ReadRecords(all, [&](const IndexEntry& entry, std::span<const std::byte> payload) {
    const size_t i = static_cast<size_t>(entry.key.layer - 2) * 60 + static_cast<size_t>(entry.key.token_begin) / 64;
    EXPECT_TRUE(AsText(payload) == records[i].payload);
    ++seen[i];
    return absl::OkStatus();
  }));
  for (const std::atomic<int>& times : seen) EXPECT_EQ(times, 1);

  // Damage is found, and the caller's own error comes back as it is.
  std::string damaged = ReadFile(path);
  const IndexEntry& entry = (*reader)->index()[100];
  damaged[entry.offset + entry.bytes - 1] ^= 1;
  WriteFile(path, damaged);
  ExpectRefused((*reader)->VerifyAll(), "damage");
  EXPECT_EQ((*reader)->damaged_layer(), entry.key.layer);
  const absl::Status own = (*reader)->ReadRecords(
      std::span(all).first(50), [](const IndexEntry&, std::span<const std::byte>) { return Cancelled("enough"); });
  EXPECT_TRUE(absl::IsCancelled(own));
  EXPECT_FALSE(PartOf(own).has_value());
}

TEST(ForkJoinTest, EachPieceOnceHoweverMany) {
  for (const int threads : {1, 2, 4}) {
    ForkJoin pool(threads);
    for (const size_t count : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> seen(count);
      pool.Run(count, [&](size_t i) { ++seen[i]; });
      for (const std::atomic<int>& times : seen) ASSERT_EQ(times, 1) << threads << " " << count;
    }
  }
}

}  // namespace
}  // namespace layover
