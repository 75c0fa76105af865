// Finding one's place in a step: which sequence a row, or a tile of rows, belongs to. A whole warp asks together.
#ifndef LAYOVER_KERNELS_CUDA_SLICES_H_
#define LAYOVER_KERNELS_CUDA_SLICES_H_

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/ops.h"

namespace layover::gpu {

// The slice of tile `tile`, where each slice has ceil(row_count / rows_per_tile) tiles, and the tile's number in it.
struct TilePlace {
  SequenceSlice slice;
  int tile_in_slice = 0;
  bool found = false;
};

__device__ __forceinline__ TilePlace FindTile(const SliceTable& table, int tile, int rows_per_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TilePlace place;
  int before = 0;
  for (int base = 0; base < table.n_slices; base += 32) {
    const int s = base + lane;
    const int mine = s < table.n_slices ? (table.slices[s].row_count + rows_per_tile - 1) / rows_per_tile : 0;
    int until = mine;  // tiles up to and with this slice
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, until, step);
      if (lane >= step) until += other;
    }
    const uint32_t after = __ballot_sync(kAllLanes, before + until > tile);
    if (after != 0) {
      int first = 0;
      while ((after >> first & 1) == 0) ++first;
      place.slice = table.slices[base + first];
      place.tile_in_slice = tile - before - __shfl_sync(kAllLanes, until - mine, first);
      place.found = true;
      return place;
    }
    before += __shfl_sync(kAllLanes, until, 31);
  }
  return place;
}

// Position of a row of the step, and its sequence's page table.
struct RowPlace {
  int position = 0;
  const int32_t* pages = nullptr;
};

__device__ __forceinline__ RowPlace FindRow(const SliceTable& table, int row) {
  const TilePlace place = FindTile(table, row, 1);  // slices cover the rows without gaps
  return {place.slice.position_begin + place.tile_in_slice, table.page_tables + place.slice.page_table_begin};
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_SLICES_H_
