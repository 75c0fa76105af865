// Which rows a block of a product has. MatMul's are given by its place in the grid. Products of experts take the rows
// that share an expert together, so that its weights are read once for all of them:
//
//   up to kFewRows rows   A block is a choice. It looks through all choices for those of the same expert, takes them
//                         along if it is the first of them, and leaves if another one takes it along.
//   more                  The choices are grouped by expert before (expert_groups.cu); a block has a tile of a group.
//
// Rows do not know of each other, so a row's bits are the same wherever it stands.
#ifndef LAYOVER_KERNELS_CUDA_PRODUCT_ROWS_H_
#define LAYOVER_KERNELS_CUDA_PRODUCT_ROWS_H_

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"

namespace layover::gpu {

inline constexpr int kFewRows = 8;    // of a block of the kernels for few rows, which MatMul takes up to here
inline constexpr int kManyRows = 64;  // of a block of those for more

// Rows [begin, begin + rows) of the choices in their groups' order; one expert's. None where rows is 0.
struct ExpertTile {
  int expert;
  int begin;
  int rows;
};

// Choice c is of row c / k, and its expert is chosen[c].
struct ExpertChoices {
  const int32_t* chosen = nullptr;    // [n_choices]; null: one weight for all rows
  const int32_t* order = nullptr;     // [n_choices], choices by expert; null for few rows
  const ExpertTile* tiles = nullptr;  // [n_tiles]
  long long expert_bytes = 0;
  int n_choices = 0;
  int n_tiles = 0;
  int k = 1;
  bool x_per_choice = false;
};

// Experts' groups begin at these tiles, whatever the counts are: a group with `before` choices before it cannot need an
// earlier one, nor can the groups before it need it, as each has at most one tile that is not full.
__host__ __device__ constexpr int FirstTileOf(int expert, int before) {
  return before / kManyRows + expert;
}
__host__ __device__ constexpr int TilesOf(int experts, int n_choices) {
  return FirstTileOf(experts, n_choices);
}

// How many blocks share the rows of a product.
inline unsigned BlocksOfRows(const ExpertChoices& choices, int n_rows) {
  const bool dense = choices.chosen == nullptr;
  if (n_rows <= kFewRows) return dense ? 1 : static_cast<unsigned>(choices.n_choices);
  return static_cast<unsigned>(dense ? (n_rows + kManyRows - 1) / kManyRows : choices.n_tiles);
}

// The row of x that a row of the product is of.
__device__ __forceinline__ int SourceRow(const ExpertChoices& choices, int row) {
  return choices.chosen == nullptr || choices.x_per_choice ? row : row / choices.k;
}

// Position of the n-th set bit, n from 0.
__device__ __forceinline__ int PlaceOfBit(uint32_t bits, int n) {
  for (; n > 0; --n) bits &= bits - 1;
  return __ffs(static_cast<int>(bits)) - 1;
}

// The rows of a block of few, the same for all its warps.
struct FewRowsOfBlock {
  int expert;
  int n_rows;  // 0: the block has none
  int row;     // of lane i: the product's row that is the block's row i
};

// `most` rows at most; without experts, those are all there are.
__device__ __forceinline__ FewRowsOfBlock FindFewRows(const ExpertChoices& choices, int choice, int most) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (choices.chosen == nullptr) return {0, most, lane};
  FewRowsOfBlock block = {choices.chosen[choice], 1, choice};
  if (most == 1) return block;
  block.n_rows = 0;
  int before = 0;
  for (int base = 0; base < choices.n_choices && block.n_rows < most; base += 32) {
    const int other = base + lane;
    uint32_t same = __ballot_sync(kAllLanes, other < choices.n_choices && choices.chosen[other] == block.expert);
    if (base + 32 <= choice) {
      before += __popc(same);
      continue;
    }
    if (base < choice) {
      const uint32_t from_choice = kAllLanes << (choice - base);
      before += __popc(same & ~from_choice);
      same &= from_choice;
    }
    const int found = __popc(same);
    if (lane >= block.n_rows && lane < block.n_rows + found) block.row = base + PlaceOfBit(same, lane - block.n_rows);
    block.n_rows += found;
  }
  block.n_rows = before % most == 0 ? MinInt(block.n_rows, most) : 0;
  return block;
}

// The rows of a block of many: tile number `tile`.
__device__ __forceinline__ ExpertTile TileOfBlock(const ExpertChoices& choices, int tile, int n_rows) {
  if (choices.tiles != nullptr) return choices.tiles[tile];
  return {0, tile * kManyRows, MinInt(kManyRows, n_rows - tile * kManyRows)};
}

// The product's row that stands at `place` in the tiles' order.
__device__ __forceinline__ int RowAt(const ExpertChoices& choices, int place) {
  return choices.order != nullptr ? choices.order[place] : place;
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_PRODUCT_ROWS_H_
