// One function per format: block bytes to float32. Field offsets are those of GGUF's block structs; blocks are neither
// padded nor aligned, so every multi-byte field is read with memcpy. Little-endian hosts only, as GGUF itself.
#include "kernels/dequantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/check.h"
#include "kernels/float16.h"
#include "kernels/iq_blocks.h"
#include "kernels/quant_tables.h"

namespace layover {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kSuper = 256;  // elements of a K- or IQ-block

uint16_t LoadU16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint32_t LoadU32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

float LoadHalf(const uint8_t* p) {
  return HalfToFloat(LoadU16(p));
}

const uint8_t* Bytes(const void* block) {
  return static_cast<const uint8_t*>(block);
}

// Element i of the 32-element four-bit types: byte i holds i in its low and i + 16 in its high nibble.
int Nibble(const uint8_t* qs, int i) {
  return qs[i % 16] >> (i / 16 * 4) & 15;
}

void DecodeF32(const void* block, float* out) {
  std::memcpy(out, block, sizeof(float));
}

void DecodeF16(const void* block, float* out) {
  *out = LoadHalf(Bytes(block));
}

void DecodeBF16(const void* block, float* out) {
  *out = Bfloat16ToFloat(LoadU16(Bytes(block)));
}

void DecodeQ4_0(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(Nibble(b + 2, i) - 8) * d;
}

void DecodeQ4_1(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  const float m = LoadHalf(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(Nibble(b + 4, i)) * d + m;
}

void DecodeQ5_0(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  const uint32_t high = LoadU32(b + 2);
  for (int i = 0; i < 32; ++i) {
    const int q = Nibble(b + 6, i) | static_cast<int>(high >> i & 1) << 4;
    out[i] = static_cast<float>(q - 16) * d;
  }
}

void DecodeQ5_1(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  const float m = LoadHalf(b + 2);
  const uint32_t high = LoadU32(b + 4);
  for (int i = 0; i < 32; ++i) {
    const int q = Nibble(b + 8, i) | static_cast<int>(high >> i & 1) << 4;
    out[i] = static_cast<float>(q) * d + m;
  }
}

void DecodeQ8_0(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

void DecodeIQ4_NL(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4Values[Nibble(b + 2, i)]);
}

// Bfloat16 holds the scale exactly, and its bits are the upper half of the float's.
float Mxfp4Scale(uint8_t exponent) {
  return Bfloat16ToFloat(Mxfp4ScaleBits(exponent));
}

void DecodeMXFP4(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = Mxfp4Scale(b[0]);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(kMxfp4Values[Nibble(b + 1, i)]) * d;
}

void DecodeQ4_K(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  const float dmin = LoadHalf(b + 2);
  for (int i = 0; i < kSuper; ++i) {
    const int g = i / 32;
    const int q = b[16 + 32 * (g / 2) + i % 32] >> (4 * (g & 1)) & 15;
    const float scale = d * static_cast<float>(KScale(b + 4, g));
    const float minimum = dmin * static_cast<float>(KMinimum(b + 4, g));
    out[i] = scale * static_cast<float>(q) - minimum;
  }
}

void DecodeQ5_K(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  const float dmin = LoadHalf(b + 2);
  for (int i = 0; i < kSuper; ++i) {
    const int g = i / 32;
    const int low = b[48 + 32 * (g / 2) + i % 32] >> (4 * (g & 1)) & 15;
    const int q = low | (b[16 + i % 32] >> g & 1) << 4;
    const float scale = d * static_cast<float>(KScale(b + 4, g));
    const float minimum = dmin * static_cast<float>(KMinimum(b + 4, g));
    out[i] = scale * static_cast<float>(q) - minimum;
  }
}

void DecodeQ2_K(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b + 80);
  const float dmin = LoadHalf(b + 82);
  for (int i = 0; i < kSuper; ++i) {
    const int q = b[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
    const uint8_t packed = b[i / 16];
    const float scale = d * static_cast<float>(packed & 15);
    const float minimum = dmin * static_cast<float>(packed >> 4);
    out[i] = scale * static_cast<float>(q) - minimum;
  }
}

void DecodeQ3_K(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b + 108);
  for (int i = 0; i < kSuper; ++i) {
    const int half = i / 128;
    const int plane = i % 128 / 32;
    const int low = b[32 + 32 * half + i % 32] >> (2 * plane) & 3;
    const bool high = b[i % 32] >> (4 * half + plane) & 1;
    const float scale = d * static_cast<float>(Q3Scale(b + 96, i / 16));
    out[i] = scale * static_cast<float>(low - (high ? 0 : 4));
  }
}

void DecodeQ6_K(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b + 208);
  for (int i = 0; i < kSuper; ++i) {
    const int half = i / 128;
    const int plane = i % 128 / 32;
    const int low = b[64 * half + 32 * (plane & 1) + i % 32] >> (4 * (plane >> 1)) & 15;
    const int high = b[128 + 32 * half + i % 32] >> (2 * plane) & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    out[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

void DecodeIQ4_XS(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  const uint16_t scales_high = LoadU16(b + 2);
  for (int i = 0; i < kSuper; ++i) {
    const int g = i / 32;
    const float scale = d * static_cast<float>(Iq4Scale(scales_high, b + 4, g));
    out[i] = scale * static_cast<float>(kIq4Values[Nibble(b + 8 + 16 * g, i % 32)]);
  }
}

template <WeightType kType>
void DecodeIq(const void* block, float* out) {
  static const IqFormat& format = *FindIqFormat(kType);
  const float d = HalfToFloat(format.scale(Bytes(block))) * format.step;
  for (int g = 0; g < kSuper / 32; ++g) {
    IqGroup group;
    format.group(Bytes(block), g, &group);
    for (int i = 0; i < 32; ++i) {
      out[32 * g + i] = static_cast<float>(group.q[i]) * (d * static_cast<float>(group.sc[i / 16]));
    }
  }
}

// The types whose values can be read: one block of bytes (no alignment needed) to BlockElements floats.
struct Decoder {
  WeightType type;
  void (*decode)(const void* block, float* out);
};
constexpr std::array kDecoders = {
    Decoder{WeightType::kF32, DecodeF32},
    Decoder{WeightType::kF16, DecodeF16},
    Decoder{WeightType::kQ4_0, DecodeQ4_0},
    Decoder{WeightType::kQ4_1, DecodeQ4_1},
    Decoder{WeightType::kQ5_0, DecodeQ5_0},
    Decoder{WeightType::kQ5_1, DecodeQ5_1},
    Decoder{WeightType::kQ8_0, DecodeQ8_0},
    Decoder{WeightType::kQ2_K, DecodeQ2_K},
    Decoder{WeightType::kQ3_K, DecodeQ3_K},
    Decoder{WeightType::kQ4_K, DecodeQ4_K},
    Decoder{WeightType::kQ5_K, DecodeQ5_K},
    Decoder{WeightType::kQ6_K, DecodeQ6_K},
    Decoder{WeightType::kIQ2_XXS, DecodeIq<WeightType::kIQ2_XXS>},
    Decoder{WeightType::kIQ2_XS, DecodeIq<WeightType::kIQ2_XS>},
    Decoder{WeightType::kIQ3_XXS, DecodeIq<WeightType::kIQ3_XXS>},
    Decoder{WeightType::kIQ1_S, DecodeIq<WeightType::kIQ1_S>},
    Decoder{WeightType::kIQ4_NL, DecodeIQ4_NL},
    Decoder{WeightType::kIQ3_S, DecodeIq<WeightType::kIQ3_S>},
    Decoder{WeightType::kIQ2_S, DecodeIq<WeightType::kIQ2_S>},
    Decoder{WeightType::kIQ4_XS, DecodeIQ4_XS},
    Decoder{WeightType::kIQ1_M, DecodeIq<WeightType::kIQ1_M>},
    Decoder{WeightType::kBF16, DecodeBF16},
    Decoder{WeightType::kMXFP4, DecodeMXFP4},
};

const Decoder* FindDecoder(WeightType type) {
  const auto it = std::find_if(kDecoders.begin(), kDecoders.end(), [type](const auto& decoder) { return decoder.type == type; });
  return it == kDecoders.end() ? nullptr : &*it;
}

}  // namespace

int BlockElements(WeightType type) { return WeightTypeInfo(type).block_elements; }

size_t BlockBytes(WeightType type) { return static_cast<size_t>(WeightTypeInfo(type).block_bytes); }

size_t RowBytes(WeightType type, int cols) {
  LAYOVER_CHECK(cols >= 0);
  return WeightBytes(type, 1, static_cast<uint64_t>(cols));
}

bool CanDequantize(WeightType type) { return FindDecoder(type) != nullptr; }

void DequantizeRow(WeightType type, const void* row, int cols, float* out) {
  const Decoder* decoder = FindDecoder(type);
  const int elements = BlockElements(type);
  LAYOVER_CHECK(decoder != nullptr && cols % elements == 0);
  const uint8_t* block = Bytes(row);
  for (int i = 0; i < cols; i += elements, block += BlockBytes(type)) decoder->decode(block, out + i);
}

}  // namespace layover
