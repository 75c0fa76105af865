// Invariant 1 for every architecture, stage by stage without processes: the logits of a position are the same bits
// whatever the chunks, the split, the threads, the slots; and after a save and a restore, from a checkpoint, from a
// park.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/storage/file_names.h"
#include "tests/gguf/gguf_builder.h"
#include "tests/stage/stage_fixture.h"

namespace layover {
namespace {

using testing::BuildTinyModel;
using testing::TestPipeline;
using testing::TestStage;
using Place = TestPipeline::Place;

constexpr int kTokens = 150, kCheckpoint = 70, kSaved = 110;

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back((37 * i * i + 11 * i) % 259);
  return tokens;
}

class Models : public ::testing::TestWithParam<std::string> {
 protected:
  Models() {
    file_ = *GgufFile::FromBytes(BuildTinyModel({.architecture = GetParam()}), GetParam());
    shape_ = *ReadModelShape(*file_);
  }

  // The last stage of a hybrid's split has no attention layer.
  std::vector<int> Split() const { return {1, shape_.n_layers - 1, shape_.n_layers}; }

  void Open(TestPipeline& pipeline, uint64_t session) {
    for (auto& stage : pipeline.stages()) ASSERT_TRUE(stage->sessions().Open(session).ok());
  }

  std::vector<Digest> Plain() {
    TestPipeline whole(*file_, shape_, {shape_.n_layers}, KvType::kF16);
    Open(whole, 1);
    Place place{1};
    return whole.Feed(&place, tokens_, 0, kTokens, 0);
  }
  static std::vector<Digest> From(const std::vector<Digest>& rows, int begin) {
    return {rows.begin() + begin, rows.end()};
  }

  std::unique_ptr<GgufFile> file_;
  ModelShape shape_;
  const std::vector<int32_t> tokens_ = Tokens();
};

TEST_P(Models, ChunksStagesThreadsAndSlotsChangeNothing) {
  const std::vector<Digest> want = Plain();
  ASSERT_EQ(want.size(), static_cast<size_t>(kTokens));
  EXPECT_NE(want[10], want[11]);
  TestPipeline cut(*file_, shape_, Split(), KvType::kF16, 2);
  Open(cut, 1);
  Place place{1};
  std::vector<Digest> rows;
  int slot = 0, begin = 0;
  for (const int end : {1, 3, 64, 65, 128, 129, kTokens}) {
    slot = end % 2 == 0 ? slot : (slot + 1) % 4;  // sometimes in place, sometimes elsewhere
    for (const Digest& row : cut.Feed(&place, tokens_, begin, end, slot)) rows.push_back(row);
    begin = end;
  }
  EXPECT_EQ(rows, want);
}

TEST_P(Models, AForkGoesOnLikeItsSource) {
  const std::vector<Digest> want = Plain();
  TestPipeline pipeline(*file_, shape_, Split(), KvType::kF16);
  Open(pipeline, 1);
  Place place{1};
  pipeline.Feed(&place, tokens_, 0, kCheckpoint, 0);
  Place fork{2, 8, 0};
  wire::ForkSession message{.source = 1, .session = 2, .length = kCheckpoint, .pages = {0, 9}, .copies = {{1, 9, 6}}};
  message.state = pipeline.StateOf(place, kCheckpoint);
  if (pipeline.windows()) {
    message.state.window_pages = {0, 9};
    message.window_copies = message.copies;
  }
  for (auto& stage : pipeline.stages()) ASSERT_TRUE(stage->sessions().Fork(message).ok());
  // The source goes somewhere else, in place and in another slot, before the fork goes on.
  std::vector<int32_t> other = tokens_;
  for (int i = kCheckpoint; i < kTokens; ++i) other[static_cast<size_t>(i)] = (i * 5) % 259;
  EXPECT_NE(pipeline.Feed(&place, other, kCheckpoint, kTokens, 1), From(want, kCheckpoint));
  EXPECT_EQ(pipeline.Feed(&fork, tokens_, kCheckpoint, kTokens, 2), From(want, kCheckpoint));
}

// --- saves

class Saves : public Models {
 protected:
  Saves() {
    folder_ = FolderName(FolderDigest{7});
    directory_ = std::filesystem::temp_directory_path() / ("layover-models-" + std::to_string(getpid())) / folder_;
    std::filesystem::create_directories(directory_);
  }
  ~Saves() override { std::filesystem::remove_all(directory_.parent_path()); }

  // Feeds up to the save with a checkpoint on the way, kept in slot 0, and saves both.
  void FeedAndSave(TestPipeline& pipeline, Place* place) {
    Open(pipeline, 1);
    pipeline.Feed(place, tokens_, 0, kCheckpoint, 0);
    checkpoint_ = pipeline.StateOf(*place, kCheckpoint);
    pipeline.Feed(place, tokens_, kCheckpoint, kSaved, 1);
    wire::SaveSession save{
        .save = 1, .directory = directory_.string(), .folder = folder_, .generation = 1, .identity = {1, 2}};
    save.branches = {{.session = 1, .n_tokens = kSaved, .checkpoints = {checkpoint_}}};
    for (auto& stage : pipeline.stages()) {
      stage->transfers().Save(save, {{.session = *stage->sessions().Find(1)}});
    }
    // The save is behind a cut: the session goes on meanwhile, its state in another slot.
    pipeline.Feed(place, tokens_, kSaved, kTokens, 2);
    for (size_t i = 0; i < pipeline.stages().size(); ++i) {
      TestStage& stage = *pipeline.stages()[i];
      const wire::FromStage message = stage.Receipt();
      const auto& receipt = std::get<wire::SaveReceipt>(message);
      ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
      segments_.push_back({.path = (directory_ / SegmentFileName(static_cast<int>(i), 1)).string(),
                           .layer_begin = receipt.layer_begin,
                           .layer_end = receipt.layer_end,
                           .generation = 1,
                           .bytes = receipt.bytes,
                           .index_digest = receipt.index_digest,
                           .folder = folder_});
    }
  }

  wire::RestoreSession RestoreMessage(const TestPipeline& pipeline, const Place& place, int64_t n) {
    wire::RestoreSession restore{.restore = 1,
                                 .session = place.session,
                                 .pages = pipeline.PagesOf(place, n),
                                 .state = pipeline.StateOf(place, n),
                                 .segments = segments_,
                                 .folder = folder_,
                                 .identity = {1, 2}};
    restore.tokens.assign(tokens_.begin(), tokens_.begin() + n);
    return restore;
  }

  std::string folder_;
  std::filesystem::path directory_;
  wire::StateAt checkpoint_;
  std::vector<wire::SegmentRef> segments_;
};

TEST_P(Saves, ARestoreOnAnotherSplitGoesOnWithTheSameBits) {
  const std::vector<Digest> want = Plain();
  TestPipeline before(*file_, shape_, Split(), KvType::kF16);
  Place place{1};
  FeedAndSave(before, &place);

  TestPipeline after(*file_, shape_, {2, shape_.n_layers}, KvType::kF16);
  Place restored{5, 3, 4};
  wire::RestoreSession message = RestoreMessage(after, restored, kSaved);
  Place at_checkpoint{5, 12, 3};
  message.checkpoints = {after.StateOf(at_checkpoint, kCheckpoint)};
  for (auto& stage : after.stages()) {
    stage->transfers().Restore(message);
    const auto receipt = std::get<wire::RestoreReceipt>(stage->Receipt());
    ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
  }
  EXPECT_EQ(after.Feed(&restored, tokens_, kSaved, kTokens, 4), From(want, kSaved));

  // Back to the checkpoint that came with it. Its own window pages, the session's others.
  wire::TruncateSession cut{.session = 5, .length = kCheckpoint, .n_pages = 2, .state = message.checkpoints[0]};
  for (auto& stage : after.stages()) ASSERT_TRUE(stage->sessions().Truncate(cut).ok());
  Place again{5, 3, 3};
  if (after.windows()) return;  // Feed numbers both classes alike, which these tables do not
  EXPECT_EQ(after.Feed(&again, tokens_, kCheckpoint, kTokens, 2), From(want, kCheckpoint));
}

TEST_P(Saves, ARestoreOfTheCheckpointAlone) {
  const std::vector<Digest> want = Plain();
  TestPipeline before(*file_, shape_, {shape_.n_layers}, KvType::kF16);
  Place place{1};
  FeedAndSave(before, &place);
  TestPipeline after(*file_, shape_, Split(), KvType::kF16);
  Place restored{6, 1, 2};
  // Records end where a page or the save does, so a restore reads the whole path and is cut to the checkpoint.
  wire::RestoreSession message = RestoreMessage(after, restored, kSaved);
  message.state = after.StateOf(restored, kCheckpoint);
  for (auto& stage : after.stages()) {
    stage->transfers().Restore(message);
    const auto receipt = std::get<wire::RestoreReceipt>(stage->Receipt());
    ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
    ASSERT_TRUE(stage->sessions().Truncate({6, kCheckpoint, 2, message.state}).ok());
  }
  EXPECT_EQ(after.Feed(&restored, tokens_, kCheckpoint, kTokens, 2), From(want, kCheckpoint));
}

TEST_P(Saves, AParkedSessionGoesOnAndIsSavedFromMemory) {
  const std::vector<Digest> want = Plain();
  TestPipeline pipeline(*file_, shape_, Split(), KvType::kF16);
  Open(pipeline, 1);
  Place place{1};
  pipeline.Feed(&place, tokens_, 0, kCheckpoint, 0);
  const wire::StateAt checkpoint = pipeline.StateOf(place, kCheckpoint);
  pipeline.Feed(&place, tokens_, kCheckpoint, kSaved, 1);
  for (auto& stage : pipeline.stages()) {
    stage->transfers().Park({.park = 9, .session = 1, .checkpoints = {checkpoint}}, *stage->sessions().Find(1));
    const auto receipt = std::get<wire::ParkReceipt>(stage->Receipt());
    ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
    EXPECT_GT(receipt.bytes, 0);
  }
  for (const int64_t n : {int64_t{kSaved}, int64_t{kCheckpoint}}) {
    Place back{static_cast<uint64_t>(n), static_cast<int32_t>(n == kSaved ? 4 : 10),
               static_cast<int32_t>(n == kSaved ? 3 : 4)};
    const wire::UnparkSession message{.restore = 2,
                                      .park = 9,
                                      .session = back.session,
                                      .n_tokens = n,
                                      .pages = pipeline.PagesOf(back, n),
                                      .state = pipeline.StateOf(back, n)};
    for (auto& stage : pipeline.stages()) {
      stage->transfers().Unpark(message);
      const auto receipt = std::get<wire::RestoreReceipt>(stage->Receipt());
      ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
    }
    EXPECT_EQ(pipeline.Feed(&back, tokens_, n, kTokens, back.slot), From(want, static_cast<int>(n)));
  }
  // Saved from the image, restored elsewhere.
  wire::SaveSession save{
      .save = 1, .directory = directory_.string(), .folder = folder_, .generation = 1, .identity = {1, 2}};
  save.branches = {{.park = 9, .n_tokens = kSaved}};
  for (size_t i = 0; i < pipeline.stages().size(); ++i) {
    TestStage& stage = *pipeline.stages()[i];
    stage.transfers().Save(save, {{.image = stage.transfers().Parked(9)}});
    const auto receipt = std::get<wire::SaveReceipt>(stage.Receipt());
    ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
    segments_.push_back({.path = (directory_ / SegmentFileName(static_cast<int>(i), 1)).string(),
                         .layer_begin = receipt.layer_begin,
                         .layer_end = receipt.layer_end,
                         .generation = 1,
                         .bytes = receipt.bytes,
                         .index_digest = receipt.index_digest,
                         .folder = folder_});
  }
  TestPipeline after(*file_, shape_, {shape_.n_layers}, KvType::kF16);
  Place restored{5, 3, 4};
  after.stages()[0]->transfers().Restore(RestoreMessage(after, restored, kSaved));
  const auto receipt = std::get<wire::RestoreReceipt>(after.stages()[0]->Receipt());
  ASSERT_EQ(receipt.status.code, 0) << receipt.status.message;
  EXPECT_EQ(after.Feed(&restored, tokens_, kSaved, kTokens, 4), From(want, kSaved));
}

TEST_P(Saves, AMissingStateIsRefused) {
  if (shape_.recurrent.conv_taps == 0 && shape_.window == 0) return;  // rows alone can be cut anywhere
  TestPipeline before(*file_, shape_, {shape_.n_layers}, KvType::kF16);
  Place place{1};
  FeedAndSave(before, &place);
  TestPipeline after(*file_, shape_, {shape_.n_layers}, KvType::kF16);
  wire::RestoreSession message = RestoreMessage(after, {6, 1, 2}, kSaved);
  message.state = after.StateOf({6, 1, 2}, kCheckpoint - 64);
  after.stages()[0]->transfers().Restore(message);
  const auto receipt = std::get<wire::RestoreReceipt>(after.stages()[0]->Receipt());
  EXPECT_EQ(receipt.status.code, static_cast<int>(absl::StatusCode::kDataLoss)) << receipt.status.message;
}

std::string NameOf(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Architectures, Models, ::testing::ValuesIn(testing::TinyArchitectures()), NameOf);
INSTANTIATE_TEST_SUITE_P(Architectures, Saves, ::testing::ValuesIn(testing::TinyArchitectures()), NameOf);

}  // namespace
}  // namespace layover
