// Which link a hop has: the whole table, and the plan that shows it.
#include "common/link_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace layover {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kRemote = "tcp://10.0.0.7:7001";
constexpr std::string_view kOther = "tcp://10.0.0.8:7001";

struct Row {
  LinkKind wanted;
  HopEnd from, into;
  LinkKind link;           // kAuto: refused
  std::string_view why{};  // part of the refusal
};

TEST(LinkChoice, Table) {
  const std::vector<Row> table = {
      // Left to us: shm on one machine whatever the devices are, two stages on one GPU too; else zmq.
      {LinkKind::kAuto, {"cpu", ""}, {"cpu", ""}, LinkKind::kShm},
      {LinkKind::kAuto, {"cpu", ""}, {"cuda:0", ""}, LinkKind::kShm},
      {LinkKind::kAuto, {"cuda:0", ""}, {"cuda:1", ""}, LinkKind::kShm},
      {LinkKind::kAuto, {"cuda:0", ""}, {"cuda:0", ""}, LinkKind::kShm},
      {LinkKind::kAuto, {"emu:0", ""}, {"cuda:0", ""}, LinkKind::kShm},
      {LinkKind::kAuto, {"cpu", ""}, {"cpu", kRemote}, LinkKind::kZmq},
      {LinkKind::kAuto, {"cpu", kRemote}, {"cpu", ""}, LinkKind::kZmq},
      {LinkKind::kAuto, {"cuda:0", kRemote}, {"cuda:1", kOther}, LinkKind::kZmq},
      // zmq goes everywhere.
      {LinkKind::kZmq, {"cpu", ""}, {"cpu", ""}, LinkKind::kZmq},
      {LinkKind::kZmq, {"cuda:0", ""}, {"cpu", kRemote}, LinkKind::kZmq},
      // shm: one machine.
      {LinkKind::kShm, {"cuda:0", ""}, {"cuda:0", ""}, LinkKind::kShm},
      {LinkKind::kShm, {"cpu", ""}, {"cpu", kRemote}, LinkKind::kAuto, "stages of one host"},
      {LinkKind::kShm, {"cpu", kRemote}, {"cpu", ""}, LinkKind::kAuto, "stages of one host"},
      {LinkKind::kShm, {"cpu", kRemote}, {"cpu", kOther}, LinkKind::kAuto, "stages of one host"},
      // nccl: two GPUs of one kind on one machine.
      {LinkKind::kNccl, {"cuda:0", ""}, {"cuda:1", ""}, LinkKind::kNccl},
      {LinkKind::kNccl, {"emu:1", ""}, {"emu:0", ""}, LinkKind::kNccl},
      {LinkKind::kNccl, {"cpu", ""}, {"cuda:0", ""}, LinkKind::kAuto, "has a cpu"},
      {LinkKind::kNccl, {"cuda:0", ""}, {"cpu", ""}, LinkKind::kAuto, "has a cpu"},
      {LinkKind::kNccl, {"cuda:0", ""}, {"cuda:0", ""}, LinkKind::kAuto, "two stages on cuda:0"},
      {LinkKind::kNccl, {"cuda:0", ""}, {"emu:1", ""}, LinkKind::kAuto, "of one kind"},
      {LinkKind::kNccl, {"cuda:0", ""}, {"cuda:1", kRemote}, LinkKind::kAuto, "stages of one host"},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(testing::Message() << LinkKindName(row.wanted) << ": " << row.from.device << " " << row.from.host
                                    << " to " << row.into.device << " " << row.into.host);
    const absl::StatusOr<LinkKind> link = ChooseLink(row.wanted, row.from, row.into);
    if (row.link != LinkKind::kAuto) {
      ASSERT_TRUE(link.ok()) << link.status();
      EXPECT_EQ(*link, row.link);
      continue;
    }
    ASSERT_FALSE(link.ok());
    EXPECT_EQ(link.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(link.status().message()), HasSubstr(row.why));
  }
}

TEST(LinkChoice, ATopologyThatAsksForTheImpossibleIsRefusedWithItsLine) {
  const auto topology =
      ParseTopology("model: m\nstages:\n  - {device: 'cuda:3'}\n  - {device: 'cuda:3', link: nccl}\n", "t.yaml");
  ASSERT_FALSE(topology.ok());
  EXPECT_THAT(std::string(topology.status().message()),
              HasSubstr("t.yaml:4: stage 1: link nccl joins two GPUs, and NCCL refuses"));
}

}  // namespace
}  // namespace layover
