// Packing turns GGUF's row-major blocks into tiles; nothing is rounded, every bit of a block is kept. Packing and
// reading go by a table of the kinds' parts.
#include "kernels/cpu/packed_format.h"

#include <array>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/source_block.h"
#include "kernels/float16.h"

namespace layover {
namespace {

constexpr int kNone = -1;

// Where the parts of a block are, kNone for what a kind lacks; packed_layout.h has the meaning of each part.
struct Parts {
  PackedKind kind;
  int group, header_bytes, blocks_per_super, block_bytes;
  int nibbles, pairs, bits, bytes;
  int pairs_shift, bits_shift;  // where their bits stand in a code
  int offset;                   // what is taken off a code that is no index
  int scales, minima;
};

template <class L>
constexpr Parts PartsOf(PackedKind kind) {
  Parts p{
      kind,       L::kGroup, L::kHeaderBytes, L::kBlocksPerSuper, L::kBlockBytes, kNone, kNone, kNone, kNone, 0, 0, 0,
      L::kScales, kNone};
  if constexpr (requires { L::kPairs; }) p.pairs = L::kPairs;
  if constexpr (requires { L::kBits; }) p.bits = L::kBits;
  if constexpr (requires { L::kMinima; }) p.minima = L::kMinima;
  if (p.pairs != 0 && L::kScales >= 256) p.nibbles = 0;
  return p;
}

constexpr Parts Q5Parts(Parts p, int offset) {
  p.bits_shift = 4;
  p.offset = offset;
  return p;
}
constexpr Parts Table3Parts() {
  Parts p = PartsOf<Table3Layout>(PackedKind::kTable3);
  p.bits_shift = 2;
  return p;
}
constexpr Parts Q6_KParts() {
  Parts p = PartsOf<Q6_KLayout>(PackedKind::kQ6_K);
  p.pairs_shift = 4;
  p.offset = 32;
  return p;
}
constexpr Parts Q8_0Parts() {
  Parts p = PartsOf<Q8_0Layout>(PackedKind::kQ8_0);
  p.nibbles = kNone;
  p.bytes = 0;
  p.offset = 128;
  return p;
}

constexpr std::array kParts = {
    PartsOf<Q4_0Layout>(PackedKind::kQ4_0),
    PartsOf<Q4_0Layout>(PackedKind::kMxfp4),
    PartsOf<Q4_1Layout>(PackedKind::kQ4_1),
    Q5Parts(PartsOf<Q5_0Layout>(PackedKind::kQ5_0), 16),
    Q5Parts(PartsOf<Q5_1Layout>(PackedKind::kQ5_1), 0),
    Q8_0Parts(),
    PartsOf<Q2_KLayout>(PackedKind::kQ2_K),
    Table3Parts(),
    PartsOf<Q4_KLayout>(PackedKind::kQ4_K),
    Q5Parts(PartsOf<Q5_KLayout>(PackedKind::kQ5_K), 0),
    Q6_KParts(),
    PartsOf<Table4Layout>(PackedKind::kTable4),
};

constexpr int kFirstInteger = static_cast<int>(PackedKind::kQ4_0);
static_assert(kParts.size() == kPackedKinds - kFirstInteger);

constexpr const Parts& PartsOf(PackedKind kind) {
  return kParts[static_cast<size_t>(static_cast<int>(kind) - kFirstInteger)];
}
constexpr bool InOrder() {
  for (int i = 0; i < static_cast<int>(kParts.size()); ++i) {
    if (static_cast<int>(kParts[i].kind) != i + kFirstInteger) return false;
  }
  return true;
}
static_assert(InOrder());

bool IsFloat(PackedKind kind) {
  return static_cast<int>(kind) < kFirstInteger;
}
constexpr bool HasMinimum(const Parts& parts) {
  return parts.minima != kNone || parts.kind == PackedKind::kQ2_K;
}

size_t SuperAt(const Parts& p, int block) {
  const size_t super_bytes = static_cast<size_t>(p.header_bytes) + p.blocks_per_super * p.block_bytes;
  return block / p.blocks_per_super * super_bytes;
}
size_t BlockAt(const Parts& p, int block) {
  return SuperAt(p, block) + p.header_bytes + block % p.blocks_per_super * p.block_bytes;
}

void Put16(uint16_t bits, int lane, uint8_t* at) {
  std::memcpy(at + 2 * lane, &bits, sizeof(bits));
}
uint16_t Get16(const uint8_t* at, int lane) {
  uint16_t bits;
  std::memcpy(&bits, at + 2 * lane, sizeof(bits));
  return bits;
}

// ------------------------------------------------------------------------------------------------------------- packing

// Four codes a word: word i has columns 4i ... 4i + 3, as a quad has them.
void PutCodes(const Parts& p, const uint8_t* code, int lane, uint8_t* block) {
  std::array<uint32_t, 8> w;
  std::memcpy(w.data(), code, 32);
  const auto put = [&](int offset, int quad, uint32_t word) {
    std::memcpy(block + offset + quad * kQuadBytes + 4 * lane, &word, sizeof(word));
  };
  if (p.nibbles != kNone) {
    for (int i = 0; i < 4; ++i) put(p.nibbles, i, (w[i] & 0x0f0f0f0f) | (w[i + 4] & 0x0f0f0f0f) << 4);
  }
  if (p.bytes != kNone) {
    for (int i = 0; i < 8; ++i) put(p.bytes, i, w[i]);
  }
  for (int t = 0; p.pairs != kNone && t < 2; ++t) {
    uint32_t word = 0;
    for (int s = 0; s < 4; ++s) word |= (w[4 * t + s] >> p.pairs_shift & 0x03030303) << 2 * s;
    put(p.pairs, t, word);
  }
  if (p.bits != kNone) {
    uint32_t word = 0;
    for (int s = 0; s < 8; ++s) word |= (w[s] >> p.bits_shift & 0x01010101) << s;
    put(p.bits, 0, word);
  }
}

void PutScales(const Parts& p, const SourceBlock& source, int lane, uint8_t* super, uint8_t* block) {
  if (p.header_bytes == 0) {
    Put16(source.d, lane, block + p.scales);
    if (p.minima != kNone) Put16(source.m, lane, block + p.minima);
    return;
  }
  Put16(source.d, lane, super);
  if (HasMinimum(p)) Put16(source.m, lane, super + 32);
  for (int g = 0; g < kBlockCols / p.group; ++g) block[p.scales + g * kTileRows + lane] = source.sc[g];
  if (p.minima != kNone) block[p.minima + lane] = source.sub_minimum;
}

void PackIntegers(const Parts& p, ReadSource read, const uint8_t* const* rows, int cols, uint8_t* tile) {
  for (int block = 0; block < cols / kBlockCols; ++block) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] == nullptr) continue;
      SourceBlock source;
      read(rows[lane], block, &source);
      PutCodes(p, source.code, lane, tile + BlockAt(p, block));
      PutScales(p, source, lane, tile + SuperAt(p, block), tile + BlockAt(p, block));
    }
  }
}

// ------------------------------------------------------------------------------------------------------------- reading

int CodeAt(const Parts& p, const uint8_t* block, int k, int lane) {
  const int in_quad = 4 * lane + k % 4;
  if (p.bytes != kNone) return block[p.bytes + k / 4 * kQuadBytes + in_quad];
  int code = 0;
  if (p.nibbles != kNone) code = block[p.nibbles + k % 16 / 4 * kQuadBytes + in_quad] >> k / 16 * 4 & 15;
  if (p.pairs != kNone) {
    code |= (block[p.pairs + k / 16 * kQuadBytes + in_quad] >> k % 16 / 4 * 2 & 3) << p.pairs_shift;
  }
  if (p.bits != kNone) code |= (block[p.bits + in_quad] >> k / 4 & 1) << p.bits_shift;
  return code;
}

void ReadScales(const PackedFormat& format, const uint8_t* super, const uint8_t* block, int lane, PlainBlock* out) {
  const Parts& p = PartsOf(format.kind);
  if (p.header_bytes == 0) {
    const uint16_t d = Get16(block + p.scales, lane);
    out->scale[0] = out->scale[1] = p.kind == PackedKind::kMxfp4 ? Bfloat16ToFloat(d) : HalfToFloat(d);
    if (p.minima != kNone) out->minimum[0] = out->minimum[1] = HalfToFloat(Get16(block + p.minima, lane));
    return;
  }
  // Products of d (11 bits) with a sub-scale are exact.
  const float d = HalfToFloat(Get16(super, lane)) * format.step;
  const float dmin = HasMinimum(p) ? HalfToFloat(Get16(super + 32, lane)) : 0.0f;
  for (int half = 0; half < 2; ++half) {
    const uint8_t sc = block[p.scales + (p.group == 16 ? half * kTileRows : 0) + lane];
    if (p.kind == PackedKind::kQ2_K) {
      out->scale[half] = d * static_cast<float>(sc & 15);
      out->minimum[half] = -(dmin * static_cast<float>(sc >> 4));
    } else if (p.minima != kNone) {
      out->scale[half] = d * static_cast<float>(sc);
      out->minimum[half] = -(dmin * static_cast<float>(block[p.minima + lane]));
    } else {
      out->scale[half] = d * static_cast<float>(static_cast<int8_t>(sc));
    }
  }
}

// --------------------------------------------------------------------------------------------------------- float types

template <int kBytes>
void PackFloats(const uint8_t* const* rows, int cols, uint8_t* tile) {
  for (int col = 0; col < cols; ++col, tile += kTileRows * kBytes) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] != nullptr) {
        std::memcpy(tile + lane * kBytes, rows[lane] + static_cast<size_t>(col) * kBytes, kBytes);
      }
    }
  }
}

template <class T>
T FloatBits(const uint8_t* tile, int col, int lane) {
  T bits;
  std::memcpy(&bits, tile + (static_cast<size_t>(col) * kTileRows + lane) * sizeof(T), sizeof(T));
  return bits;
}

// ------------------------------------------------------------------------------------------------------------- formats

constexpr PackedFormat FloatFormat(WeightType type, PackedKind kind, int bytes) {
  return {type, kind, ActivationFormat::kF32, 1, false, 1, bytes * kTileRows, nullptr, 1.0f};
}

PackedFormat IntegerFormat(WeightType type, PackedKind kind, float step = 1.0f) {
  const Parts& p = PartsOf(kind);
  PackedFormat format{type, kind, ActivationFormat::kA16};
  format.group = p.group;
  format.has_minimum = HasMinimum(p);
  format.super_cols = kBlockCols * p.blocks_per_super;
  format.super_bytes = p.header_bytes + p.blocks_per_super * p.block_bytes;
  format.table = CodeTableOf(type);
  format.step = step;
  return format;
}

const auto& Formats() {
  using enum WeightType;
  static const std::array formats = {
      FloatFormat(kF32, PackedKind::kF32, 4),
      FloatFormat(kF16, PackedKind::kF16, 2),
      FloatFormat(kBF16, PackedKind::kBF16, 2),
      IntegerFormat(kQ4_0, PackedKind::kQ4_0),
      IntegerFormat(kIQ4_NL, PackedKind::kQ4_0),
      IntegerFormat(kMXFP4, PackedKind::kMxfp4),
      IntegerFormat(kQ4_1, PackedKind::kQ4_1),
      IntegerFormat(kQ5_0, PackedKind::kQ5_0),
      IntegerFormat(kQ5_1, PackedKind::kQ5_1),
      IntegerFormat(kQ8_0, PackedKind::kQ8_0),
      IntegerFormat(kQ2_K, PackedKind::kQ2_K),
      IntegerFormat(kQ3_K, PackedKind::kTable3),
      IntegerFormat(kQ4_K, PackedKind::kQ4_K),
      IntegerFormat(kQ5_K, PackedKind::kQ5_K),
      IntegerFormat(kQ6_K, PackedKind::kQ6_K),
      IntegerFormat(kIQ1_S, PackedKind::kTable3, 0.125f),
      IntegerFormat(kIQ1_M, PackedKind::kTable3, 0.125f),
      IntegerFormat(kIQ2_XXS, PackedKind::kTable3, 0.125f),
      IntegerFormat(kIQ2_XS, PackedKind::kTable3, 0.125f),
      IntegerFormat(kIQ2_S, PackedKind::kTable3, 0.125f),
      IntegerFormat(kIQ3_XXS, PackedKind::kTable4, 0.25f),
      IntegerFormat(kIQ3_S, PackedKind::kTable4),
      IntegerFormat(kIQ4_XS, PackedKind::kTable4),
  };
  return formats;
}

}  // namespace

const PackedFormat* FindPackedFormat(WeightType type) {
  for (const PackedFormat& format : Formats()) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

size_t TileBytes(const PackedFormat& format, int cols) {
  const size_t bytes = static_cast<size_t>(cols / format.super_cols) * format.super_bytes;
  return (bytes + 63) / 64 * 64;
}

void PackTile(const PackedFormat& format, const uint8_t* const* rows, int cols, uint8_t* tile) {
  if (format.kind == PackedKind::kF32) return PackFloats<4>(rows, cols, tile);
  if (IsFloat(format.kind)) return PackFloats<2>(rows, cols, tile);
  PackIntegers(PartsOf(format.kind), ReadSourceOf(format.type), rows, cols, tile);
}

void ReadPackedBlock(const PackedFormat& format, const uint8_t* tile, int block, int lane, PlainBlock* out) {
  const Parts& p = PartsOf(format.kind);
  const uint8_t* at = tile + BlockAt(p, block);
  *out = PlainBlock{};
  for (int k = 0; k < kBlockCols; ++k) {
    const int code = CodeAt(p, at, k, lane);
    out->q[k] = static_cast<int16_t>(format.table != nullptr ? format.table[code] : code - p.offset);
  }
  ReadScales(format, tile + SuperAt(p, block), at, lane, out);
}

float ReadPackedFloat(const PackedFormat& format, const uint8_t* tile, int col, int lane) {
  if (format.kind == PackedKind::kF32) return FloatBits<float>(tile, col, lane);
  const auto bits = FloatBits<uint16_t>(tile, col, lane);
  return format.kind == PackedKind::kF16 ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}

}  // namespace layover
