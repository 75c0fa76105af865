#include "kernels/cpu/embed_rows.h"

#include "common/check.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/packed_weight.h"

namespace layover {
namespace {

void ReadRow(const PackedFormat& format, const uint8_t* tile, int lane, int cols, float* out) {
  if (format.activation == ActivationFormat::kF32) {
    for (int k = 0; k < cols; ++k) out[k] = ReadPackedFloat(format, tile, k, lane);
    return;
  }
  for (int k = 0; k < cols; k += kBlockCols) {
    PlainBlock block;
    ReadPackedBlock(format, tile, k / kBlockCols, lane, &block);
    for (int i = 0; i < kBlockCols; ++i) {
      const float value = static_cast<float>(block.q[i]) * block.scale[i / 16];
      out[k + i] = format.has_minimum ? value + block.minimum[i / 16] : value;
    }
  }
}

}  // namespace

void CpuEmbedRowsRange(const EmbedRowsArgs& args, int row_begin, int row_end) {
  LAYOVER_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= args.n_rows);
  const auto& table = static_cast<const CpuPackedWeight&>(*args.table);
  LAYOVER_CHECK(table.experts == 1);
  const PackedFormat& format = *FindPackedFormat(table.type);
  for (int row = row_begin; row < row_end; ++row) {
    const int id = args.ids[row];
    LAYOVER_CHECK(0 <= id && id < table.rows);
    float* out = args.out + static_cast<size_t>(row) * table.cols;
    ReadRow(format, table.data() + id / kTileRows * table.tile_bytes(), id % kTileRows, table.cols, out);
    if (args.scale == 1.0f) continue;
    for (int k = 0; k < table.cols; ++k) out[k] *= args.scale;
  }
}

}  // namespace layover
