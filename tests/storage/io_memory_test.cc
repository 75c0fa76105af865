// Readers and writers in memory that is not theirs, whose bytes somebody still reads or has only begun to write.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/on_disk.h"
#include "common/storage/segment_reader.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::Noise;
using testing::ReadFile;
using testing::TempFolder;
using testing::WriteFile;

constexpr size_t kBlock = limits::kBlockBytes, kRequest = 2 * limits::kIoBufferBytes;

// Buffers of one size, spoilt as soon as they are given back.
class Lent : public IoMemory {
 public:
  ~Lent() override { EXPECT_TRUE(out_.empty()); }
  absl::StatusOr<std::span<std::byte>> Take(size_t bytes) override {
    const size_t size = std::max(bytes, kRequest);
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kBlock, size));
    std::memset(memory, 0xa5, size);
    out_[memory] = size;
    most_ = std::max(most_, out_.size());
    return std::span<std::byte>(memory, size);
  }
  void Give(std::span<std::byte> memory) override {
    EXPECT_EQ(out_.at(memory.data()), memory.size());
    out_.erase(memory.data());
    std::free(memory.data());
  }
  // Whether [at, at + bytes) lies in one of the buffers.
  bool Holds(const std::byte* at, size_t bytes) const {
    return std::any_of(out_.begin(), out_.end(), [&](const auto& buffer) {
      return at >= buffer.first && at + bytes <= buffer.first + buffer.second;
    });
  }
  bool idle() const { return out_.empty(); }
  size_t most() const { return most_; }

 private:
  std::map<std::byte*, size_t> out_;
  size_t most_ = 0;
};

class HeldReads : public ::testing::TestWithParam<IoEngine> {};

TEST_P(HeldReads, KeepTheirBytesUntilTheyAreWaitedFor) {
  TempFolder folder;
  const std::string path = folder.path() + "/file", content = Noise(3, 60 * kBlock);
  WriteFile(path, content);
  for (const size_t stops_at : {size_t{1000}, size_t{13}}) {
    Lent lent;
    auto reader = BlockReader::Open(path, {.engine = GetParam(), .memory = &lent});
    ASSERT_OK(reader);
    std::vector<Extent> extents;
    for (uint64_t i = 0; i < 30; ++i) extents.push_back({(i * 7 % 37) * kBlock, (1 + i % 3) * kBlock});
    struct Held {
      size_t extent;
      std::span<const std::byte> data;
    };
    Held last{};
    std::deque<Held> held;
    size_t waited = 0, most = 0;
    const ReadHold hold{.used = [&] { held.push_back(last); },
                        .done = [] { return false; },
                        .wait =
                            [&] {
                              most = std::max(most, held.size());
                              const Extent& extent = extents[held.front().extent];
                              EXPECT_EQ(held.front().extent, waited++);
                              EXPECT_EQ(AsText(held.front().data), content.substr(extent.offset, extent.bytes));
                              held.pop_front();
                            }};
    const absl::Status status = (*reader)->Read(
        extents,
        [&](size_t i, std::span<const std::byte> data) {
          last = {i, data};
          EXPECT_TRUE(lent.Holds(data.data(), data.size()));
          return i == stops_at ? Cancelled("enough") : absl::OkStatus();
        },
        &hold);
    EXPECT_EQ(absl::IsCancelled(status), stops_at < extents.size()) << status;
    EXPECT_EQ(waited, std::min(stops_at + 1, extents.size()));
    EXPECT_TRUE(held.empty());
    EXPECT_GE(most, size_t{limits::kIoReadsInFlight});  // none sooner than it has to be
    EXPECT_TRUE(lent.idle());
    EXPECT_LE(lent.most(), size_t{limits::kIoBuffers});
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, HeldReads, ::testing::Values(IoEngine::kAuto, IoEngine::kThreads),
                         [](const auto& test) { return test.param == IoEngine::kAuto ? "auto" : "threads"; });

// --- segments in large pieces

struct RunOf {
  size_t record_bytes = 0;
  int records = 0;
  size_t last_bytes = 0;  // of one more, ragged one
};

class LargePieces : public ::testing::Test {
 protected:
  static SegmentHeader Header() {
    SegmentHeader header;
    header.layer_end = 8;
    header.generation = 1;
    return header;
  }
  // f16 rows of one layer a run.
  static std::vector<SegmentWriter::RecordSize> RecordsOf(const RunOf& run, int layer) {
    std::vector<SegmentWriter::RecordSize> records;
    for (int i = 0; i <= run.records; ++i) {
      const size_t bytes = i < run.records ? run.record_bytes : run.last_bytes;
      const int rows =
          i < run.records ? limits::kPageTokens : static_cast<int>(run.last_bytes / (run.record_bytes / 64));
      if (rows == 0) continue;
      const int begin = i * limits::kPageTokens;
      records.push_back({{.kind = RecordKind::kKRows,
                          .element = ElementType::kF16,
                          .layer = layer,
                          .token_begin = begin,
                          .token_end = begin + rows},
                         bytes});
    }
    return records;
  }
  static std::string Payload(const RecordKey& key, size_t bytes) {
    return Noise(static_cast<uint64_t>(key.layer * 1000 + key.token_begin), bytes);
  }
  // Of every stretch of memory that is filled together: bytes, and whether its run ends with it.
  struct Piece {
    size_t bytes;
    bool ends;
  };
  static void ExpectLarge(const std::vector<Piece>& pieces) {
    ASSERT_FALSE(pieces.empty());
    for (const Piece& piece : pieces) EXPECT_TRUE(piece.ends || piece.bytes >= limits::kIoBufferBytes) << piece.bytes;
  }

  // Both ways; the file's bytes do not depend on the options.
  void Check(const std::vector<RunOf>& runs) {
    std::string files[2];
    for (const bool large : {false, true}) {
      Lent lent;
      const BlockIoOptions io = large ? BlockIoOptions{.request_bytes = kRequest, .memory = &lent} : BlockIoOptions{};
      TempFolder folder;
      const std::string path = JoinPath(folder.path(), SegmentFileName(0, 1));
      {
        auto writer = SegmentWriter::Create(path, Header(), {.io = io});
        ASSERT_OK(writer);
        std::vector<Piece> pieces;
        for (size_t layer = 0; layer < runs.size(); ++layer) {
          const auto records = RecordsOf(runs[layer], static_cast<int>(layer));
          ASSERT_OK((*writer)->BeginRun());
          std::vector<std::pair<size_t, std::span<std::byte>>> begun;
          ASSERT_OK((*writer)->AppendRecords(
              records, [&](size_t i, std::span<std::byte> room) { begun.emplace_back(i, room); },
              [&] {
                size_t bytes = 0;
                for (const auto& [i, room] : begun) {
                  const std::string payload = Payload(records[i].key, room.size());
                  std::memcpy(room.data(), payload.data(), room.size());
                  bytes += room.size();
                }
                pieces.push_back({bytes, begun.back().first + 1 == records.size()});
                begun.clear();
                return absl::OkStatus();
              }));
          EXPECT_TRUE(begun.empty());
        }
        ASSERT_OK((*writer)->Finish());
        if (large) ExpectLarge(pieces);
      }
      files[large] = ReadFile(path);
      if (large) CheckReading(path, io, runs);
    }
    EXPECT_TRUE(files[0] == files[1]);
  }

  static void CheckReading(const std::string& path, const BlockIoOptions& io, const std::vector<RunOf>& runs) {
    auto reader = SegmentReader::Open(path, {}, {.io = io});
    ASSERT_OK(reader);
    std::vector<size_t> positions((*reader)->index().size());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = i;
    std::vector<Piece> pieces;
    const std::byte* end = nullptr;
    bool first = true;  // of what is in memory at once
    size_t seen = 0;
    const ReadHold hold{.used = [&] { first = true; }, .done = [] { return true; }, .wait = [] {}};
    ASSERT_OK((*reader)->ReadRecords(
        positions,
        [&](const IndexEntry& entry, std::span<const std::byte> payload) {
          EXPECT_EQ(AsText(payload), Payload(entry.key, payload.size()));
          if (first || payload.data() != end) pieces.push_back({0, false});
          first = false;
          end = payload.data() + payload.size();
          pieces.back().bytes += payload.size();
          const auto layer = static_cast<size_t>(entry.key.layer);
          pieces.back().ends = entry.key == RecordsOf(runs[layer], entry.key.layer).back().key;
          ++seen;
          return absl::OkStatus();
        },
        &hold));
    EXPECT_EQ(seen, positions.size());
    ExpectLarge(pieces);
  }
};

TEST_F(LargePieces, OfRecordsOfAnySize) {
  Check({{128 * limits::kKiB, 41, 20480}, {128 * limits::kKiB, 41, 20480}, {128 * limits::kKiB, 41, 20480}});
  Check({{24576, 200, 384 * 3}, {24576, 200, 384 * 3}, {24576, 11, 0}, {24576, 400, 384 * 5}});
  Check({{limits::kMiB, 9, 16384 * 7}, {limits::kMiB, 2, 0}, {limits::kMiB, 9, 16384}});
  Check({{1152 * 64, 30, 1152}, {1152 * 64, 90, 1152 * 9}, {1152 * 64, 33, 0}});
}

}  // namespace
}  // namespace layover
