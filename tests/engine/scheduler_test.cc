// The scheduler as tables: events in, steps out. No model, no clock.
#include "coordinator/scheduler.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layover {
namespace {

using Slice = Scheduler::PlannedSlice;
using ::testing::ElementsAre;

std::vector<Slice> NextSlices(Scheduler& scheduler) {
  const auto plan = scheduler.Next();
  return plan.has_value() ? plan->slices : std::vector<Slice>();
}

TEST(Scheduler, AnIdleSchedulerHasNothingToDo) {
  Scheduler scheduler({.stages = 2});
  EXPECT_FALSE(scheduler.Next().has_value());
}

TEST(Scheduler, APromptGoesInChunksOneBehindTheOtherAndSamplesAtItsEnd) {
  Scheduler scheduler({.stages = 3, .chunk_tokens = 128});
  scheduler.Add(7, 0, 300, true);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{7, 0, 128, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{7, 128, 256, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{7, 256, 300, true, false}));
}

TEST(Scheduler, NoMoreStepsInFlightThanStages) {
  Scheduler scheduler({.stages = 2, .chunk_tokens = 64});
  scheduler.Add(1, 0, 1000, true);
  const auto first = scheduler.Next();
  EXPECT_TRUE(scheduler.Next().has_value());
  EXPECT_FALSE(scheduler.Next().has_value());
  scheduler.StepDone(*first);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 128, 192, false, false}));
}

TEST(Scheduler, ChunksEndOnTheGridAfterAnOddBeginning) {
  Scheduler scheduler({.stages = 4, .chunk_tokens = 128});
  scheduler.Add(1, 37, 400, true);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 37, 128, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 128, 256, false, false}));
}

TEST(Scheduler, TheChunkBudgetIsSharedByPromptsInOrderOfArrival) {
  Scheduler scheduler({.stages = 4, .chunk_tokens = 256});
  scheduler.Add(9, 0, 100, true);
  scheduler.Add(3, 0, 500, true);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{9, 0, 100, true, false}, Slice{3, 0, 128, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{3, 128, 384, false, false}));
}

TEST(Scheduler, ARestOfTheBudgetBelowTheGridIsLeftOver) {
  Scheduler scheduler({.stages = 4, .chunk_tokens = 128});
  scheduler.Add(1, 0, 100, true);
  scheduler.Add(2, 0, 500, true);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 0, 100, true, false}));  // 28 do not reach 64
}

// Two conversations keep two stages busy: each step holds one of them.
TEST(Scheduler, DecodingSequencesAreSplitEvenlyOverTheStages) {
  Scheduler scheduler({.stages = 2});
  for (Scheduler::SessionId id : {1, 2}) scheduler.Add(id, 9, 10, true);
  const auto a = scheduler.Next();
  ASSERT_TRUE(a.has_value());
  scheduler.StepDone(*a);
  for (Scheduler::SessionId id : {1, 2}) {
    if (scheduler.Issued(id) == 10) scheduler.Extend(id);
  }
  std::map<Scheduler::SessionId, int> steps;
  for (int i = 0; i < 2; ++i) {
    const auto plan = scheduler.Next();
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->slices.size(), 1u);
    ++steps[plan->slices[0].session];
  }
  EXPECT_EQ(steps[1], 1);
  EXPECT_EQ(steps[2], 1);
}

TEST(Scheduler, FiveDecodingOverTwoStagesGoThreeAndTwo) {
  Scheduler scheduler({.stages = 2, .chunk_tokens = 512});
  for (Scheduler::SessionId id = 1; id <= 5; ++id) scheduler.Add(id, 0, 10, true);
  const auto prompts = scheduler.Next();
  ASSERT_EQ(prompts->slices.size(), 5u);
  scheduler.StepDone(*prompts);
  for (Scheduler::SessionId id = 1; id <= 5; ++id) scheduler.Extend(id);
  EXPECT_EQ(NextSlices(scheduler).size(), 3u);
  EXPECT_EQ(NextSlices(scheduler).size(), 2u);
}

TEST(Scheduler, ADecodeRowWaitsForItsOwnStepOnly) {
  Scheduler scheduler({.stages = 3, .chunk_tokens = 64});
  scheduler.Add(1, 63, 64, true);
  const auto first = scheduler.Next();
  EXPECT_THAT(first->slices, ElementsAre(Slice{1, 63, 64, true, false}));
  EXPECT_FALSE(scheduler.Next().has_value());  // its token is not known yet
  scheduler.StepDone(*first);
  scheduler.Extend(1);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 64, 65, true, false}));
}

TEST(Scheduler, DecodeRowsComeBeforeAPromptInTheSameStep) {
  Scheduler scheduler({.stages = 1, .chunk_tokens = 128});
  scheduler.Add(1, 0, 10, true);
  const auto first = scheduler.Next();
  scheduler.StepDone(*first);
  scheduler.Extend(1);
  scheduler.Add(2, 0, 1000, true);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 10, 11, true, false}, Slice{2, 0, 128, false, false}));
}

TEST(Scheduler, AStoppedSequenceIsIssuedNoFurtherAndIsIdleWhenItsStepIsDone) {
  Scheduler scheduler({.stages = 2, .chunk_tokens = 64});
  scheduler.Add(1, 0, 1000, true);
  const auto first = scheduler.Next();
  scheduler.Stop(1);
  EXPECT_FALSE(scheduler.Next().has_value());
  EXPECT_FALSE(scheduler.Idle(1));
  scheduler.StepDone(*first);
  EXPECT_TRUE(scheduler.Idle(1));
  scheduler.Remove(1);
  EXPECT_FALSE(scheduler.Has(1));
}

TEST(Scheduler, WithoutSamplingThePromptIsOnlyRead) {
  Scheduler scheduler({.stages = 1, .chunk_tokens = 64});
  scheduler.Add(1, 0, 30, false);
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 0, 30, false, false}));
}

// A hybrid shape needs no kernels here: its checkpoints are stops that no chunk crosses.
TEST(Scheduler, AChunkEndsAtAStopAndSaysThatACheckpointIsDue) {
  Scheduler scheduler({.stages = 8, .chunk_tokens = 256});
  scheduler.Add(1, 0, 700, true, {100, 699});
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 0, 100, false, true}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 100, 320, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 320, 576, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 576, 699, false, true}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 699, 700, true, false}));
}

TEST(Scheduler, AStopFarAwayDoesNotMoveTheGrid) {
  Scheduler scheduler({.stages = 8, .chunk_tokens = 128});
  scheduler.Add(1, 0, 400, true, {399});
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 0, 128, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 128, 256, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 256, 384, false, false}));
  EXPECT_THAT(NextSlices(scheduler), ElementsAre(Slice{1, 384, 399, false, true}));
}

TEST(Scheduler, SlicesOfAStepAreBounded) {
  Scheduler scheduler({.stages = 1, .chunk_tokens = 512, .max_slices = 3});
  for (Scheduler::SessionId id = 1; id <= 9; ++id) scheduler.Add(id, 0, 10, true);
  EXPECT_EQ(NextSlices(scheduler).size(), 3u);
}

// Whatever the mix, every prompt is read once and in order, and nobody starves.
TEST(Scheduler, AMixedLoadIsFinishedWithoutGapsOrRepeats) {
  Scheduler scheduler({.stages = 3, .chunk_tokens = 192, .max_slices = 8});
  std::map<Scheduler::SessionId, int64_t> fed, left;
  for (Scheduler::SessionId id = 1; id <= 12; ++id) {
    scheduler.Add(id, 0, static_cast<int64_t>(id) * 97, true);
    left[id] = 20;
  }
  std::vector<Scheduler::StepPlan> in_flight;
  for (int step = 0; step < 10'000 && !left.empty(); ++step) {
    while (auto plan = scheduler.Next()) in_flight.push_back(std::move(*plan));
    ASSERT_FALSE(in_flight.empty()) << "work is left and nothing is planned";
    const Scheduler::StepPlan plan = in_flight.front();
    in_flight.erase(in_flight.begin());
    scheduler.StepDone(plan);
    for (const Slice& slice : plan.slices) {
      ASSERT_EQ(slice.begin, fed[slice.session]);
      fed[slice.session] = slice.end;
      if (!slice.sample) continue;
      if (--left[slice.session] == 0) {
        left.erase(slice.session);
        scheduler.Remove(slice.session);
      } else {
        scheduler.Extend(slice.session);
      }
    }
  }
  EXPECT_TRUE(left.empty());
  for (Scheduler::SessionId id = 1; id <= 12; ++id) EXPECT_EQ(fed[id], static_cast<int64_t>(id) * 97 + 19);
}

}  // namespace
}  // namespace layover
