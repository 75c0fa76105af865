// What a plan counts of hops between stages: host memory, page-locked or not, NCCL's buffers, and the warning where a
// machine has too little.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/limits.h"
#include "common/plan/report.h"
#include "common/plan/stage_plan.h"
#include "nlohmann/json.hpp"
#include "tests/common/plan_fixture.h"

namespace layover {
namespace {

using ::testing::HasSubstr;

Topology Devices(const std::string& stages, const std::string& more = "") {
  auto topology =
      ParseTopology("model: m.gguf\ncontext: 256\nsessions: 3\nchunk: 128\n" + more + "stages:\n" + stages, "t.yaml");
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *std::move(topology);
}

TEST(HopPlan, HopsAreCounted) {
  const Model model = LoadTiny({.layers = 4});
  const uint64_t step = sizeof(float) * (128 + 3) * 64;  // 33,536 bytes: with its header nine pages
  const auto ring =
      MakePlan(Devices("  - {device: cpu}\n  - {device: cpu}\n  - {device: 'cuda:0'}\n"), *model.file, model.shape);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->hop_bytes, step);
  EXPECT_EQ(ring->stages[0].hop_host_bytes, 0u);
  for (const int i : {1, 2})
    EXPECT_EQ(ring->stages[i].hop_host_bytes, 4096u + 4 * 9 * 4096) << i;  // three stages, four slots
  EXPECT_FALSE(ring->stages[1].hop_pinned);
  EXPECT_TRUE(ring->stages[2].hop_pinned);
  // The card's own memory is not this machine's.
  EXPECT_EQ(ring->host_bytes, ring->stages[0].total_bytes + ring->stages[1].total_bytes + 2 * (4096u + 4 * 9 * 4096));

  const auto frames = MakePlan(Devices("  - {device: cpu}\n  - {device: cpu, link: zmq}\n"), *model.file, model.shape);
  EXPECT_EQ(frames->stages[1].hop_host_bytes, 2 * step);
  EXPECT_FALSE(frames->stages[1].hop_pinned);
}

TEST(HopPlan, BuffersOfNcclAreTheSendersScratch) {
  const Model model = LoadTiny({.layers = 4});
  const uint64_t step = sizeof(float) * (128 + 3) * 64;
  const std::string cards = "  - {device: 'cuda:0', layers: 0-1}\n  - {device: 'cuda:1', layers: 2-3";
  const auto shm = MakePlan(Devices(cards + "}\n"), *model.file, model.shape);
  const auto nccl = MakePlan(Devices(cards + ", link: nccl}\n"), *model.file, model.shape);
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_EQ(nccl->stages[0].hop_device_bytes, 2 * step);
  EXPECT_EQ(nccl->stages[1].hop_device_bytes, 0u);
  EXPECT_EQ(nccl->stages[0].scratch_bytes, shm->stages[0].scratch_bytes + 2 * step);
  EXPECT_EQ(nccl->stages[0].total_bytes, shm->stages[0].total_bytes + 2 * step);
  EXPECT_EQ(nccl->stages[1].total_bytes, shm->stages[1].total_bytes);
  EXPECT_EQ(nccl->stages[1].hop_host_bytes, 4096u + 3 * 4096);  // headers only
  EXPECT_EQ(nccl->host_bytes, nccl->stages[1].hop_host_bytes);
}

// The first card also holds the buffers of the hop, which are larger than a layer of this model: it takes fewer layers.
TEST(HopPlan, AutomaticLayersMakeRoomForBuffersOfNccl) {
  const Model model = LoadTiny({.layers = 8,
                                .embd = 256,
                                .heads = 16,
                                .kv_heads = 1,
                                .ff = 32,
                                .vocab = 260,
                                .weight_type = WeightType::kQ4_0,
                                .tied = false});
  const std::string cards = "  - {device: 'cuda:0'}\n  - {device: 'cuda:1'";
  const auto shm = MakePlan(Devices(cards + "}\n"), *model.file, model.shape);
  const auto nccl = MakePlan(Devices(cards + ", link: nccl}\n"), *model.file, model.shape);
  ASSERT_TRUE(shm.ok() && nccl.ok());
  EXPECT_LT(nccl->stages[0].layers.end, shm->stages[0].layers.end);
  EXPECT_LE(LargestOf(*nccl), shm->stages[0].total_bytes + nccl->stages[0].hop_device_bytes);
}

TEST(HopPlan, HopsBetweenOtherMachinesTakeNothingHere) {
  const Model model = LoadTiny({.layers = 4});
  const std::string keys = "public_key_file: p, secret_key_file: s";
  const auto remote = [&](const char* port) {
    return "  - {device: cpu, host: 'tcp://10.0.0.7:" + std::string(port) + "', " + keys + "}\n";
  };
  const auto plan =
      MakePlan(Devices("  - {device: cpu}\n" + remote("7001") + remote("7011")), *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[1].hop_host_bytes, 3 * plan->hop_bytes);
  EXPECT_EQ(plan->stages[2].hop_host_bytes, 3 * plan->hop_bytes);
  EXPECT_EQ(plan->host_bytes, plan->stages[0].total_bytes + 3 * plan->hop_bytes);
}

TEST(HopPlan, ReportsShowHopsAndWarnsWhereTheMachineIsTooSmall) {
  const Model model = LoadTiny({.layers = 4});
  const auto plan = MakePlan(Devices("  - {device: cpu}\n  - {device: 'cuda:0'}\n  - {device: 'cuda:1', link: nccl}\n"),
                             *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const MachineMemory machine{limits::kGiB, {{"cuda:0", limits::kGiB}, {"cuda:1", limits::kGiB}}};
  const std::string text = PlanText(*plan, machine);
  EXPECT_THAT(text, HasSubstr("hop 0-1 over shm: 148.0 KiB of host memory, page-locked\n"));
  EXPECT_THAT(text,
              HasSubstr("hop 1-2 over nccl: 20.0 KiB of host memory, page-locked, 65.5 KiB of stage 1's scratch\n"));
  EXPECT_THAT(text, HasSubstr(" of 1.00 GiB for CPU stages and hops\n"));
  EXPECT_EQ(text.find("warning"), std::string::npos);
  const auto json = nlohmann::json::parse(PlanJson(*plan, machine));
  EXPECT_EQ(json["stages"][0]["hop_host_bytes"], 0);
  EXPECT_EQ(json["stages"][1]["hop_host_bytes"], 37 * 4096);
  EXPECT_EQ(json["stages"][1]["hop_pinned"], true);
  EXPECT_EQ(json["stages"][1]["hop_device_bytes"], 2 * plan->hop_bytes);
  EXPECT_EQ(json["host_bytes"], plan->host_bytes);
  EXPECT_EQ(json["host_memory_bytes"], limits::kGiB);
  EXPECT_EQ(json["warnings"], nlohmann::json::array());

  EXPECT_TRUE(PlanWarnings(*plan, {plan->host_bytes, {}}).empty());
  const auto warnings = PlanWarnings(*plan, {plan->host_bytes - 1, {}});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("168.0 KiB of it hops"));
  EXPECT_THAT(PlanText(*plan, {1000, {}}), HasSubstr("warning: this machine has 1.0 KiB of memory; "));
  EXPECT_EQ(nlohmann::json::parse(PlanJson(*plan, {1000, {}}))["warnings"].size(), 1u);
}

TEST(HopPlan, ACardThatIsTooSmallForItsStagesIsNamed) {
  const Model model = LoadTiny({.layers = 4});
  const auto plan = MakePlan(Devices("  - {device: 'cuda:0'}\n  - {device: 'cuda:1'}\n  - {device: 'cuda:0'}\n"),
                             *model.file, model.shape);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const uint64_t first = plan->stages[0].total_bytes + plan->stages[2].total_bytes,
                 second = plan->stages[1].total_bytes;
  const MachineMemory enough{limits::kGiB, {{"cuda:0", first}, {"cuda:1", second}}};
  EXPECT_TRUE(PlanWarnings(*plan, enough).empty());
  const auto json = nlohmann::json::parse(PlanJson(*plan, enough));
  EXPECT_EQ(json["devices"][0],
            nlohmann::json({{"device", "cuda:0"}, {"planned_bytes", first}, {"memory_bytes", first}}));
  EXPECT_EQ(json["devices"][1]["planned_bytes"], second);
  const auto warnings = PlanWarnings(*plan, {limits::kGiB, {{"cuda:0", first - 1}, {"cuda:1", second}}});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("cuda:0 has "));
}

}  // namespace
}  // namespace layover
