// Which records serve a path: digests find them, each row is used once, what is missing is named.
#include "common/storage/record_plan.h"

#include "common/status.h"
#include "tests/storage/storage_fixture.h"

namespace layover {
namespace {

using testing::SampleIds;

constexpr RecordsOf kK{3, RecordKind::kKRows};

IndexEntry Entry(const RecordsOf& what, int32_t begin, int32_t end, const PrefixDigests& path) {
  IndexEntry entry;
  entry.key.kind = what.kind;
  entry.key.layer = what.layer;
  entry.key.token_begin = begin;
  entry.key.token_end = end;
  entry.key.prefix = path.At(end);
  return entry;
}

// "segment.entry[begin,end)" of each part.
std::string Show(const absl::StatusOr<std::vector<PlannedRecord>>& plan) {
  if (!plan.ok()) return plan.status().ToString();
  std::string text;
  for (const PlannedRecord& r : *plan) text += fmt::format("{}.{}[{},{}) ", r.segment, r.entry, r.use_begin, r.use_end);
  return text;
}

TEST(PrefixDigestsTest, AreTheDigestsOfEveryPrefix) {
  const std::vector<int32_t> ids = SampleIds(700);
  const PrefixDigests path(ids);
  EXPECT_EQ(path.size(), 700);
  for (const int32_t n : {0, 1, 63, 64, 240, 241, 699, 700}) {
    EXPECT_EQ(path.At(n), DigestOfTokens(std::span(ids).first(static_cast<size_t>(n)))) << n;
  }
}

TEST(PlanRowsTest, DeltaSegmentsTogetherServeAPath) {
  const PrefixDigests path(SampleIds(200));
  const std::vector<IndexEntry> first = {Entry(kK, 0, 64, path), Entry(kK, 64, 100, path)};
  const std::vector<IndexEntry> second = {Entry(kK, 100, 128, path), Entry(kK, 128, 150, path)};
  const std::vector<IndexEntry> third = {Entry(kK, 128, 192, path), Entry(kK, 192, 200, path)};
  const IndexView views[] = {first, second, third};
  EXPECT_EQ(Show(PlanRows(views, kK, path, 0, 200)), "0.0[0,64) 0.1[64,100) 1.0[100,128) 2.0[128,192) 2.1[192,200) ");
  EXPECT_EQ(Show(PlanRows(views, kK, path, 0, 70)), "0.0[0,64) 0.1[64,70) ");
  EXPECT_EQ(Show(PlanRows(views, kK, path, 110, 140)), "1.0[110,128) 2.0[128,140) ");
  EXPECT_EQ(Show(PlanRows(views, kK, path, 50, 50)), "");
}

// A branch that leaves inside a record does not use it: the digest at its end is another.
TEST(PlanRowsTest, ARecordOfAnotherHistoryIsNotUsed) {
  std::vector<int32_t> ids = SampleIds(128);
  const PrefixDigests trunk(ids);
  ids[90] += 1;
  const PrefixDigests branch(ids);
  const std::vector<IndexEntry> first = {Entry(kK, 0, 64, trunk), Entry(kK, 64, 100, trunk),
                                         Entry(kK, 100, 128, trunk)};
  const std::vector<IndexEntry> second = {Entry(kK, 64, 128, branch)};
  const IndexView views[] = {first, second};
  EXPECT_EQ(Show(PlanRows(views, kK, branch, 0, 128)), "0.0[0,64) 1.0[64,128) ");
  EXPECT_EQ(Show(PlanRows(views, kK, trunk, 0, 128)), "0.0[0,64) 0.1[64,100) 0.2[100,128) ");
  EXPECT_EQ(Show(PlanRows(views, kK, branch, 64, 80)), "1.0[64,80) ");
}

TEST(PlanRowsTest, WhatIsMissingIsNamed) {
  const PrefixDigests path(SampleIds(128));
  const std::vector<IndexEntry> first = {Entry(kK, 0, 64, path), Entry(kK, 70, 128, path)};
  const IndexView views[] = {first};
  const absl::Status status = PlanRows(views, kK, path, 0, 128).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(ToStd(status.message()).find("K rows of layer 3 at token 64"), std::string_view::npos) << status;
  EXPECT_FALSE(PlanRows(views, {3, RecordKind::kVRows}, path, 0, 128).ok());
  EXPECT_FALSE(PlanRows(views, {4, RecordKind::kKRows}, path, 0, 128).ok());
}

TEST(PlanStateTest, OnlyTheExactPositionOfThisHistoryServes) {
  const RecordsOf state{5, RecordKind::kRecurrent};
  const PrefixDigests path(SampleIds(128));
  const PrefixDigests other(SampleIds(128, 2));
  const std::vector<IndexEntry> first = {Entry(state, 0, 100, other), Entry(state, 0, 100, path),
                                         Entry(state, 0, 64, path)};
  const IndexView views[] = {first};
  EXPECT_EQ(PlanState(views, state, path, 100)->entry, 1u);
  EXPECT_EQ(PlanState(views, state, path, 64)->entry, 2u);
  EXPECT_FALSE(PlanState(views, state, path, 99).ok());
}

TEST(GroupBySegmentTest, AscendingWithoutRepeats) {
  const PlannedRecord plan[] = {{1, 7, 0, 1}, {0, 3, 0, 1}, {1, 2, 0, 1}, {1, 7, 5, 6}};
  const std::vector<SegmentReads> reads = GroupBySegment(plan);
  ASSERT_EQ(reads.size(), 2u);
  EXPECT_EQ(reads[0].positions, std::vector<size_t>{3});
  EXPECT_EQ(reads[1].positions, (std::vector<size_t>{2, 7}));
}

}  // namespace
}  // namespace layover
