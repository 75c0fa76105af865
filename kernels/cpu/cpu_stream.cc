// Arguments are checked, then work is cut into ranges that are worth a thread's while.
#include "kernels/cpu/cpu_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/embed_rows.h"
#include "kernels/cpu/kv_pages.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/top_k.h"

namespace layover {
namespace {

constexpr int kWorthHandingOver = 8000;  // nanoseconds of work
constexpr int kPiecesPerThread = 4;      // so that threads which start late or run slowly do not hold up the others

class DoneEvent : public Event {
 public:
  bool Done() const override { return true; }
};

void CheckKvLayer(const KvLayer& cache) {
  LAYOVER_CHECK(cache.k_pool != nullptr && cache.v_pool != nullptr && cache.kv_heads > 0);
  LAYOVER_CHECK(CpuSupportsKv(cache.type, cache.head_dim));
}

// Slices in row order without gaps.
void CheckSlices(const SliceTable& table) {
  int row = 0;
  for (int s = 0; s < table.n_slices; ++s) {
    const SequenceSlice& slice = table.slices[s];
    LAYOVER_CHECK(slice.row_begin == row && slice.row_count > 0 && slice.position_begin >= 0);
    row += slice.row_count;
  }
  LAYOVER_CHECK(row == table.n_rows);
}

// The pages that rows with a window of `window` look at (0: all before them) are in the pool.
void CheckPages(const SliceTable& table, int window, int n_pages) {
  for (int s = 0; s < table.n_slices; ++s) {
    const SequenceSlice& slice = table.slices[s];
    const int first = window > 0 ? std::max(0, slice.position_begin - window + 1) / kPageTokens : 0;
    const int last = (slice.position_begin + slice.row_count - 1) / kPageTokens;
    for (int i = first; i <= last; ++i) {
      const int32_t page = table.page_tables[slice.page_table_begin + i];
      LAYOVER_CHECK(page >= 0 && page < n_pages);
    }
  }
}

}  // namespace

CpuStream::CpuStream(CpuIsa isa, int threads, std::shared_ptr<Prefault> prefault)
    : isa_(isa),
      prefault_(std::move(prefault)),
      pool_(threads),
      store_kv_(isa, threads),
      attention_(isa, threads),
      recurrent_(isa, threads),
      moe_matmul_(isa, threads) {}

int CpuStream::RowGrain(int n_rows, int row_cost) const {
  const int enough = kWorthHandingOver / std::max(row_cost, 1) + 1;
  const int fair = (n_rows + pool_.threads() * kPiecesPerThread - 1) / (pool_.threads() * kPiecesPerThread);
  return std::max(enough, fair);
}

void CpuStream::EmbedRows(const EmbedRowsArgs& args) {
  LAYOVER_CHECK(args.table != nullptr);
  for (int row = 0; row < args.n_rows; ++row) LAYOVER_CHECK(args.ids[row] >= 0 && args.ids[row] < args.table->rows);
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.table->cols),
                  [&](int begin, int end, int) { CpuEmbedRowsRange(args, begin, end); });
}

void CpuStream::RmsNorm(const RmsNormArgs& args) {
  LAYOVER_CHECK(args.dim > 0 && args.x_stride >= args.dim && args.y_stride >= args.dim);
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.dim / 4),
                  [&](int begin, int end, int) { CpuRowOpsFor(isa_).rms_norm(args, begin, end); });
}

void CpuStream::PrepareActivation(const PrepareActivationArgs& args) {
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.dim / 2),
                  [&](int begin, int end, int) { CpuPrepareActivationRange(isa_, args, begin, end); });
}

void CpuStream::MatMul(const MatMulArgs& args) {
  if (args.n_rows <= 0) return;
  LAYOVER_CHECK(args.weight != nullptr && args.out_stride >= args.weight->rows);
  const int tasks = CpuMatMulTasks(args);
  const int grain = std::max(1, tasks / (pool_.threads() * kPiecesPerThread));
  pool_.ForRanges(tasks, grain, [&](int begin, int end, int) { CpuMatMulRange(isa_, args, begin, end); });
}

void CpuStream::RopeAngles(const RopeAnglesArgs& args) {
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.n_pairs * 25),
                  [&](int begin, int end, int) { CpuRowOpsFor(isa_).rope_angles(args, begin, end); });
}

void CpuStream::Rope(const RopeArgs& args) {
  LAYOVER_CHECK(2 * args.n_pairs <= args.head_dim && args.x_stride >= args.heads * args.head_dim);
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.heads * args.n_pairs / 4),
                  [&](int begin, int end, int) { CpuRowOpsFor(isa_).rope(args, begin, end); });
}

void CpuStream::StoreKv(const StoreKvArgs& args) {
  CheckKvLayer(args.cache);
  CheckSlices(args.slices);
  CheckPages(args.slices, 1, args.cache.n_pages);
  store_kv_.Run(args, &pool_);
}

void CpuStream::Attention(const AttentionArgs& args) {
  CheckKvLayer(args.cache);
  CheckSlices(args.slices);
  LAYOVER_CHECK(args.heads > 0 && args.heads % args.cache.kv_heads == 0 && args.window >= 0);
  CheckPages(args.slices, args.window, args.cache.n_pages);
  LAYOVER_CHECK(args.q_stride >= args.heads * args.cache.head_dim);
  LAYOVER_CHECK(args.out_stride >= args.heads * args.cache.head_dim);
  attention_.Run(args, &pool_);
}

void CpuStream::Gated(const GatedArgs& args) {
  LAYOVER_CHECK(args.gate_stride >= args.dim && args.out_stride >= args.dim);
  if (args.up != nullptr) {
    LAYOVER_CHECK(args.up_stride >= args.dim);
  } else {
    LAYOVER_CHECK(args.kind != GateKind::kClampedSwiglu);
  }
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.dim),
                  [&](int begin, int end, int) { CpuRowOpsFor(isa_).gated(args, begin, end); });
}

void CpuStream::GatherRows(const GatherRowsArgs& args) {
  const size_t dim = static_cast<size_t>(args.dim);
  for (int row = 0; row < args.n_rows; ++row) {
    std::memcpy(args.out + row * dim, args.x + args.rows[row] * dim, dim * sizeof(float));
  }
}

void CpuStream::TopK(const TopKArgs& args) {
  LAYOVER_CHECK(args.k > 0 && args.k <= limits::kMaxTopK && args.dim > 0 && args.x_stride >= args.dim);
  const auto k = static_cast<size_t>(args.k);
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.dim), [&](int begin, int end, int) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      const std::span<const float> x(args.x + row * static_cast<size_t>(args.x_stride), static_cast<size_t>(args.dim));
      const std::vector<uint64_t> keys = SelectTopK(x, k);
      for (size_t i = 0; i < k; ++i) {
        const bool there = i < keys.size();
        args.ids[row * k + i] = there ? IdOfTopKKey(keys[i]) : -1;
        args.values[row * k + i] = there ? LogitOfTopKKey(keys[i]) : -std::numeric_limits<float>::infinity();
      }
    }
  });
}

void CpuStream::CausalConv(const CausalConvArgs& args) {
  CheckSlices(args.slices);
  recurrent_.CausalConv(args, &pool_);
}

void CpuStream::GatedDeltaNet(const GatedDeltaNetArgs& args) {
  CheckSlices(args.slices);
  recurrent_.GatedDeltaNet(args, &pool_);
}

void CpuStream::MoeRoute(const MoeRouteArgs& args) {
  LAYOVER_CHECK(args.experts > 0 && args.experts <= limits::kMaxExperts && args.k > 0 && args.k <= args.experts);
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.experts * 2),
                  [&](int begin, int end, int) { CpuRowOpsFor(isa_).moe_route(args, begin, end); });
}

void CpuStream::MoeMatMul(const MoeMatMulArgs& args) {
  moe_matmul_.Run(args, &pool_);
}

void CpuStream::MoeCombine(const MoeCombineArgs& args) {
  LAYOVER_CHECK(args.k > 0 && args.dim > 0);
  pool_.ForRanges(args.n_rows, RowGrain(args.n_rows, args.dim * args.k / 4),
                  [&](int begin, int end, int) { CpuRowOpsFor(isa_).moe_combine(args, begin, end); });
}

void CpuStream::ReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows) {
  CheckKvLayer(cache);
  CpuReadKvRows(cache, page, row_begin, row_end, k_rows, v_rows);
}

void CpuStream::WriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows,
                            const void* v_rows) {
  CheckKvLayer(cache);
  CpuWriteKvRows(cache, page, row_begin, row_end, k_rows, v_rows);
}

void CpuStream::CopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows) {
  CheckKvLayer(cache);
  CpuCopyKvPage(cache, src_page, dst_page, rows);
}

void CpuStream::ZeroKvPage(const KvLayer& cache, int page) {
  CheckKvLayer(cache);
  CpuZeroKvPage(cache, page);
  if (prefault_ != nullptr) prefault_->PageTaken(cache, page);
}

void CpuStream::CopyToDevice(void* dst, const void* host, size_t bytes) {
  std::memcpy(dst, host, bytes);
}
void CpuStream::CopyToHost(void* host, const void* src, size_t bytes) {
  std::memcpy(host, src, bytes);
}
void CpuStream::Zero(void* dst, size_t bytes) {
  std::memset(dst, 0, bytes);
}

std::unique_ptr<Event> CpuStream::Record() {
  return std::make_unique<DoneEvent>();
}
absl::Status CpuStream::Synchronize() {
  return absl::OkStatus();
}

}  // namespace layover
