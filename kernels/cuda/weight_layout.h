// Packed weights on the card, byte by byte. The order is that of the fragments of mma.sync, so that a warp's product
// reads each weight once, straight from memory into the registers that the tensor cores take.
//
// Integer types. A tile is 8 outputs, a chunk 128 columns (4 blocks of 32) of a tile; a tile's chunks stand back to
// back, then the next tile's. Lane 4 g + t of a warp holds, of output g, the columns 4 t + j and 16 + 4 t + j of each
// block. Columns beyond the last and outputs beyond the last are zero.
//   "words"   [32 lanes][4 blocks] uint32: for nibbles, byte j holds column 4 t + j low and 16 + 4 t + j high
//   "halves"  [4 t][4 blocks][2] f16: of outputs 2 t and 2 t + 1 (what a lane's sums are of)
//   Q4_0  576 B: words q; halves d                                     value = d * (q - 8)
//   Q4_1  640 B: words q; halves d; halves m                           value = d * q + m
//   Q8_0 1088 B: words of columns 4 t + j; words of 16 + 4 t + j; halves d
//   Q6_K  848 B: words of the low nibbles; high [32 lanes][2 pairs of blocks] uint32, byte j: bits 0-1 and 2-3 are bits
//         4 and 5 of columns 4 t + j and 16 + 4 t + j in the even block, bits 4-7 in the odd; int8 sc [4 t][4 blocks][2
//         groups of 16][2 outputs]; f16 d [4 t][2]                     value = (d * sc) * (q - 32)
//   "bits"    [32 lanes] uint32: byte j: bits 2 b and 2 b + 1 are bit 4 of columns 4 t + j and 16 + 4 t + j of block b
//   Q5_0  704 B: words of the low nibbles; bits; halves d              value = d * (q - 16)
//   Q5_1  768 B: words of the low nibbles; bits; halves d; halves m    value = d * q + m
//   Q4_K  608 B: words q; "subs" [4 t][4 blocks] sc of outputs 2 t and 2 t + 1, then m of both, a byte each; "tops" [4
//   t]
//         f16 d of both, f16 dmin of both                              value = (d * sc) * q - (dmin * m)
//   Q5_K  736 B: words of the low nibbles; bits; subs; tops            as Q4_K
//
//   Q2_K  352 B: pairs [32 lanes][2 pairs of blocks] uint32, as Q6_K's high; sc | m << 4 [4 t][4 blocks][2 groups of
//         16][2 outputs], a byte each; tops                            value = (d * sc) * q - (dmin * m)
//   "slots"   of a lane and block, eight of a word's nibbles: slot j is column 4 t + j, slot 4 + j column 16 + 4 t + j
//   IQ4_NL 576 B: codes n [32 lanes][4 blocks] uint32 of slots; halves d                    value = d * table[n]
//   MXFP4 576 B: the same with bfloat16 d
//   Table4 560 B: codes n as in IQ4_NL; int8 sc [4 t][4 blocks][2 outputs]; f16 d [4 t][2]
//                                                                      value = (d * step * sc) * table[n]
//   Table3 464 B: low [32 lanes][2 pairs of blocks] uint32 of slots: bits 0-1 are bits 0 and 1 of n in the even block,
//         bits 2-3 in the odd; high [32 lanes] uint32 of slots: bit b is bit 2 of n in block b; int8 sc and f16 d as
//         Q6_K's                                                       value = (d * step * sc) * table[n]
//
// IQ4_XS, IQ3_S and IQ3_XXS are Table4; Q3_K, IQ2 and IQ1 are Table3 (kernels/cpu/packed_layout.h says why).
//
// Float types: a tile is 32 outputs, a unit 16 bytes of columns of one output: [tile][unit][32 outputs] 16 bytes.
#ifndef LAYOVER_KERNELS_CUDA_WEIGHT_LAYOUT_H_
#define LAYOVER_KERNELS_CUDA_WEIGHT_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace layover::gpu {

inline constexpr int kTileOutputs = 8;
inline constexpr int kChunkCols = 128;
inline constexpr int kChunkBlocks = 4;
inline constexpr int kWordsBytes = 512;  // 32 lanes, 4 blocks
inline constexpr int kHalvesBytes = 64;  // 4 t, 4 blocks, 2 outputs

inline constexpr int kQ4_0ChunkBytes = kWordsBytes + kHalvesBytes;
inline constexpr int kQ4_1ChunkBytes = kWordsBytes + 2 * kHalvesBytes;
inline constexpr int kQ8_0ChunkBytes = 2 * kWordsBytes + kHalvesBytes;
inline constexpr int kQ6_KHigh = kWordsBytes;
inline constexpr int kQ6_KScales = kQ6_KHigh + 256;
inline constexpr int kQ6_KD = kQ6_KScales + 64;
inline constexpr int kQ6_KChunkBytes = kQ6_KD + 16;

inline constexpr int kBitsBytes = 128;
inline constexpr int kSubsBytes = 64;
inline constexpr int kTopsBytes = 32;
inline constexpr int kQ5_0ChunkBytes = kWordsBytes + kBitsBytes + kHalvesBytes;
inline constexpr int kQ5_1ChunkBytes = kWordsBytes + kBitsBytes + 2 * kHalvesBytes;
inline constexpr int kQ4_KChunkBytes = kWordsBytes + kSubsBytes + kTopsBytes;
inline constexpr int kQ5_KChunkBytes = kWordsBytes + kBitsBytes + kSubsBytes + kTopsBytes;

inline constexpr int kPairsBytes = 256;
inline constexpr int kGroupScalesBytes = 64;  // a byte of 16 columns
inline constexpr int kBlockScalesBytes = 32;  // of 32
inline constexpr int kTopHalvesBytes = 16;
inline constexpr int kQ2_KChunkBytes = kPairsBytes + kGroupScalesBytes + kTopsBytes;
inline constexpr int kIQ4_NLChunkBytes = kWordsBytes + kHalvesBytes;
inline constexpr int kTable4ChunkBytes = kWordsBytes + kBlockScalesBytes + kTopHalvesBytes;
inline constexpr int kTable3ChunkBytes = kPairsBytes + kBitsBytes + kGroupScalesBytes + kTopHalvesBytes;

inline constexpr int kFloatTileOutputs = 32;

// The values of a type's codes, 16 of them or 8, four a word, and the factor of its scales (kernels/README.md). Types
// without a table have none.
struct CodeTable {
  uint32_t values[4] = {};
  float step = 1.0f;
};

// A weight as kernels are given it.
struct CardWeight {
  const void* data = nullptr;  // packed
  CodeTable table;
};

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_WEIGHT_LAYOUT_H_
