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
//   pairs   [2][64]: bits 2s and 2s + 1 of byte (t, o, j) belong to k = 16t + 4s + j.
//   bits    [64]:    bit s of byte (o, j) belongs to k = 4s + j.
//
// Every integer type is one of these kinds. A super-block is 8 blocks behind a header. Scales and minima of 16 rows are
// f16 but for MXFP4, whose are bfloat16; sc and m are bytes.
//
//   kind     block                                                    value
//   Q4_0     288 B: nibbles n; d                                      d * table[n]         also IQ4_NL, by its table
//   MXFP4    288 B: nibbles n; d                                      d * table[n]
//   Q4_1     320 B: nibbles q; d; m                                   d * q + m
//   Q5_0     352 B: nibbles, bits << 4 = q; d                         d * (q - 16)
//   Q5_1     384 B: nibbles, bits << 4 = q; d; m                      d * q + m
//   Q8_0     544 B: bytes q, with 128 added; d                        d * (q - 128)
//   Q2_K     header d, dmin; 160 B: pairs q; sc | m << 4 [2]          (d * sc) * q - dmin * m
//   Table3   header d; 224 B: pairs, bits << 2 = n; int8 sc[2]        (d * step * sc) * table[n]
//   Q4_K     header d, dmin; 288 B: nibbles q; sc; m                  (d * sc) * q - dmin * m
//   Q5_K     header d, dmin; 352 B: nibbles, bits << 4 = q; sc; m     (d * sc) * q - dmin * m
//   Q6_K     header d; 416 B: nibbles, pairs << 4 = q; int8 sc[2]     (d * sc) * (q - 32)
//   Table4   header d; 272 B: nibbles n; int8 sc                      (d * step * sc) * table[n]
//   F32, F16, BF16: [cols][16] values
//
// Q3_K, IQ1 and IQ2 are Table3, whose values are at most eight small integers: IQ2's codebook points and their signs
// are six of them, IQ1's with their shift of 1/8, times 8, as well. IQ3 and IQ4_XS are Table4, with sixteen.
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

enum class PackedKind : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kMxfp4,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kTable3,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kTable4,
};
inline constexpr int kPackedKinds = 15;

// Offsets within a block; kHeaderMinima: within the header. kGroup: columns under one scale.
struct Q4_0Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kScales = 256, kBlockBytes = 288;
};
struct Q4_1Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kScales = 256, kMinima = 288, kBlockBytes = 320;
};
struct Q5_0Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kBits = 256, kScales = 320, kBlockBytes = 352;
};
struct Q5_1Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kBits = 256, kScales = 320, kMinima = 352, kBlockBytes = 384;
};
struct Q8_0Layout {
  static constexpr int kHeaderBytes = 0, kBlocksPerSuper = 1, kGroup = 32;
  static constexpr int kScales = 512, kBlockBytes = 544;
};
struct Q2_KLayout {
  static constexpr int kHeaderBytes = 64, kHeaderMinima = 32, kBlocksPerSuper = 8, kGroup = 16;
  static constexpr int kPairs = 0, kScales = 128, kBlockBytes = 160;
};
struct Table3Layout {
  static constexpr int kHeaderBytes = 32, kBlocksPerSuper = 8, kGroup = 16;
  static constexpr int kPairs = 0, kBits = 128, kScales = 192, kBlockBytes = 224;
};
struct Q4_KLayout {
  static constexpr int kHeaderBytes = 64, kHeaderMinima = 32, kBlocksPerSuper = 8, kGroup = 32;
  static constexpr int kScales = 256, kMinima = 272, kBlockBytes = 288;
};
struct Q5_KLayout {
  static constexpr int kHeaderBytes = 64, kHeaderMinima = 32, kBlocksPerSuper = 8, kGroup = 32;
  static constexpr int kBits = 256, kScales = 320, kMinima = 336, kBlockBytes = 352;
};
struct Q6_KLayout {
  static constexpr int kHeaderBytes = 32, kBlocksPerSuper = 8, kGroup = 16;
  static constexpr int kPairs = 256, kScales = 384, kBlockBytes = 416;
};
struct Table4Layout {
  static constexpr int kHeaderBytes = 32, kBlocksPerSuper = 8, kGroup = 32;
  static constexpr int kScales = 256, kBlockBytes = 272;
};

template <class Layout>
inline constexpr int kSuperBytes = Layout::kHeaderBytes + Layout::kBlocksPerSuper* Layout::kBlockBytes;

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_PACKED_LAYOUT_H_
