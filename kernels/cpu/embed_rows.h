// EmbedRows on the CPU: rows of a packed table as floats, the values of kernels/dequantize.h, times scale.
#ifndef LAYOVER_KERNELS_CPU_EMBED_ROWS_H_
#define LAYOVER_KERNELS_CPU_EMBED_ROWS_H_

#include "kernels/ops.h"

namespace layover {

// args.table is a CpuPackedWeight. Rows [row_begin, row_end) of args.n_rows; rows are independent.
void CpuEmbedRowsRange(const EmbedRowsArgs& args, int row_begin, int row_end);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_EMBED_ROWS_H_
