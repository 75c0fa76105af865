// The packed weight layout and the prepared activation layout, byte by byte. Plain constants and structs only, because
// the per-ISA files include it: code compiled for an instruction set must not share an inline function with the rest of
// the program (the linker may keep either copy).
//
// A tile is 16 output rows over all cols, a block 32 columns of a tile; k counts the block's columns, o the tile's
// rows. Blocks of a tile stand back to back in ascending k, so a product of one row streams through memory once. Rows
// beyond the weight's last are zero weights with zero scales. Multi-byte fields are little-endian.
//
//   "quads": 64 bytes, byte 4 * o + j, for four columns k = 4i + j of all 16 rows; quad i of a block.
//   nibbles [4][64]: byte (i, o, j) holds k = 4i + j in its low and k = 16 + 4i + j in its high half.
//   bytes   [8][64]: byte (i, o, j) holds k = 4i + j.
//
//   Q4_1  320 B: nibbles q[256]; f16 d[16]; f16 m[16]                      value = d * q + m
//   Q4_0  288 B: nibbles q[256]; f16 d[16]                                 value = d * (q - 8)
//   Q8_0  544 B: bytes q[512], with 128 added; f16 d[16]                   value = d * (q - 128)
//   Q6_K: super-blocks of 8 blocks, 3360 B: f16 d[16], then 8 times 416 B: nibbles low[256]; high[2][64];
//         int8 sc[2][16], one row per 16 columns                           value = (d * sc) * (q - 32)
//         high (t, o, j): bits 2s and 2s + 1 are bits 4 and 5 of q at k = 16t + 4s + j
//   F32, F16, BF16: [cols][16] values
#ifndef LAYOVER_KERNELS_CPU_PACKED_LAYOUT_H_
#define LAYOVER_KERNELS_CPU_PACKED_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace layover {

inline constexpr int kTileRows = 16;
inline constexpr int kBlockCols = 32;
inline constexpr int kQuadBytes = 4 * kTileRows;

// What goes with 32 prepared activations (activation.h). The sums are there for weights stored with an offset, whose
// dot is sum((q + 128) * a) - 128 * sum(a), and for weights with a minimum.
struct A16Block {
  float scale;
  float scaled_sum;         // float(sum a) * scale, rounded once
  int32_t sum_x128;         // 128 * sum a
  int32_t first_half_x128;  // 128 * sum of the first 16
};
inline constexpr int kA16ValueBytes = 2 * kBlockCols;  // high[32], low[32]
inline constexpr int kA16BlockBytes = kA16ValueBytes + sizeof(A16Block);
static_assert(sizeof(A16Block) == 16);

// Offsets within a block. kGroup: columns under one scale.
struct Q4_1Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kScales = 256, kMinima = 288, kBlockBytes = 320;
};
struct Q4_0Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kScales = 256, kBlockBytes = 288;
};
struct Q8_0Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kScales = 512, kBlockBytes = 544;
};
struct Q6_KLayout {
  static constexpr int kHeaderBytes = 32, kBlocksPerSuper = 8, kGroup = 16;
  static constexpr int kHigh = 256, kScales = 384, kBlockBytes = 416;
};

template <class Layout>
inline constexpr int kSuperBytes = Layout::kHeaderBytes + Layout::kBlocksPerSuper* Layout::kBlockBytes;

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_PACKED_LAYOUT_H_
