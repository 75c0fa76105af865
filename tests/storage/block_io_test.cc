// Sequential block I/O: the same bytes with every engine, errors that stop, files that go when nothing became of them.
#include "common/storage/block_io.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/on_disk.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::Noise;
using testing::Place;
using testing::ReadFile;
using testing::RunWithFault;
using testing::TempFolder;
using testing::WriteFile;

constexpr size_t kBlock = limits::kBlockBytes;

struct Mode {
  IoEngine engine;
  bool direct;
  Place place;
};
std::string NameOf(const ::testing::TestParamInfo<Mode>& info) {
  const Mode& mode = info.param;
  const char* const engine = mode.engine == IoEngine::kUring     ? "uring"
                             : mode.engine == IoEngine::kThreads ? "threads"
                                                                 : "auto";
  return std::string(engine) + (mode.direct ? "_direct" : "_cached") +
         (mode.place == Place::kInMemory ? "_in_memory" : "");
}

class BlockIoTest : public ::testing::TestWithParam<Mode> {
 protected:
  BlockIoOptions options() const { return {GetParam().engine, GetParam().direct}; }
  TempFolder folder_{GetParam().place};
  const std::string path_ = folder_.path() + "/file";
};

TEST_P(BlockIoTest, WritesWhatWasReserved) {
  auto writer = BlockWriter::Create(path_, options());
  ASSERT_OK(writer);
  std::string expected;
  // Pieces that fit, that straddle buffers, that are larger than a buffer.
  for (const size_t bytes : {size_t{1}, size_t{5000}, limits::kIoBufferBytes - 100, size_t{300},
                             3 * limits::kIoBufferBytes, size_t{4096}, limits::kIoBufferBytes, size_t{77}}) {
    EXPECT_EQ((*writer)->offset(), expected.size());
    auto room = (*writer)->Reserve(bytes);
    ASSERT_OK(room);
    const std::string piece = Noise(bytes, bytes);
    std::memcpy(room->data(), piece.data(), bytes);
    expected += piece;
    if (bytes == 300) {
      ASSERT_OK((*writer)->Pad(64));
      expected.resize((expected.size() + 63) / 64 * 64, '\0');
    }
  }
  ASSERT_OK((*writer)->Pad(kBlock));
  expected.resize((expected.size() + kBlock - 1) / kBlock * kBlock, '\0');
  ASSERT_OK((*writer)->Finish());
  EXPECT_EQ((*writer)->bytes_written(), expected.size());
  EXPECT_TRUE(ReadFile(path_) == expected);
}

TEST_P(BlockIoTest, ReadsExtentsInTheOrderGiven) {
  const std::string content = Noise(3, 40 * kBlock);
  WriteFile(path_, content);
  auto reader = BlockReader::Open(path_, options());
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->file_bytes(), content.size());
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 30; ++i) extents.push_back({(i * 7 % 37) * kBlock, (1 + i % 3) * kBlock});
  size_t next = 0;
  uint64_t bytes = 0;
  ASSERT_OK((*reader)->Read(extents, [&](size_t i, std::span<const std::byte> data) {
    EXPECT_EQ(i, next++);
    EXPECT_EQ(AsText(data), content.substr(extents[i].offset, extents[i].bytes));
    bytes += data.size();
    return absl::OkStatus();
  }));
  EXPECT_EQ(next, extents.size());
  EXPECT_EQ((*reader)->bytes_read(), bytes);
}

TEST_P(BlockIoTest, AnErrorOfTheCallerStopsAndTheReaderStaysUsable) {
  WriteFile(path_, Noise(3, 40 * kBlock));
  auto reader = BlockReader::Open(path_, options());
  ASSERT_OK(reader);
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 20; ++i) extents.push_back({i * kBlock, kBlock});
  size_t calls = 0;
  const auto stop = [&](size_t, std::span<const std::byte>) {
    return ++calls == 3 ? Cancelled("enough") : absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsCancelled((*reader)->Read(extents, stop)));
  EXPECT_EQ(calls, 3u);
  EXPECT_OK((*reader)->Read(extents, [](size_t, std::span<const std::byte>) { return absl::OkStatus(); }));
}

TEST_P(BlockIoTest, BeyondTheEndIsDataLoss) {
  WriteFile(path_, Noise(3, 2 * kBlock + 100));
  auto reader = BlockReader::Open(path_, options());
  ASSERT_OK(reader);
  const Extent extents[] = {{0, kBlock}, {2 * kBlock, kBlock}};
  EXPECT_TRUE(
      absl::IsDataLoss((*reader)->Read(extents, [](size_t, std::span<const std::byte>) { return absl::OkStatus(); })));
}

// The file became shorter after it was opened.
TEST_P(BlockIoTest, AFileThatShrinksIsDataLoss) {
  WriteFile(path_, Noise(3, 8 * kBlock));
  auto reader = BlockReader::Open(path_, options());
  ASSERT_OK(reader);
  std::filesystem::resize_file(path_, 2 * kBlock + 100);
  const Extent extents[] = {{0, 4 * kBlock}};
  EXPECT_TRUE(
      absl::IsDataLoss((*reader)->Read(extents, [](size_t, std::span<const std::byte>) { return absl::OkStatus(); })));
}

TEST_P(BlockIoTest, FailedWritesEndTheWriterAndTheFile) {
  // 12 MiB are six writes or so; each of the first four fails once.
  for (int k = 1; k <= 4; ++k) {
    RunWithFault("enospc:" + std::to_string(k), [&] {
      auto writer = BlockWriter::Create(path_, options());
      ASSERT_OK(writer);
      absl::Status status;
      for (int i = 0; i < 12 && status.ok(); ++i) status = (*writer)->Reserve(limits::kMiB).status();
      if (status.ok()) status = (*writer)->Finish();
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_FALSE((*writer)->Reserve(10).ok());
      (*writer)->Abandon();
    });
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, BlockIoTest,
                         ::testing::Values(Mode{IoEngine::kUring, true, Place::kOnDisk},
                                           Mode{IoEngine::kUring, false, Place::kOnDisk},
                                           Mode{IoEngine::kThreads, true, Place::kOnDisk},
                                           Mode{IoEngine::kThreads, false, Place::kOnDisk},
                                           Mode{IoEngine::kAuto, true, Place::kInMemory}),
                         NameOf);

}  // namespace
}  // namespace layover
