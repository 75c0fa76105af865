// Attention over pages, in the order of kernels/README.md: keys in blocks of 64, a page each; of every block and query
// a maximum, a sum and value sums; blocks merged in ascending order.
//
// A block of threads is a tile of queries of one K/V head: rows of one sequence times the heads of the group, four
// queries a warp. A warp's lanes are keys (l and l + 32) for the scores and dims (l and l + 32 of 64) for the values.
//  - Where there are tiles enough for the card, a tile goes through all its blocks and keeps its sums in registers.
//  - Else blocks are shared out (blockIdx.z); contributions go to memory and MergeKernel merges them in order, a wave
//  of
//    blocks at a time where memory is short.
#include "kernels/cuda/attention_steps.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/slices.h"

namespace layover::gpu {
namespace {

constexpr int kQueries = 4;  // of a warp

// Contributions of the blocks [begin, begin + count) and the sums so far, in scratch: each of a query (row * heads +
// head) is `stride` floats: maximum, sum, value sums.
struct SplitPlan {
  float* contributions = nullptr;  // [queries][count][stride]; null: no split
  float* sums = nullptr;           // [queries][stride]
  int stride = 0;
  int begin = 0;
  int count = 0;
  bool first = false;
  bool last = false;
};

struct Tiling {
  int heads_per_tile = 0;
  int head_tiles = 0;  // of a group
  int rows_per_tile = 0;
};

template <int kWarps, int kChunks>
__global__ void __launch_bounds__(kWarps * 32, 1) AttentionKernel(AttentionArgs args, Tiling tiling, SplitPlan split) {
  const KvLayer& cache = args.cache;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const TilePlace place = FindTile(args.slices, static_cast<int>(blockIdx.x), tiling.rows_per_tile);
  if (!place.found) return;  // the whole block
  const int dim = cache.head_dim;
  const int group = args.heads / cache.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y) / tiling.head_tiles;
  const int first_head = static_cast<int>(blockIdx.y) % tiling.head_tiles * tiling.heads_per_tile;
  const int n_heads = MinInt(tiling.heads_per_tile, group - first_head);
  const int first_row = place.tile_in_slice * tiling.rows_per_tile;
  const int n_rows = MinInt(tiling.rows_per_tile, place.slice.row_count - first_row);
  const int first_position = place.slice.position_begin + first_row;
  const int32_t* pages = args.slices.page_tables + place.slice.page_table_begin;

  SharedCarver carver;
  float* const stage = carver.Take<float>(kDims * kKeys);
  float4* const weights = carver.Take<float4>(kWarps * kKeys) + warp * kKeys;  // [key], a float a query
  float4* const scaled_q = carver.Take<float4>(kWarps * kChunks * kDims) + warp * kChunks * kDims;  // [dim]

  // This warp's queries; those beyond the tile's last do as the first does, and are not stored.
  int position[kQueries], query_head[kQueries], query_row[kQueries];
  bool real[kQueries];
  GPU_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    int query = warp * kQueries + i;
    real[i] = query < n_rows * n_heads;
    if (!real[i]) query = 0;
    position[i] = first_position + query / n_heads;
    query_head[i] = kv_head * group + first_head + query % n_heads;
    query_row[i] = place.slice.row_begin + first_row + query / n_heads;
  }
  for (int d = lane; d < dim; d += 32) {
    float q[kQueries];
    GPU_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      q[i] = args.q[static_cast<long long>(query_row[i]) * args.q_stride + query_head[i] * dim + d] * args.scale;
    }
    scaled_q[d] = {q[0], q[1], q[2], q[3]};  // read after the barriers of the first block
  }

  float max[kQueries], sum[kQueries], values[kQueries][2 * kChunks];
  GPU_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    max[i] = kNoMaximum;
    sum[i] = 0.0f;
    GPU_UNROLL
    for (int j = 0; j < 2 * kChunks; ++j) values[i][j] = 0.0f;
  }
  int block_begin = args.window > 0 ? MaxInt(first_position - args.window + 1, 0) / kKeys : 0;
  int block_end = (first_position + n_rows - 1) / kKeys + 1;
  if (split.contributions != nullptr) {
    const int mine = split.begin + static_cast<int>(blockIdx.z);
    block_begin = MaxInt(block_begin, mine);
    block_end = MinInt(block_end, mine + 1);
  }
  for (int block = block_begin; block < block_end; ++block) {
    Visible visible[kQueries];
    int any_begin = kKeys, any_end = 0, all_begin = 0, all_end = kKeys;
    GPU_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      visible[i] = VisibleKeys(position[i], args.window, block);
      any_begin = MinInt(any_begin, visible[i].begin);
      any_end = MaxInt(any_end, visible[i].end);
      all_begin = MaxInt(all_begin, visible[i].begin);
      all_end = MinInt(all_end, visible[i].end);
    }
    // Scores: dims ascending.
    float scores[kQueries][2] = {};
    const uint8_t* keys = HeadOf(cache, true, pages[block], kv_head);
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk * kDims >= dim) break;
      __syncthreads();  // the stage is free
      Stage(cache, true, keys, chunk, stage);
      __syncthreads();
      const int n = MinInt(kDims, dim - chunk * kDims);
      for (int d = 0; d < n; ++d) {
        const float4 q4 = scaled_q[chunk * kDims + d];
        const float q[kQueries] = {q4.x, q4.y, q4.z, q4.w};
        const float low = stage[d * kKeys + lane], high = stage[d * kKeys + lane + 32];
        GPU_UNROLL
        for (int i = 0; i < kQueries; ++i) {
          scores[i][0] = fmaf(q[i], low, scores[i][0]);
          scores[i][1] = fmaf(q[i], high, scores[i][1]);
        }
      }
    }
    float block_max[kQueries], block_sum[kQueries];
    GPU_UNROLL
    for (int i = 0; i < kQueries; ++i) Softmax(visible[i], lane, scores[i], &block_max[i], &block_sum[i]);
    // Those of the block before are done with, and these are read after the barriers that follow.
    weights[lane] = {scores[0][0], scores[1][0], scores[2][0], scores[3][0]};
    weights[lane + 32] = {scores[0][1], scores[1][1], scores[2][1], scores[3][1]};
    float old_factor[kQueries], block_factor[kQueries];
    bool sees[kQueries];
    GPU_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      sees[i] = visible[i].begin < visible[i].end;
      if (sees[i]) Merge(block_max[i], block_sum[i], &max[i], &sum[i], &old_factor[i], &block_factor[i]);
    }
    // Values: keys ascending, exactly those that a query sees.
    const uint8_t* rows = HeadOf(cache, false, pages[block], kv_head);
    GPU_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk * kDims < dim) {
        __syncthreads();
        Stage(cache, false, rows, chunk, stage);
        __syncthreads();
        float of_block[kQueries][2] = {};
        for (int key = any_begin; key < any_end; ++key) {
          const float4 w4 = weights[key];
          const float w[kQueries] = {w4.x, w4.y, w4.z, w4.w};
          const float low = stage[key * kDims + lane], high = stage[key * kDims + lane + 32];
          const bool common = key >= all_begin && key < all_end;
          GPU_UNROLL
          for (int i = 0; i < kQueries; ++i) {
            if (common || (key >= visible[i].begin && key < visible[i].end)) {
              of_block[i][0] = fmaf(w[i], low, of_block[i][0]);
              of_block[i][1] = fmaf(w[i], high, of_block[i][1]);
            }
          }
        }
        GPU_UNROLL
        for (int i = 0; i < kQueries; ++i) {
          GPU_UNROLL
          for (int j = 0; j < 2; ++j) {
            float& value = values[i][2 * chunk + j];
            if (split.contributions != nullptr) {
              value = of_block[i][j];
            } else if (sees[i]) {
              value = fmaf(of_block[i][j], block_factor[i], value * old_factor[i]);
            }
          }
        }
      }
    }
    if (split.contributions != nullptr) {
      GPU_UNROLL
      for (int i = 0; i < kQueries; ++i) {
        max[i] = block_max[i];
        sum[i] = block_sum[i];
      }
    }
  }
  if (split.contributions != nullptr && block_begin >= block_end) return;
  GPU_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    if (!real[i]) continue;
    float* out = args.out + static_cast<long long>(query_row[i]) * args.out_stride + query_head[i] * dim;
    float factor = 1.0f, inverse = 1.0f;
    if (split.contributions != nullptr) {
      const long long query = static_cast<long long>(query_row[i]) * args.heads + query_head[i];
      out = split.contributions + (query * split.count + blockIdx.z) * split.stride;
      if (lane == 0) {
        out[0] = max[i];
        out[1] = sum[i];
      }
      out += 2;
    } else {
      Finish(args.sinks, query_head[i], max[i], sum[i], &factor, &inverse);
    }
    GPU_UNROLL
    for (int j = 0; j < 2 * kChunks; ++j) {
      const int d = j / 2 * kDims + j % 2 * 32 + lane;
      if (d < dim) out[d] = split.contributions != nullptr ? values[i][j] : values[i][j] * factor * inverse;
    }
  }
}

// A block is a query; each thread has some of its dims and goes through the wave's blocks in order.
__global__ void __launch_bounds__(64) MergeKernel(AttentionArgs args, SplitPlan split) {
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int dim = args.cache.head_dim;
  const RowPlace place = FindRow(args.slices, row);
  const long long query = static_cast<long long>(row) * args.heads + head;
  float* const sums = split.sums + query * split.stride;
  const float* const contributions = split.contributions + query * split.count * split.stride;
  float* const out = args.out + static_cast<long long>(row) * args.out_stride + head * dim;
  const float max_before = split.first ? kNoMaximum : sums[0], sum_before = split.first ? 0.0f : sums[1];
  __syncthreads();  // all have read them before the first thread writes
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += static_cast<int>(blockDim.x)) {
    float max = max_before, sum = sum_before, value = split.first ? 0.0f : sums[2 + d];
    for (int i = 0; i < split.count; ++i) {
      const Visible visible = VisibleKeys(place.position, args.window, split.begin + i);
      if (visible.begin >= visible.end) continue;
      const float* of_block = contributions + static_cast<long long>(i) * split.stride;
      float old_factor, block_factor;
      Merge(of_block[0], of_block[1], &max, &sum, &old_factor, &block_factor);
      value = fmaf(of_block[2 + d], block_factor, value * old_factor);
    }
    if (split.last) {
      float factor, inverse;
      Finish(args.sinks, head, max, sum, &factor, &inverse);
      out[d] = value * factor * inverse;
    } else {
      sums[2 + d] = value;
      if (d == 0) {
        sums[0] = max;
        sums[1] = sum;
      }
    }
  }
}

template <int kWarps, int kChunks>
void LaunchTiles(const AttentionArgs& args, const SplitPlan& split, Queue* queue) {
  const int group = args.heads / args.cache.kv_heads;
  Tiling tiling;
  tiling.heads_per_tile = group < kWarps * kQueries ? group : kWarps * kQueries;
  tiling.head_tiles = (group + tiling.heads_per_tile - 1) / tiling.heads_per_tile;
  tiling.rows_per_tile = kWarps * kQueries / tiling.heads_per_tile;
  const int tiles = args.slices.n_rows / tiling.rows_per_tile + args.slices.n_slices;
  const Grid grid = {static_cast<unsigned>(tiles), static_cast<unsigned>(args.cache.kv_heads * tiling.head_tiles),
                     split.contributions != nullptr ? static_cast<unsigned>(split.count) : 1};
  const size_t shared = sizeof(float) * (kDims * kKeys + kQueries * kWarps * (kKeys + kChunks * kDims));
  Launch("Attention", AttentionKernel<kWarps, kChunks>, grid, kWarps * 32, shared, queue, args, tiling, split);
}

template <int kWarps>
void LaunchDims(const AttentionArgs& args, const SplitPlan& split, Queue* queue) {
  const int dim = args.cache.head_dim;
  if (dim <= 64) return LaunchTiles<kWarps, 1>(args, split, queue);
  if (dim <= 128) return LaunchTiles<kWarps, 2>(args, split, queue);
  if (dim <= 256) return LaunchTiles<kWarps, 4>(args, split, queue);
  LaunchTiles<kWarps, 8>(args, split, queue);
}

constexpr int kManyWarps = 8;
constexpr int kFewWarps = 2;
constexpr int kSplitFromBlocks = 4;  // shorter contexts are not worth a second kernel

// How a step is cut.
struct Cut {
  bool few = false;     // decode: a row or so a sequence, so that a tile of many queries would be mostly empty
  int blocks = 0;       // of keys, of the longest sequence
  size_t of_state = 0;  // floats
  bool split = false;
};

Cut CutOf(const AttentionArgs& args, int multiprocessors) {
  const SliceTable& slices = args.slices;
  const int group = args.heads / args.cache.kv_heads;
  Cut cut;
  cut.few = slices.n_rows * group <= kFewWarps * kQueries * slices.n_slices;
  cut.blocks = (slices.max_positions + kKeys - 1) / kKeys;
  cut.of_state = static_cast<size_t>(slices.n_rows) * static_cast<size_t>(args.heads) *
                 static_cast<size_t>(args.cache.head_dim + 2);
  const int queries = kQueries * (cut.few ? kFewWarps : kManyWarps);
  const int tiles = args.cache.kv_heads * (slices.n_rows * group / queries + 1);
  cut.split = cut.blocks >= kSplitFromBlocks && tiles < 2 * multiprocessors;
  return cut;
}

}  // namespace

size_t AttentionScratchFloats(const AttentionArgs& args, int multiprocessors) {
  const Cut cut = CutOf(args, multiprocessors);
  return cut.split ? cut.of_state * static_cast<size_t>(cut.blocks + 1) : 0;
}

void LaunchAttention(const AttentionArgs& args, const AttentionScratch& scratch, Queue* queue) {
  const Cut cut = CutOf(args, scratch.multiprocessors);
  const size_t states = scratch.floats / cut.of_state;
  if (!cut.split || states < 2) {
    return cut.few ? LaunchDims<kFewWarps>(args, {}, queue) : LaunchDims<kManyWarps>(args, {}, queue);
  }
  SplitPlan split;
  split.sums = scratch.memory;
  split.contributions = scratch.memory + cut.of_state;
  split.stride = args.cache.head_dim + 2;
  const int wave = static_cast<int>(states - 1 < static_cast<size_t>(cut.blocks) ? states - 1 : cut.blocks);
  for (split.begin = 0; split.begin < cut.blocks; split.begin += wave) {
    split.count = cut.blocks - split.begin < wave ? cut.blocks - split.begin : wave;
    split.first = split.begin == 0;
    split.last = split.begin + split.count == cut.blocks;
    cut.few ? LaunchDims<kFewWarps>(args, split, queue) : LaunchDims<kManyWarps>(args, split, queue);
    Launch("Attention, merge", MergeKernel,
           {static_cast<unsigned>(args.slices.n_rows), static_cast<unsigned>(args.heads)}, 64, 0, queue, args, split);
  }
}

}  // namespace layover::gpu
