// Sorting choices, cutting experts into blocks of rows and columns, gathering a block's rows.
#include "kernels/cpu/moe_matmul.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/packed_weight.h"

namespace layover {
namespace {

constexpr int kPiecesPerThread = 4;  // so that threads which start late do not hold up the others

const CpuPackedWeight& WeightOf(const MoeMatMulArgs& args) {
  return static_cast<const CpuPackedWeight&>(*args.weight);
}

}  // namespace

CpuMoeMatMul::CpuMoeMatMul(CpuIsa isa, int threads) : isa_(isa), gathered_(threads) {}

// Within an expert, choices keep the order of rows.
void CpuMoeMatMul::SortByExpert(const MoeMatMulArgs& args) {
  const int experts = args.weight->experts;
  const int choices = args.n_rows * args.k;
  first_.assign(experts + 1, 0);
  for (int i = 0; i < choices; ++i) {
    LAYOVER_CHECK(args.chosen[i] >= 0 && args.chosen[i] < experts);
    ++first_[args.chosen[i] + 1];
  }
  for (int e = 0; e < experts; ++e) first_[e + 1] += first_[e];
  blocks_.clear();
  for (int e = 0; e < experts; ++e) {
    for (int begin = first_[e]; begin < first_[e + 1]; begin += kMatMulPieceRows) {
      blocks_.push_back({e, begin, std::min(kMatMulPieceRows, first_[e + 1] - begin)});
    }
  }
  by_expert_.resize(choices);
  for (int i = 0; i < choices; ++i) by_expert_[first_[args.chosen[i]]++] = i;
}

void CpuMoeMatMul::RunBlock(const MoeMatMulArgs& args, const Block& block, int column_begin, int column_end,
                            std::vector<uint8_t>* gathered) const {
  const CpuPackedWeight& weight = WeightOf(args);
  const size_t row_bytes = CpuActivationBytes(weight.activation, 1, weight.cols);
  const auto row_of = [&](int i) {
    const int choice = by_expert_[block.begin + i];
    const int row = args.x_per_choice ? choice : choice / args.k;
    return static_cast<const uint8_t*>(args.x) + row * row_bytes;
  };
  MatMulPiece piece;
  piece.weight = &weight;
  piece.expert = block.expert;
  piece.column_begin = column_begin;
  piece.column_end = column_end;
  piece.x = row_of(0);
  piece.n_rows = block.count;
  piece.out = args.out;
  piece.out_stride = weight.rows;
  piece.out_rows = by_expert_.data() + block.begin;
  if (args.bias != nullptr) piece.bias = args.bias + static_cast<ptrdiff_t>(block.expert) * weight.rows;
  if (block.count > 1) {
    gathered->resize(std::max(gathered->size(), block.count * row_bytes));
    for (int i = 0; i < block.count; ++i) std::memcpy(gathered->data() + i * row_bytes, row_of(i), row_bytes);
    piece.x = gathered->data();
  }
  CpuRunMatMulPiece(isa_, piece);
}

void CpuMoeMatMul::Run(const MoeMatMulArgs& args, ThreadPool* pool) {
  LAYOVER_CHECK(args.weight != nullptr && args.k > 0);
  if (args.n_rows <= 0) return;
  SortByExpert(args);
  // Whole experts while there are enough of them: then their rows are gathered once.
  const int columns = CpuMatMulColumns(WeightOf(args));
  const int blocks = static_cast<int>(blocks_.size());
  const int wanted = pool->threads() == 1 ? 1 : pool->threads() * kPiecesPerThread;
  const int cuts = std::min(columns, (wanted + blocks - 1) / blocks);
  pool->ForRanges(blocks * cuts, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      const int cut = i % cuts;
      RunBlock(args, blocks_[i / cuts], columns * cut / cuts, columns * (cut + 1) / cuts, &gathered_[thread]);
    }
  });
}

}  // namespace layover
