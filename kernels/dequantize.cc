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

constexpr std::array<int8_t, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

void DecodeIQ4_NL(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = LoadHalf(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4Values[Nibble(b + 2, i)]);
}

// E2M1 values doubled; the scale is halved in turn, so that exponent 0 and 1 end as float32 subnormals.
constexpr std::array<int8_t, 16> kMxfp4Values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float Mxfp4Scale(uint8_t exponent) {
  if (exponent < 2) return std::bit_cast<float>(0x00200000u << exponent);  // 2^-128, 2^-127
  return std::bit_cast<float>(static_cast<uint32_t>(exponent - 1) << 23);
}

void DecodeMXFP4(const void* block, float* out) {
  const uint8_t* b = Bytes(block);
  const float d = Mxfp4Scale(b[0]);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(kMxfp4Values[Nibble(b + 1, i)]) * d;
}

// The twelve bytes of 6-bit scales and minima that Q4_K and Q5_K share; g is the group of 32.
int KScale(const uint8_t* s, int g) {
  return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
}
int KMinimum(const uint8_t* s, int g) {
  return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
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

int Q3Scale(const uint8_t* s, int k) {
  const int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
  const int high = s[8 + k % 4] >> (2 * (k / 4)) & 3;
  return (low | high << 4) - 32;
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
    const int low = b[4 + g / 2] >> (4 * (g & 1)) & 15;
    const int high = scales_high >> (2 * g) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    out[i] = scale * static_cast<float>(kIq4Values[Nibble(b + 8 + 16 * g, i % 32)]);
  }
}

// Every weight type of ops.h. A type without a function is known by size only: `inspect` and digests need no values.
constexpr std::array kTypes = {
    WeightTypeInfo{WeightType::kF32, "F32", 1, 4, DecodeF32},
    WeightTypeInfo{WeightType::kF16, "F16", 1, 2, DecodeF16},
    WeightTypeInfo{WeightType::kQ4_0, "Q4_0", 32, 18, DecodeQ4_0},
    WeightTypeInfo{WeightType::kQ4_1, "Q4_1", 32, 20, DecodeQ4_1},
    WeightTypeInfo{WeightType::kQ5_0, "Q5_0", 32, 22, DecodeQ5_0},
    WeightTypeInfo{WeightType::kQ5_1, "Q5_1", 32, 24, DecodeQ5_1},
    WeightTypeInfo{WeightType::kQ8_0, "Q8_0", 32, 34, DecodeQ8_0},
    WeightTypeInfo{WeightType::kQ2_K, "Q2_K", kSuper, 84, DecodeQ2_K},
    WeightTypeInfo{WeightType::kQ3_K, "Q3_K", kSuper, 110, DecodeQ3_K},
    WeightTypeInfo{WeightType::kQ4_K, "Q4_K", kSuper, 144, DecodeQ4_K},
    WeightTypeInfo{WeightType::kQ5_K, "Q5_K", kSuper, 176, DecodeQ5_K},
    WeightTypeInfo{WeightType::kQ6_K, "Q6_K", kSuper, 210, DecodeQ6_K},
    WeightTypeInfo{WeightType::kIQ2_XXS, "IQ2_XXS", kSuper, 66, nullptr},
    WeightTypeInfo{WeightType::kIQ2_XS, "IQ2_XS", kSuper, 74, nullptr},
    WeightTypeInfo{WeightType::kIQ3_XXS, "IQ3_XXS", kSuper, 98, nullptr},
    WeightTypeInfo{WeightType::kIQ1_S, "IQ1_S", kSuper, 50, nullptr},
    WeightTypeInfo{WeightType::kIQ4_NL, "IQ4_NL", 32, 18, DecodeIQ4_NL},
    WeightTypeInfo{WeightType::kIQ3_S, "IQ3_S", kSuper, 110, nullptr},
    WeightTypeInfo{WeightType::kIQ2_S, "IQ2_S", kSuper, 82, nullptr},
    WeightTypeInfo{WeightType::kIQ4_XS, "IQ4_XS", kSuper, 136, DecodeIQ4_XS},
    WeightTypeInfo{WeightType::kIQ1_M, "IQ1_M", kSuper, 56, nullptr},
    WeightTypeInfo{WeightType::kBF16, "BF16", 1, 2, DecodeBF16},
    WeightTypeInfo{WeightType::kMXFP4, "MXFP4", 32, 17, DecodeMXFP4},
};

const WeightTypeInfo& KnownType(WeightType type) {
  const WeightTypeInfo* info = FindWeightType(type);
  LAYOVER_CHECK(info != nullptr);
  return *info;
}

}  // namespace

const WeightTypeInfo* FindWeightType(WeightType type) {
  const auto it = std::find_if(kTypes.begin(), kTypes.end(), [type](const auto& info) { return info.type == type; });
  return it == kTypes.end() ? nullptr : &*it;
}

std::string_view WeightTypeName(WeightType type) {
  return KnownType(type).name;
}

int BlockElements(WeightType type) {
  return KnownType(type).block_elements;
}

size_t BlockBytes(WeightType type) {
  return KnownType(type).block_bytes;
}

size_t RowBytes(WeightType type, int cols) {
  const WeightTypeInfo& info = KnownType(type);
  LAYOVER_CHECK(cols >= 0 && cols % info.block_elements == 0);
  return static_cast<size_t>(cols / info.block_elements) * info.block_bytes;
}

bool CanDequantize(WeightType type) {
  return KnownType(type).dequantize != nullptr;
}

void DequantizeRow(WeightType type, const void* row, int cols, float* out) {
  const WeightTypeInfo& info = KnownType(type);
  LAYOVER_CHECK(info.dequantize != nullptr && cols % info.block_elements == 0);
  const uint8_t* block = Bytes(row);
  for (int i = 0; i < cols; i += info.block_elements, block += info.block_bytes) info.dequantize(block, out + i);
}

}  // namespace layover
