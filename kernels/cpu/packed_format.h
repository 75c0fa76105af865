// Per weight type: how a tile is packed, and how one of its rows is read back, plainly. The scalar product and
// EmbedRows read through this; the SIMD products know the layout themselves (packed_layout.h).
#ifndef LAYOVER_KERNELS_CPU_PACKED_FORMAT_H_
#define LAYOVER_KERNELS_CPU_PACKED_FORMAT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/packed_layout.h"
#include "kernels/ops.h"

namespace layover {

// 32 weights of one row: value = scale[k / 16] * q[k] + minimum[k / 16], product and sum each rounded.
struct PlainBlock {
  int16_t q[32];
  float scale[2];
  float minimum[2];
};

struct PackedFormat {
  WeightType type;
  PackedKind kind;
  ActivationFormat activation;
  int group;  // columns under one scale: 16 or 32; 1 for float types
  bool has_minimum;
  int super_cols;       // cols is a multiple of this ...
  int super_bytes;      // ... and takes so many bytes of a tile
  const int8_t* table;  // 16 values, for kinds of a table, else null
  float step;           // of scales; 1 but for some IQ types
};

// Null if the CPU has no product for the type.
const PackedFormat* FindPackedFormat(WeightType type);

// Rounded up to 64, so that tiles begin at cache lines.
size_t TileBytes(const PackedFormat& format, int cols);

// rows: 16 rows in GGUF's layout, null for one beyond the weight's last. tile: TileBytes, zeroed.
void PackTile(const PackedFormat& format, const uint8_t* const* rows, int cols, uint8_t* tile);

// Row `lane` of a tile, columns [32 * block, 32 * block + 32). Integer types.
void ReadPackedBlock(const PackedFormat& format, const uint8_t* tile, int block, int lane, PlainBlock* out);
// Row `lane` of a tile, one column. Float types.
float ReadPackedFloat(const PackedFormat& format, const uint8_t* tile, int col, int lane);

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_PACKED_FORMAT_H_
