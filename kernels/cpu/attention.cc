// Cutting attention into tiles and spreading them. Two ways, same bits:
//  - Many tiles (prefill, many sequences): a tile is a task and merges its blocks as it goes.
//  - Few tiles for the threads (one long sequence decodes): blocks are the tasks; each leaves its contribution in
//    memory and they are merged in ascending order afterwards, in waves that bound that memory.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/attention_kernel.h"

namespace layover {
namespace {

constexpr int kTileQueries = 192;  // converting a block once serves so many queries; their sums fit into L2
constexpr int kLeastTileRows = 8;
constexpr size_t kWaveFloats = size_t{1} << 21;  // contributions kept at once: 8 MiB
constexpr int kBlocksPerPiece = 4;               // of a shared tile, so that handing over is rare

const AttentionKernel& KernelFor(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return avx512::kAttention;
  if (isa == CpuIsa::kAvx2) return avx2::kAttention;
#endif
  return scalar::kAttention;
}

// A power of two of rows, up to a page: as many as fill a tile, but no more than leave each thread some tiles.
int TileRows(const AttentionArgs& args, int n_heads, int threads) {
  const int row_tiles = args.cache.kv_heads;  // tiles of a row, about
  int rows = kPageTokens;
  while (rows > 1 && rows * n_heads > kTileQueries) rows /= 2;
  if (threads == 1) return rows;
  while (rows > kLeastTileRows && args.slices.n_rows / rows * row_tiles < 4 * threads) rows /= 2;
  return rows;
}

// Floats from a cache line on.
class AlignedFloats {
 public:
  void Reserve(size_t floats) {
    if (memory_.size() < floats + 16) memory_.resize(floats + 16);
  }
  float* data() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64 / sizeof(float);
  }

 private:
  std::vector<float> memory_;
};

}  // namespace

struct CpuAttention::State {
  State(CpuIsa isa, int threads) : kernel(KernelFor(isa)), scratch(threads) {}

  const AttentionKernel& kernel;
  std::vector<AttentionTile> tiles;
  std::vector<AlignedFloats> scratch;  // per thread
  AlignedFloats shared;                // the second way: per tile scaled q and sums, then contributions

  void CutTiles(const AttentionArgs& args);
  void RunTiles(const AttentionArgs& args, ThreadPool* pool);
  void RunBlocks(const AttentionArgs& args, ThreadPool* pool);
  AttentionScratch ScratchOf(int thread, int stride, size_t more_floats, float** more);
};

CpuAttention::CpuAttention(CpuIsa isa, int threads) : state_(std::make_unique<State>(isa, threads)) {}
CpuAttention::~CpuAttention() = default;

void CpuAttention::Run(const AttentionArgs& args, ThreadPool* pool) {
  state_->CutTiles(args);
  const int n_tiles = static_cast<int>(state_->tiles.size());
  int most_blocks = 0;
  for (const AttentionTile& tile : state_->tiles)
    most_blocks = std::max(most_blocks, tile.block_end - tile.block_begin);
  const bool share_blocks = pool->threads() > 1 && n_tiles < 4 * pool->threads() && most_blocks > kBlocksPerPiece;
  share_blocks ? state_->RunBlocks(args, pool) : state_->RunTiles(args, pool);
}

// Tiles end where the position is a multiple of their rows, so that few of them straddle two blocks.
void CpuAttention::State::CutTiles(const AttentionArgs& args) {
  tiles.clear();
  const int group = args.heads / args.cache.kv_heads;
  const int n_heads = std::min(group, kTileQueries);
  const int rows = TileRows(args, n_heads, static_cast<int>(scratch.size()));
  for (int s = 0; s < args.slices.n_slices; ++s) {
    const SequenceSlice& slice = args.slices.slices[s];
    const int end = slice.position_begin + slice.row_count;
    for (int position = slice.position_begin; position < end;) {
      const int next = std::min(end, (position / rows + 1) * rows);
      AttentionTile tile;
      tile.args = &args;
      tile.pages = args.slices.page_tables + slice.page_table_begin;
      tile.row_begin = slice.row_begin + position - slice.position_begin;
      tile.n_rows = next - position;
      tile.position = position;
      tile.block_begin = args.window > 0 ? std::max(0, position - args.window + 1) / kPageTokens : 0;
      tile.block_end = (next - 1) / kPageTokens + 1;
      for (int kv_head = 0; kv_head < args.cache.kv_heads; ++kv_head) {
        for (int first = 0; first < group; first += n_heads) {
          tile.kv_head = kv_head;
          tile.head_begin = kv_head * group + first;
          tile.n_heads = std::min(n_heads, group - first);
          tiles.push_back(tile);
        }
      }
      position = next;
    }
  }
}

AttentionScratch CpuAttention::State::ScratchOf(int thread, int stride, size_t more_floats, float** more) {
  const size_t matrix = static_cast<size_t>(stride) * kPageTokens;
  const size_t block = kAttentionGroup * kPageTokens + AttentionSumsFloats(kAttentionGroup, stride);
  AlignedFloats& memory = scratch[thread];
  memory.Reserve(2 * matrix + block + more_floats);
  float* const floats = memory.data();
  *more = floats + 2 * matrix + block;
  return {floats, floats + matrix, floats + 2 * matrix};
}

void CpuAttention::State::RunTiles(const AttentionArgs& args, ThreadPool* pool) {
  const int stride = AttentionStride(args.cache.head_dim);
  pool->ForRanges(static_cast<int>(tiles.size()), 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      // Late tiles of a chunk have the most blocks; they go first, so that the threads end together.
      const AttentionTile& tile = tiles[tiles.size() - 1 - i];
      const size_t q_floats = static_cast<size_t>(tile.queries()) * stride;
      float* more;
      const AttentionScratch mine =
          ScratchOf(thread, stride, q_floats + AttentionSumsFloats(tile.queries(), stride), &more);
      const AttentionSums sums = AttentionSumsAt(more + q_floats, tile.queries(), stride);
      kernel.prepare(tile, more, sums);
      kernel.attend(tile, more, mine, sums);
      kernel.finish(tile, sums);
    }
  });
}

void CpuAttention::State::RunBlocks(const AttentionArgs& args, ThreadPool* pool) {
  const int stride = AttentionStride(args.cache.head_dim);
  const int n_tiles = static_cast<int>(tiles.size());
  size_t most_queries = 0;
  int most_blocks = 0;
  for (const AttentionTile& tile : tiles) {
    most_queries = std::max(most_queries, static_cast<size_t>(tile.queries()));
    most_blocks = std::max(most_blocks, tile.block_end - tile.block_begin);
  }
  const size_t q_floats = most_queries * stride;
  const size_t sums_floats = AttentionSumsFloats(static_cast<int>(most_queries), stride);
  const int wave_fits = static_cast<int>(std::min<size_t>(kWaveFloats / (n_tiles * sums_floats), most_blocks));
  const int pieces = std::max(1, (wave_fits + kBlocksPerPiece - 1) / kBlocksPerPiece);  // of a tile, in a wave
  const int wave_blocks = pieces * kBlocksPerPiece;
  shared.Reserve(n_tiles * (q_floats + sums_floats) + static_cast<size_t>(n_tiles) * wave_blocks * sums_floats);
  float* const tile_memory = shared.data();
  float* const contributions = tile_memory + n_tiles * (q_floats + sums_floats);
  const auto q_of = [&](int tile) { return tile_memory + tile * (q_floats + sums_floats); };
  const auto sums_of = [&](int tile) { return AttentionSumsAt(q_of(tile) + q_floats, tiles[tile].queries(), stride); };
  const auto contribution_of = [&](int tile, int block_in_wave) {
    const size_t index = static_cast<size_t>(tile) * wave_blocks + block_in_wave;
    return AttentionSumsAt(contributions + index * sums_floats, tiles[tile].queries(), stride);
  };

  for (int t = 0; t < n_tiles; ++t) kernel.prepare(tiles[t], q_of(t), sums_of(t));
  for (int wave = 0; wave < most_blocks; wave += wave_blocks) {
    pool->ForRanges(n_tiles * pieces, 1, [&](int begin, int end, int thread) {
      float* none;
      const AttentionScratch mine = ScratchOf(thread, stride, 0, &none);
      for (int i = begin; i < end; ++i) {
        const int t = i / pieces;
        const int first = i % pieces * kBlocksPerPiece;
        for (int b = first; b < first + kBlocksPerPiece; ++b) {
          const int block = tiles[t].block_begin + wave + b;
          if (block < tiles[t].block_end) kernel.contribute(tiles[t], block, q_of(t), mine, contribution_of(t, b));
        }
      }
    });
    pool->ForRanges(n_tiles, 1, [&](int begin, int end, int) {
      for (int t = begin; t < end; ++t) {
        for (int b = 0; b < wave_blocks; ++b) {
          const int block = tiles[t].block_begin + wave + b;
          if (block < tiles[t].block_end) kernel.merge(tiles[t], block, contribution_of(t, b), sums_of(t));
        }
      }
    });
  }
  for (int t = 0; t < n_tiles; ++t) kernel.finish(tiles[t], sums_of(t));
}

}  // namespace layover
