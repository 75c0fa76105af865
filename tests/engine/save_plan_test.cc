// What a save writes and what it names, as tables.
#include "coordinator/conversation/save_plan.h"

#include <numeric>

#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layover {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<int32_t> Ids(int n, int first = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<int32_t> Then(std::vector<int32_t> ids, int n, int first) {
  const std::vector<int32_t> more = Ids(n, first);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

ManifestSegment Segment(int stage, int64_t generation, uint64_t bytes = 4096) {
  return {.file = SegmentFileName(stage, generation), .stage = stage, .generation = generation, .layer_begin = stage,
          .layer_end = stage + 1, .bytes = bytes};
}

MATCHER_P3(LinkIs, generation, begin, end, "") {
  return arg.folder.empty() && arg.generation == generation && arg.begin == begin && arg.end == end;
}

// A branch whose tokens are live in session 1.
struct Fixture {
  Branch branch;
  Manifest manifest;
  explicit Fixture(std::vector<int32_t> path) { branch.path = std::move(path); }

  // As if its present path had been saved by `plan` as `generation`.
  void Saved(const SavePlan& plan, int64_t generation) {
    branch.saved = {plan.branches[0].n_tokens, plan.paths[0], plan.branches[0].chain};
    manifest.generation = generation;
    manifest.n_tokens = plan.branches[0].n_tokens;
    manifest.branches = plan.branches;
    manifest.segments = plan.kept;
    for (int stage : {0, 1}) {
      if (!plan.cuts.empty()) manifest.segments.push_back(Segment(stage, generation));
    }
  }
  SavePlan Plan(int64_t generation, bool whole = false) {
    const BranchState state{.branch = &branch, .tokens = branch.path, .session = 1};
    return PlanSave(manifest.generation == 0 ? nullptr : &manifest, generation, std::span(&state, 1), nullptr, CutAt::kAnywhere, whole);
  }
};

TEST(PlanSave, AFirstSaveWritesEverything) {
  Fixture f(Ids(100));
  const SavePlan plan = f.Plan(1);
  ASSERT_THAT(plan.cuts, SizeIs(1));
  EXPECT_EQ(plan.cuts[0].base, 0);
  EXPECT_EQ(plan.cuts[0].n_tokens, 100);
  EXPECT_THAT(plan.branches[0].chain, ElementsAre(LinkIs(1, 0, 100)));
  EXPECT_THAT(plan.kept, IsEmpty());
  EXPECT_EQ(plan.new_tokens, 100);
}

TEST(PlanSave, NothingNewIsSaidSo) {
  Fixture f(Ids(100));
  f.Saved(f.Plan(1), 1);
  EXPECT_TRUE(f.Plan(2).nothing_new);
}

TEST(PlanSave, GrowthWritesOnlyWhatIsNew) {
  Fixture f(Ids(100));
  f.Saved(f.Plan(1), 1);
  f.branch.path = Ids(150);
  const SavePlan plan = f.Plan(2);
  EXPECT_FALSE(plan.nothing_new);
  ASSERT_THAT(plan.cuts, SizeIs(1));
  EXPECT_EQ(plan.cuts[0].base, 100);  // inside a page: the older save's record ends there
  EXPECT_THAT(plan.branches[0].chain, ElementsAre(LinkIs(1, 0, 100), LinkIs(2, 100, 150)));
  EXPECT_THAT(plan.kept, SizeIs(2));
}

TEST(PlanSave, AnEditWritesFromThePageBorder) {
  Fixture f(Ids(200));
  f.Saved(f.Plan(1), 1);
  f.branch.path = Then(Ids(150), 60, 1000);
  const SavePlan plan = f.Plan(2);
  EXPECT_EQ(plan.cuts[0].base, 128);
  EXPECT_THAT(plan.branches[0].chain, ElementsAre(LinkIs(1, 0, 128), LinkIs(2, 128, 210)));
}

TEST(PlanSave, AnEditBelowTheLastDeltaDropsItsSegments) {
  Fixture f(Ids(100));
  f.Saved(f.Plan(1), 1);
  f.branch.path = Ids(300);
  f.Saved(f.Plan(2), 2);
  f.branch.path = Then(Ids(70), 10, 1000);
  const SavePlan plan = f.Plan(3);
  EXPECT_THAT(plan.branches[0].chain, ElementsAre(LinkIs(1, 0, 64), LinkIs(3, 64, 80)));
  for (const ManifestSegment& segment : plan.kept) EXPECT_EQ(segment.generation, 1);
}

TEST(PlanSave, CompactionWritesEverythingAndKeepsNothing) {
  Fixture f(Ids(100));
  f.Saved(f.Plan(1), 1);
  f.branch.path = Ids(300);
  f.Saved(f.Plan(2), 2);
  const SavePlan plan = f.Plan(3, /*whole=*/true);
  EXPECT_THAT(plan.branches[0].chain, ElementsAre(LinkIs(3, 0, 300)));
  EXPECT_THAT(plan.kept, IsEmpty());
}

TEST(PlanSave, AShorterLiveStateDoesNotTakeBackWhatIsSaved) {
  Fixture f(Ids(300));
  f.Saved(f.Plan(1), 1);
  // Restored in part: the session holds less than the image, the path is unchanged.
  const std::vector<int32_t> live = Ids(128);
  const BranchState state{.branch = &f.branch, .tokens = live, .session = 1};
  EXPECT_TRUE(PlanSave(&f.manifest, 2, std::span(&state, 1), nullptr, CutAt::kAnywhere, false).nothing_new);
  // Rewound: the path itself is shorter now.
  f.branch.path = Ids(128);
  const SavePlan plan = f.Plan(2);
  EXPECT_FALSE(plan.nothing_new);
  EXPECT_EQ(plan.branches[0].n_tokens, 128);
  EXPECT_THAT(plan.branches[0].chain, ElementsAre(LinkIs(1, 0, 128)));
  EXPECT_THAT(plan.cuts, IsEmpty());
}

TEST(PlanSave, ASideBranchBeginsWithTheTrunksRows) {
  Branch trunk, side;
  trunk.path = Ids(300);
  side.path = Then(Ids(140), 20, 5000);
  const BranchState states[] = {{.branch = &trunk, .tokens = trunk.path, .session = 1},
                                {.branch = &side, .tokens = side.path, .session = 2}};
  const SavePlan plan = PlanSave(nullptr, 1, states, nullptr, CutAt::kAnywhere, false);
  ASSERT_THAT(plan.cuts, SizeIs(2));
  EXPECT_EQ(plan.cuts[1].branch, 1);
  EXPECT_EQ(plan.cuts[1].session, 2u);
  EXPECT_EQ(plan.cuts[1].base, 128);
  EXPECT_EQ(plan.branches[1].fork_position, 140);
  EXPECT_THAT(plan.branches[1].chain, ElementsAre(LinkIs(1, 0, 128), LinkIs(1, 128, 160)));
}

TEST(PlanSave, ASavedBranchThatIsNotLiveStays) {
  Branch trunk, side;
  trunk.path = Ids(300);
  side.path = Then(Ids(140), 20, 5000);
  const BranchState first[] = {{.branch = &trunk, .tokens = trunk.path, .session = 1},
                               {.branch = &side, .tokens = side.path, .session = 2}};
  const SavePlan one = PlanSave(nullptr, 1, first, nullptr, CutAt::kAnywhere, false);
  Manifest manifest;
  manifest.n_tokens = 300;
  manifest.branches = one.branches;
  manifest.segments = {Segment(0, 1)};
  trunk.saved = {300, one.paths[0], one.branches[0].chain};
  side.saved = {160, one.paths[1], one.branches[1].chain};
  trunk.path = Ids(350);
  const BranchState second[] = {{.branch = &trunk, .tokens = trunk.path, .session = 1}, {.branch = &side}};
  const SavePlan two = PlanSave(&manifest, 2, second, nullptr, CutAt::kAnywhere, false);
  ASSERT_THAT(two.branches, SizeIs(2));
  EXPECT_EQ(two.branches[1].n_tokens, 160);
  ASSERT_THAT(two.cuts, SizeIs(1));
  EXPECT_EQ(two.cuts[0].base, 300);
}

TEST(PlanSave, ASharedHeadIsNamedInTheOtherFolder) {
  Branch other;
  other.saved = {200, Ids(200), {{"", 7, 0, 200}}};
  Manifest theirs;
  theirs.segments = {Segment(0, 7), Segment(1, 7), Segment(0, 8)};
  Fixture f(Then(Ids(150), 50, 900));
  const SavedBranch* branches[] = {&other.saved};
  const std::string folder(64, 'a');
  const BranchState state{.branch = &f.branch, .tokens = f.branch.path, .session = 1};
  SharedImage shared{.folder = folder, .manifest = &theirs, .branches = branches, .most = 150};
  const SavePlan plan = PlanSave(nullptr, 1, std::span(&state, 1), &shared, CutAt::kAnywhere, false);
  EXPECT_EQ(plan.cuts[0].base, 128);
  ASSERT_THAT(plan.branches[0].chain, SizeIs(2));
  EXPECT_EQ(plan.branches[0].chain[0], (ChainLink{folder, 7, 0, 128}));
  ASSERT_THAT(plan.kept, SizeIs(2));
  EXPECT_EQ(plan.kept[0].folder, folder);
  // What the ledger did not share is not named, whatever the ids say.
  shared.most = 60;
  EXPECT_EQ(PlanSave(nullptr, 1, std::span(&state, 1), &shared, CutAt::kAnywhere, false).cuts[0].base, 0);
}

const LayerBytes kOnlyRows{[](int) { return 20'000u; }, [](int) { return 0u; }};

TEST(CountLive, DeadRowsShowAndWantCompaction) {
  Manifest manifest;
  manifest.branches = {{.n_tokens = 210, .chain = {{"", 1, 0, 64}, {"", 2, 64, 210}}}};
  manifest.segments = {Segment(0, 1, 4 << 20), Segment(0, 2, 4 << 20)};
  CountLive(&manifest, kOnlyRows);
  EXPECT_EQ(manifest.segments[0].live_bytes, 64u * 20'004);
  EXPECT_THAT(manifest.segments[1].tokens, ElementsAre(std::pair(64, 210)));
  EXPECT_TRUE(WantsCompaction(manifest, CutAt::kAnywhere));
  manifest.branches[0].chain = {{"", 1, 0, 200}, {"", 2, 200, 210}};
  manifest.segments[1].bytes = 300'000;
  CountLive(&manifest, kOnlyRows);
  EXPECT_FALSE(WantsCompaction(manifest, CutAt::kAnywhere));
}

// States of 1 MB beside rows of 1 kB.
const LayerBytes kHybrid{[](int) { return 1000u; }, [](int) { return 1'000'000u; }};

TEST(CountLive, CheckpointsAreLiveWhereTheirRowsAre) {
  Manifest manifest;
  manifest.branches = {{.n_tokens = 200, .checkpoints = {64, 100, 150}, .chain = {{"", 1, 0, 100}, {"", 2, 100, 200}}},
                       {.branch = 1, .n_tokens = 120, .checkpoints = {100}, .chain = {{"", 1, 0, 100}, {"", 3, 100, 120}}}};
  manifest.segments = {Segment(0, 1, 4 << 20), Segment(0, 2, 4 << 20), Segment(0, 3, 4 << 20)};
  CountLive(&manifest, kHybrid);
  // 64 and 100, the latter of both branches; 150 and the end; the end of the other.
  EXPECT_EQ(manifest.segments[0].live_bytes, 100u * 1004 + 2'000'000);
  EXPECT_EQ(manifest.segments[1].live_bytes, 100u * 1004 + 2'000'000);
  EXPECT_EQ(manifest.segments[2].live_bytes, 20u * 1004 + 1'000'000);
}

TEST(WantsCompaction, DeadStatesAreBoundedOverAllSegmentsOfAStage) {
  struct Case {
    const char* what;
    std::vector<int32_t> checkpoints;
    std::vector<uint64_t> bytes;  // of generations 1, 2, 3
    bool wants;
  };
  const Case cases[] = {
      {"all that is written is named", {64, 100, 150}, {2'200'000, 1'200'000, 1'200'000}, false},
      {"a checkpoint was written later than the rows before it", {64, 100, 150}, {1'200'000, 1'200'000, 2'200'000}, false},
      {"less than half is dead", {64, 150}, {2'200'000, 1'200'000, 1'200'000}, false},
      {"more than half is dead", {}, {2'200'000, 1'200'000, 1'200'000}, true},
      {"one segment is nearly all dead, the others are not", {150}, {1'200'000, 1'100'000, 1'100'000}, false},
  };
  for (const Case& c : cases) {
    Manifest manifest;
    manifest.branches = {{.n_tokens = 200, .checkpoints = c.checkpoints,
                          .chain = {{"", 1, 0, 100}, {"", 2, 100, 150}, {"", 3, 150, 200}}}};
    for (size_t i = 0; i < c.bytes.size(); ++i) manifest.segments.push_back(Segment(0, static_cast<int64_t>(i) + 1, c.bytes[i]));
    CountLive(&manifest, kHybrid);
    EXPECT_EQ(WantsCompaction(manifest, CutAt::kCheckpoints), c.wants) << c.what;
  }
}

TEST(WantsCompaction, SmallImagesAreNotWorthIt) {
  Manifest manifest;
  manifest.branches = {{.n_tokens = 1, .chain = {{"", 1, 0, 1}}}};
  manifest.segments = {Segment(0, 1, limits::kLeastCompactedBytes - 1)};
  CountLive(&manifest, {[](int) { return 1u; }, [](int) { return 1u; }});
  EXPECT_FALSE(WantsCompaction(manifest, CutAt::kCheckpoints));
}

}  // namespace
}  // namespace layover
