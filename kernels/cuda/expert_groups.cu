// The choices of a step grouped by expert, so that a product of many rows reads an expert's weights once for each tile
// of its rows (product_rows.h). Each expert's warp counts for itself, and what it writes depends on the choices alone:
// within a group they keep their order. No count comes to the host, so a step can be captured as a graph.
#include "common/limits.h"
#include "kernels/cuda/expert_groups.h"

namespace layover::gpu {
namespace {

constexpr int kAtOnce = 4;  // loads of a lane under way

__global__ void __launch_bounds__(32)
    GroupChoicesKernel(const int32_t* chosen, int n_choices, int32_t* order, ExpertTile* tiles) {
  const int lane = static_cast<int>(threadIdx.x), expert = static_cast<int>(blockIdx.x);
  int before = 0, own = 0;
  for (int i = lane; i < n_choices; i += 32) {
    before += chosen[i] < expert ? 1 : 0;
    own += chosen[i] == expert ? 1 : 0;
  }
  for (int step = 16; step > 0; step /= 2) {
    before += __shfl_xor_sync(kAllLanes, before, step);
    own += __shfl_xor_sync(kAllLanes, own, step);
  }
  // All tiles that are nobody else's, empty ones too.
  const int first = FirstTileOf(expert, before), end = FirstTileOf(expert + 1, before + own);
  for (int tile = first + lane; tile < end; tile += 32) {
    const int taken = (tile - first) * kManyRows;
    tiles[tile] = {expert, before + taken, MaxInt(0, MinInt(kManyRows, own - taken))};
  }
  int at = before;
  for (int base = 0; base < n_choices && at < before + own; base += kAtOnce * 32) {
    int32_t experts[kAtOnce];
    GPU_UNROLL
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = base + j * 32 + lane;
      experts[j] = i < n_choices ? chosen[i] : -1;
    }
    GPU_UNROLL
    for (int j = 0; j < kAtOnce; ++j) {
      const uint32_t mine = __ballot_sync(kAllLanes, experts[j] == expert);
      if (experts[j] == expert) order[at + __popc(mine & ((1u << lane) - 1))] = base + j * 32 + lane;
      at += __popc(mine);
    }
  }
}

}  // namespace

size_t ExpertGroupsBytes(const MoeMatMulArgs& args) {
  if (args.n_rows <= kFewRows) return 0;
  // Those of the largest step, so that it does not grow from step to step.
  const int most = (args.n_rows > limits::kMaxStepTokens ? args.n_rows : limits::kMaxStepTokens) * args.k;
  return static_cast<size_t>(TilesOf(args.weight->experts, most)) * sizeof(ExpertTile) +  // then the order
         static_cast<size_t>(most) * sizeof(int32_t);
}

ExpertChoices LaunchGroupChoices(const MoeMatMulArgs& args, void* groups, Queue* queue) {
  ExpertChoices choices;
  choices.chosen = args.chosen;
  choices.n_choices = args.n_rows * args.k;
  choices.k = args.k;
  choices.x_per_choice = args.x_per_choice;
  if (args.n_rows <= kFewRows) return choices;
  choices.n_tiles = TilesOf(args.weight->experts, choices.n_choices);
  ExpertTile* const tiles = static_cast<ExpertTile*>(groups);
  int32_t* const order = reinterpret_cast<int32_t*>(tiles + choices.n_tiles);
  Launch("GroupChoices", GroupChoicesKernel, {static_cast<unsigned>(args.weight->experts)}, 32, 0, queue,
         choices.chosen, choices.n_choices, order, tiles);
  choices.order = order;
  choices.tiles = tiles;
  return choices;
}

}  // namespace layover::gpu
