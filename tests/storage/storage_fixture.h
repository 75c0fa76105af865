// Shared by the storage tests: temporary folders, sample segments, and a small conversation that can be saved.
#ifndef LAYOVER_TESTS_STORAGE_STORAGE_FIXTURE_H_
#define LAYOVER_TESTS_STORAGE_STORAGE_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/storage/segment_writer.h"
#include "common/storage/store_layout.h"
#include "gtest/gtest.h"

namespace layover::testing {

#define ASSERT_OK(expr)                                                               \
  do {                                                                                \
    const auto& assert_ok_status = (expr);                                            \
    ASSERT_TRUE(assert_ok_status.ok()) << ::layover::testing::Text(assert_ok_status); \
  } while (false)
#define EXPECT_OK(expr)                                                               \
  do {                                                                                \
    const auto& expect_ok_status = (expr);                                            \
    EXPECT_TRUE(expect_ok_status.ok()) << ::layover::testing::Text(expect_ok_status); \
  } while (false)

inline std::string Text(const absl::Status& status) {
  return status.ToString();
}
template <typename T>
std::string Text(const absl::StatusOr<T>& value) {
  return value.status().ToString();
}

// A private folder, removed with everything in it. In memory where there is such a place: thousands of syncs cost
// nothing there, and none of these tests cuts the power. kOnDisk is for what direct I/O does.
enum class Place { kInMemory, kOnDisk };
class TempFolder {
 public:
  explicit TempFolder(Place place = Place::kInMemory);
  ~TempFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);
// Writes in place, so that other names of the file and its owner stay; not durable.
void WriteFile(const std::string& path, std::string_view bytes);
// All regular files below `folder`, relative, with their bytes.
std::map<std::string, std::string> Snapshot(const std::string& folder);

// Repeatable content.
std::string Noise(uint64_t seed, size_t bytes);
std::vector<int32_t> SampleIds(int32_t count, uint64_t seed = 1);

BlockIoOptions Buffered();  // for tests that open thousands of small files

struct SampleRecord {
  RecordKey key;
  std::string payload;
  bool begins_run = false;
};
// Writes a segment into `folder` under its proper name.
absl::StatusOr<SegmentSummary> WriteSegment(const std::string& folder, const SegmentHeader& header,
                                            const std::vector<SampleRecord>& records,
                                            const BlockIoOptions& io = Buffered());

// A conversation in a store of its own, of a made-up model with 4 layers on 2 stages (rows of 24 and 20 bytes a token).
class SampleConversation {
 public:
  static constexpr int kLayers = 4;
  static constexpr int kStages = 2;

  explicit SampleConversation(const std::string& store, const std::string& id = "chat",
                              const std::string& owner = "ann");

  const std::string& store() const { return store_; }
  const std::string& folder() const { return folder_; }
  std::string path() const;
  Journal& journal() { return *journal_; }
  bool has_journal() const { return journal_ != nullptr; }
  void CloseJournal() { journal_.reset(); }
  absl::Status OpenJournal();

  // Creates store and journal. Fails only where a fault was planted.
  absl::Status Begin();
  // One turn of `prompt` new ids and `generated` ids, ended.
  absl::Status Turn(int32_t prompt, int32_t generated);
  // A full save of the trunk at all its tokens as the next generation: what coordinator and stages do, in one process.
  absl::Status Save();

  int32_t n_tokens() const;
  SegmentHeader HeaderOf(int stage, int64_t generation) const;
  std::vector<SampleRecord> RecordsOf(int stage, int32_t n, uint64_t content_seed) const;
  Manifest ManifestOf(int64_t generation, const std::vector<SegmentSummary>& summaries) const;

 private:
  const std::string store_;
  const std::string id_;
  const std::string owner_;
  const std::string folder_;
  std::unique_ptr<Journal> journal_;
};

StoredIdentity SampleIdentity(uint64_t seed = 1);

// Runs `body` in a forked child with LAYOVER_FAULT set to `fault`; true if it ended by itself, false if it was killed.
// A test failure in the child is a failure here.
bool RunWithFault(const std::string& fault, const std::function<void()>& body);
// How many fault points `body` passes.
int CountFaultPoints(const std::function<void()>& body);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_STORAGE_STORAGE_FIXTURE_H_
