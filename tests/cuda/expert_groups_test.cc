// How choices are grouped by expert, and what that saves: an expert's weights are read once for all rows that share it,
// up to 64 of them.
#include "kernels/cuda/expert_groups.h"

#include <map>
#include <random>

#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/reference_matmul.h"

namespace layover::gpu_test {
namespace {

using gpu::ExpertTile;
using gpu::kFewRows;
using gpu::kManyRows;

std::map<int, int> CountsOf(const std::vector<int32_t>& chosen) {
  std::map<int, int> counts;
  for (const int32_t id : chosen) ++counts[id];
  return counts;
}

// One in two of the low experts, so that some groups are large and some are empty.
std::vector<int32_t> Choices(int n, int experts, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> chosen(n);
  for (int32_t& id : chosen) id = static_cast<int32_t>(random() % (random() % 2 == 0 ? experts : (experts + 3) / 4));
  return chosen;
}

struct Groups {
  std::vector<int32_t> order;
  std::vector<ExpertTile> tiles;
};

Groups GroupOnCard(const std::vector<int32_t>& chosen, int experts, int k) {
  const std::unique_ptr<gpu::Queue> queue = gpu::NewQueue(0);
  const auto put = gpu::GpuBuffer::Allocate(0, chosen.size() * sizeof(int32_t)).value();
  queue->CopyToDevice(put->data(), chosen.data(), put->bytes());
  PackedWeight weight;
  weight.experts = experts;
  MoeMatMulArgs args;
  args.weight = &weight;
  args.chosen = put->As<int32_t>();
  args.n_rows = static_cast<int>(chosen.size()) / k;
  args.k = k;
  const auto groups = gpu::GpuBuffer::Allocate(0, gpu::ExpertGroupsBytes(args)).value();
  const gpu::ExpertChoices choices = gpu::LaunchGroupChoices(args, groups->data(), queue.get());
  Groups result{std::vector<int32_t>(chosen.size()), std::vector<ExpertTile>(choices.n_tiles)};
  queue->CopyToHost(result.order.data(), choices.order, chosen.size() * sizeof(int32_t));
  queue->CopyToHost(result.tiles.data(), choices.tiles, result.tiles.size() * sizeof(ExpertTile));
  EXPECT_TRUE(queue->Synchronize().ok());
  return result;
}

// Each choice stands in one tile, of its expert, and no expert has more tiles than its choices need.
void ExpectGroups(const Groups& groups, const std::vector<int32_t>& chosen) {
  std::vector<int32_t> order(chosen.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return chosen[a] < chosen[b]; });
  EXPECT_EQ(groups.order, order);
  std::map<int, int> tiles;
  int next = 0;
  for (const ExpertTile& tile : groups.tiles) {
    ASSERT_TRUE(tile.rows >= 0 && tile.rows <= kManyRows);
    if (tile.rows == 0) continue;
    ASSERT_EQ(tile.begin, next);
    next += tile.rows;
    ASSERT_LE(next, static_cast<int>(chosen.size()));
    for (int i = tile.begin; i < next; ++i) ASSERT_EQ(chosen[groups.order[i]], tile.expert);
    ++tiles[tile.expert];
  }
  EXPECT_EQ(next, static_cast<int>(chosen.size()));
  for (const auto& [expert, count] : CountsOf(chosen)) EXPECT_EQ(tiles[expert], (count + kManyRows - 1) / kManyRows);
}

TEST(ExpertGroups, HoldEveryChoiceOnceInItsExpertsTiles) {
  const struct {
    int n_rows, k, experts;
  } shapes[] = {{9, 1, 1}, {9, 8, 128}, {64, 1, 3}, {65, 2, 2}, {400, 4, 32}, {300, 8, 512}, {128, 6, 6}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(fmt::format("{} rows, {} of {}", shape.n_rows, shape.k, shape.experts));
    const std::vector<int32_t> chosen = Choices(shape.n_rows * shape.k, shape.experts, shape.n_rows);
    ForEverySchedule(4, [&](Device*) { ExpectGroups(GroupOnCard(chosen, shape.experts, shape.k), chosen); });
    if (HasFatalFailure()) return;
  }
}

TEST(ExpertGroups, OfOneExpertAlone) {
  for (const int n : {63, 64, 65, 128, 130}) {
    for (const int expert : {0, 5, 9}) {
      const std::vector<int32_t> chosen(n, expert);
      ExpectGroups(GroupOnCard(chosen, 10, 1), chosen);
    }
  }
}

// Loads of weights by a product of experts, and by MatMul with one expert's weight for so many rows.
struct Loads {
  uint64_t of_experts = 0;
  uint64_t of_one = 0;
};

Loads CountLoads(WeightType type, const std::vector<int32_t>& chosen, int experts, int k) {
  const int n_out = 150, cols = 256, n_rows = static_cast<int>(chosen.size()) / k;
  const RawWeight slab = RandomWeight(type, n_out, cols, 3, experts);
  const auto device = gpu::GpuDevice::Open(0).value();
  Memory memory(device.get());
  const auto weight = device->PackWeight(slab.Source()).value();
  const auto one = device->PackWeight({type, 1, n_out, cols, slab.data.data(), slab.data.size() / experts}).value();
  const std::vector<float> x = kernel_test::NormalValues(static_cast<size_t>(n_rows) * cols, 5);
  void* prepared = memory.Zeroed<uint8_t>(device->ActivationBytes(weight->activation, n_rows, cols));
  memory.stream()->PrepareActivation({memory.Put(x), n_rows, cols, cols, weight->activation, prepared});
  float* out = memory.Zeroed<float>(chosen.size() * n_out);
  const int32_t* ids = memory.Put(chosen);
  memory.Finish();
  Loads loads;
  emulation::TakeRan();
  memory.stream()->MoeMatMul({weight.get(), prepared, ids, out, n_rows, k, false, nullptr});
  memory.Finish();
  loads.of_experts = emulation::TakeRan().loads_of_16_bytes;
  const int rows_of_one = n_rows <= kFewRows ? 1 : kFewRows + 1;  // one block of rows, by the same kernel
  memory.stream()->MatMul({one.get(), prepared, rows_of_one, out, n_out, nullptr, nullptr});
  memory.Finish();
  loads.of_one = emulation::TakeRan().loads_of_16_bytes;
  return loads;
}

constexpr WeightType kSomeTypes[] = {WeightType::kQ4_0, WeightType::kQ6_K, WeightType::kF16};

TEST(ExpertGroups, WeightsAreReadOnceForEveryTileOfRows) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {9, 150}) {
      const int experts = 7, k = 2;
      const std::vector<int32_t> chosen = Choices(n_rows * k, experts, n_rows);
      uint64_t tiles = 0;
      for (const auto& [expert, count] : CountsOf(chosen)) tiles += (count + kManyRows - 1) / kManyRows;
      ASSERT_LT(tiles, chosen.size() / 2);
      const Loads loads = CountLoads(type, chosen, experts, k);
      EXPECT_GT(loads.of_one, 0u);
      EXPECT_EQ(loads.of_experts, tiles * loads.of_one) << WeightTypeName(type) << ", " << n_rows << " rows";
    }
  }
}

TEST(ExpertGroups, FewRowsReadTheWeightsOfAnExpertThatTheyShareOnce) {
  for (const WeightType type : kSomeTypes) {
    for (const int n_rows : {1, 2, 8}) {
      std::vector<int32_t> chosen;  // two experts of eight, and one that all rows share
      for (int row = 0; row < n_rows; ++row) chosen.insert(chosen.end(), {row % 4, 4 + row % 3, 8});
      const Loads loads = CountLoads(type, chosen, 9, 3);
      EXPECT_GT(loads.of_one, 0u);
      EXPECT_EQ(loads.of_experts, CountsOf(chosen).size() * loads.of_one) << WeightTypeName(type) << ", " << n_rows;
    }
  }
}

}  // namespace
}  // namespace layover::gpu_test
