// Cuts the rows of a step where 16 slots of a page end.
#include "kernels/cpu/store_kv.h"

#include <algorithm>

#include "kernels/cpu/kv_codec.h"
#include "kernels/cpu/kv_pages.h"

namespace layover {
namespace {

constexpr int kPieceRows = 16;  // so many neighbouring slots are written as whole vectors

}  // namespace

void CpuStoreKv::Run(const StoreKvArgs& args, ThreadPool* pool) {
  pieces_.clear();
  for (int s = 0; s < args.slices.n_slices; ++s) {
    const SequenceSlice& slice = args.slices.slices[s];
    for (int done = 0; done < slice.row_count;) {
      const int position = slice.position_begin + done;
      Piece piece;
      piece.row = slice.row_begin + done;
      piece.slot = position % kPageTokens;
      piece.count = std::min(slice.row_count - done, kPieceRows - piece.slot % kPieceRows);
      piece.page = args.slices.page_tables[slice.page_table_begin + position / kPageTokens];
      pieces_.push_back(piece);
      done += piece.count;
    }
  }
  const KvLayer& cache = args.cache;
  const int row_values = cache.kv_heads * cache.head_dim;
  const size_t row_bytes = KvRowBytes(cache.type, cache.kv_heads, cache.head_dim);
  const EncodeKvFunction encode = CpuEncodeKv(isa_, cache.type);
  pool->ForRanges(static_cast<int>(pieces_.size()), 2, [&](int begin, int end, int thread) {
    std::vector<uint8_t>& scratch = scratch_[thread];
    if (scratch.size() < 2 * kPieceRows * row_bytes) scratch.resize(2 * kPieceRows * row_bytes);
    uint8_t* const k_rows = scratch.data();
    uint8_t* const v_rows = k_rows + kPieceRows * row_bytes;
    for (int i = begin; i < end; ++i) {
      const Piece& piece = pieces_[i];
      for (int r = 0; r < piece.count; ++r) {
        const ptrdiff_t at = static_cast<ptrdiff_t>(piece.row + r) * args.stride;
        encode(args.k + at, row_values, k_rows + r * row_bytes);
        encode(args.v + at, row_values, v_rows + r * row_bytes);
      }
      CpuWriteKvRows(cache, piece.page, piece.slot, piece.slot + piece.count, k_rows, v_rows);
    }
  });
}

}  // namespace layover
