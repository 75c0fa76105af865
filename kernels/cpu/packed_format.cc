// Packing turns GGUF's row-major blocks into tiles; nothing is rounded, every bit of a block is kept.
#include "kernels/cpu/packed_format.h"

#include <array>
#include <cstring>

#include "kernels/cpu/packed_layout.h"
#include "kernels/float16.h"

namespace layover {
namespace {

float HalfAt(const uint8_t* halves, int index) {
  uint16_t half;
  std::memcpy(&half, halves + 2 * index, sizeof(half));
  return HalfToFloat(half);
}

template <class Layout>
const uint8_t* SuperAt(const uint8_t* tile, int block) {
  return tile + static_cast<size_t>(block / Layout::kBlocksPerSuper) * kSuperBytes<Layout>;
}

template <class Layout>
const uint8_t* BlockAt(const uint8_t* tile, int block) {
  return SuperAt<Layout>(tile, block) + Layout::kHeaderBytes + block % Layout::kBlocksPerSuper * Layout::kBlockBytes;
}

// Where nibble or byte k of row `lane` stands.
int NibbleAt(const uint8_t* nibbles, int k, int lane) {
  return nibbles[k % 16 / 4 * kQuadBytes + 4 * lane + k % 4] >> (k / 16 * 4) & 15;
}
int ByteIndex(int k, int lane) {
  return k / 4 * kQuadBytes + 4 * lane + k % 4;
}

void SetScale(float scale, float minimum, PlainBlock* out) {
  out->scale[0] = out->scale[1] = scale;
  out->minimum[0] = out->minimum[1] = minimum;
}

// The sixteen bytes of a four-bit block; its nibbles already pair k with k + 16.
void PlaceNibbles(const uint8_t* qs, int lane, uint8_t* nibbles) {
  for (int i = 0; i < 4; ++i) std::memcpy(nibbles + i * kQuadBytes + 4 * lane, qs + 4 * i, 4);
}

// ---------------------------------------------------------------------------------------------------- Q4_1, Q4_0, Q8_0

void PackQ4_1(const uint8_t* const* rows, int cols, uint8_t* tile) {
  for (int block = 0; block < cols / kBlockCols; ++block, tile += Q4_1Layout::kBlockBytes) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] == nullptr) continue;
      const uint8_t* source = rows[lane] + static_cast<size_t>(block) * 20;
      std::memcpy(tile + Q4_1Layout::kScales + 2 * lane, source, 2);
      std::memcpy(tile + Q4_1Layout::kMinima + 2 * lane, source + 2, 2);
      PlaceNibbles(source + 4, lane, tile);
    }
  }
}

void ReadQ4_1(const uint8_t* tile, int block, int lane, PlainBlock* out) {
  const uint8_t* b = BlockAt<Q4_1Layout>(tile, block);
  for (int k = 0; k < 32; ++k) out->q[k] = static_cast<int16_t>(NibbleAt(b, k, lane));
  SetScale(HalfAt(b + Q4_1Layout::kScales, lane), HalfAt(b + Q4_1Layout::kMinima, lane), out);
}

void PackQ4_0(const uint8_t* const* rows, int cols, uint8_t* tile) {
  for (int block = 0; block < cols / kBlockCols; ++block, tile += Q4_0Layout::kBlockBytes) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] == nullptr) continue;
      const uint8_t* source = rows[lane] + static_cast<size_t>(block) * 18;
      std::memcpy(tile + Q4_0Layout::kScales + 2 * lane, source, 2);
      PlaceNibbles(source + 2, lane, tile);
    }
  }
}

void ReadQ4_0(const uint8_t* tile, int block, int lane, PlainBlock* out) {
  const uint8_t* b = BlockAt<Q4_0Layout>(tile, block);
  for (int k = 0; k < 32; ++k) out->q[k] = static_cast<int16_t>(NibbleAt(b, k, lane) - 8);
  SetScale(HalfAt(b + Q4_0Layout::kScales, lane), 0.0f, out);
}

void PackQ8_0(const uint8_t* const* rows, int cols, uint8_t* tile) {
  for (int block = 0; block < cols / kBlockCols; ++block, tile += Q8_0Layout::kBlockBytes) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] == nullptr) continue;
      const uint8_t* source = rows[lane] + static_cast<size_t>(block) * 34;
      std::memcpy(tile + Q8_0Layout::kScales + 2 * lane, source, 2);
      for (int k = 0; k < 32; ++k) tile[ByteIndex(k, lane)] = source[2 + k] ^ 0x80;
    }
  }
}

void ReadQ8_0(const uint8_t* tile, int block, int lane, PlainBlock* out) {
  const uint8_t* b = BlockAt<Q8_0Layout>(tile, block);
  for (int k = 0; k < 32; ++k) out->q[k] = static_cast<int16_t>(b[ByteIndex(k, lane)] - 128);
  SetScale(HalfAt(b + Q8_0Layout::kScales, lane), 0.0f, out);
}

// ---------------------------------------------------------------------------------------------------------------- Q6_K

// Block `n` of 32 columns within a super-block: GGUF keeps the low nibbles of blocks (n, n + 2) together.
void PackQ6_KBlock(const uint8_t* source, int n, int lane, uint8_t* block) {
  const int half = n / 4;
  const int plane = n % 4;
  for (int k = 0; k < 32; ++k) {
    const int low = source[64 * half + 32 * (plane & 1) + k] >> (4 * (plane >> 1)) & 15;
    const int high = source[128 + 32 * half + k] >> (2 * plane) & 3;
    block[k % 16 / 4 * kQuadBytes + 4 * lane + k % 4] |= static_cast<uint8_t>(low << (k / 16 * 4));
    block[Q6_KLayout::kHigh + k / 16 * kQuadBytes + 4 * lane + k % 4] |= static_cast<uint8_t>(high << (k % 16 / 4 * 2));
  }
  block[Q6_KLayout::kScales + lane] = source[192 + 2 * n];
  block[Q6_KLayout::kScales + kTileRows + lane] = source[192 + 2 * n + 1];
}

void PackQ6_K(const uint8_t* const* rows, int cols, uint8_t* tile) {
  for (int super = 0; super < cols / 256; ++super, tile += kSuperBytes<Q6_KLayout>) {
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] == nullptr) continue;
      const uint8_t* source = rows[lane] + static_cast<size_t>(super) * 210;
      std::memcpy(tile + 2 * lane, source + 208, 2);
      for (int n = 0; n < 8; ++n) {
        PackQ6_KBlock(source, n, lane, tile + Q6_KLayout::kHeaderBytes + n * Q6_KLayout::kBlockBytes);
      }
    }
  }
}

void ReadQ6_K(const uint8_t* tile, int block, int lane, PlainBlock* out) {
  const uint8_t* b = BlockAt<Q6_KLayout>(tile, block);
  const float d = HalfAt(SuperAt<Q6_KLayout>(tile, block), lane);
  for (int k = 0; k < 32; ++k) {
    const int high = b[Q6_KLayout::kHigh + k / 16 * kQuadBytes + 4 * lane + k % 4] >> (k % 16 / 4 * 2) & 3;
    out->q[k] = static_cast<int16_t>((NibbleAt(b, k, lane) | high << 4) - 32);
  }
  for (int half = 0; half < 2; ++half) {
    const auto sc = static_cast<int8_t>(b[Q6_KLayout::kScales + half * kTileRows + lane]);
    out->scale[half] = d * static_cast<float>(sc);  // exact: 11 + 7 bits
    out->minimum[half] = 0.0f;
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

float ReadF32(const uint8_t* tile, int col, int lane) {
  return FloatBits<float>(tile, col, lane);
}
float ReadF16(const uint8_t* tile, int col, int lane) {
  return HalfToFloat(FloatBits<uint16_t>(tile, col, lane));
}
float ReadBF16(const uint8_t* tile, int col, int lane) {
  return Bfloat16ToFloat(FloatBits<uint16_t>(tile, col, lane));
}

constexpr ActivationFormat kF32 = ActivationFormat::kF32;
constexpr ActivationFormat kA16 = ActivationFormat::kA16;

constexpr std::array kFormats = {
    PackedFormat{WeightType::kF32, kF32, 1, false, 1, 64, PackFloats<4>, nullptr, ReadF32},
    PackedFormat{WeightType::kF16, kF32, 1, false, 1, 32, PackFloats<2>, nullptr, ReadF16},
    PackedFormat{WeightType::kBF16, kF32, 1, false, 1, 32, PackFloats<2>, nullptr, ReadBF16},
    PackedFormat{WeightType::kQ4_0, kA16, 32, false, 32, kSuperBytes<Q4_0Layout>, PackQ4_0, ReadQ4_0, nullptr},
    PackedFormat{WeightType::kQ4_1, kA16, 32, true, 32, kSuperBytes<Q4_1Layout>, PackQ4_1, ReadQ4_1, nullptr},
    PackedFormat{WeightType::kQ8_0, kA16, 32, false, 32, kSuperBytes<Q8_0Layout>, PackQ8_0, ReadQ8_0, nullptr},
    PackedFormat{WeightType::kQ6_K, kA16, 16, false, 256, kSuperBytes<Q6_KLayout>, PackQ6_K, ReadQ6_K, nullptr},
};

}  // namespace

const PackedFormat* FindPackedFormat(WeightType type) {
  for (const PackedFormat& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

size_t TileBytes(const PackedFormat& format, int cols) {
  const size_t bytes = static_cast<size_t>(cols / format.super_cols) * format.super_bytes;
  return (bytes + 63) / 64 * 64;
}

}  // namespace layover
