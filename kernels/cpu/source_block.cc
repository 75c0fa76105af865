// One reader per type; field offsets are those of GGUF's block structs, as in dequantize.cc.
#include "kernels/cpu/source_block.h"

#include <array>
#include <cstring>

#include "kernels/iq_blocks.h"
#include "kernels/quant_tables.h"

namespace layover {
namespace {

constexpr int8_t kQ4_0Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr int8_t kQ3_KValues[16] = {-4, -3, -2, -1, 0, 1, 2, 3};
constexpr int8_t kIq1Values[16] = {-9, -7, -1, 1, 7, 9};
constexpr int8_t kIq2Values[16] = {-43, -25, -8, 8, 25, 43};
constexpr int8_t kIq3xxsValues[16] = {-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3sValues[16] = {-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15};

uint16_t U16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// to = (from >> shift) & mask, byte by byte, eight of them at once.
void Mask(const uint8_t* from, int bytes, int shift, uint8_t mask, uint8_t* to) {
  for (int i = 0; i < bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, from + i, 8);
    word = word >> shift & 0x0101010101010101u * mask;
    std::memcpy(to + i, &word, 8);
  }
}

// The same of 32 bytes, shifted left and joined to what is there.
void Join(const uint8_t* from, int shift, uint8_t mask, int left, uint8_t* to) {
  for (int i = 0; i < 32; i += 8) {
    uint64_t word, held;
    std::memcpy(&word, from + i, 8);
    std::memcpy(&held, to + i, 8);
    held |= (word >> shift & 0x0101010101010101u * mask) << left;
    std::memcpy(to + i, &held, 8);
  }
}

// Sixteen bytes whose low nibbles come first.
void Nibbles(const uint8_t* qs, uint8_t* code) {
  Mask(qs, 16, 0, 15, code);
  Mask(qs, 16, 4, 15, code + 16);
}

// Bit k of 32 is bit 4 of code k.
void FifthBits(const uint8_t* qh, uint8_t* code) {
  for (int k = 0; k < 32; ++k) code[k] = static_cast<uint8_t>(code[k] | (qh[k / 8] >> k % 8 & 1) << 4);
}

void ReadQ4_0(const uint8_t* row, int block, SourceBlock* out) {  // IQ4_NL as well
  const uint8_t* b = row + static_cast<size_t>(block) * 18;
  out->d = U16(b);
  Nibbles(b + 2, out->code);
}

void ReadMxfp4(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block) * 17;
  out->d = Mxfp4ScaleBits(b[0]);
  Nibbles(b + 1, out->code);
}

void ReadQ4_1(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block) * 20;
  out->d = U16(b);
  out->m = U16(b + 2);
  Nibbles(b + 4, out->code);
}

void ReadQ5_0(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block) * 22;
  out->d = U16(b);
  Nibbles(b + 6, out->code);
  FifthBits(b + 2, out->code);
}

void ReadQ5_1(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block) * 24;
  out->d = U16(b);
  out->m = U16(b + 2);
  Nibbles(b + 8, out->code);
  FifthBits(b + 4, out->code);
}

void ReadQ8_0(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block) * 34;
  out->d = U16(b);
  for (int k = 0; k < 32; ++k) out->code[k] = b[2 + k] ^ 0x80;
}

void ReadQ2_K(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block / 8) * 84;
  const int g = block % 8;
  out->d = U16(b + 80);
  out->m = U16(b + 82);
  Mask(b + 16 + 32 * (g / 4), 32, 2 * (g % 4), 3, out->code);
  std::memcpy(out->sc, b + 2 * g, 2);
}

void ReadQ3_K(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block / 8) * 110;
  const int g = block % 8;
  out->d = U16(b + 108);
  Mask(b + 32 + 32 * (g / 4), 32, 2 * (g % 4), 3, out->code);
  Join(b, g, 1, 2, out->code);
  for (int half = 0; half < 2; ++half) out->sc[half] = static_cast<uint8_t>(Q3Scale(b + 96, 2 * g + half));
}

void ReadQ4_K(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block / 8) * 144;
  const int g = block % 8;
  out->d = U16(b);
  out->m = U16(b + 2);
  Mask(b + 16 + 32 * (g / 2), 32, 4 * (g % 2), 15, out->code);
  out->sc[0] = static_cast<uint8_t>(KScale(b + 4, g));
  out->sub_minimum = static_cast<uint8_t>(KMinimum(b + 4, g));
}

void ReadQ5_K(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block / 8) * 176;
  const int g = block % 8;
  out->d = U16(b);
  out->m = U16(b + 2);
  Mask(b + 48 + 32 * (g / 2), 32, 4 * (g % 2), 15, out->code);
  Join(b + 16, g, 1, 4, out->code);
  out->sc[0] = static_cast<uint8_t>(KScale(b + 4, g));
  out->sub_minimum = static_cast<uint8_t>(KMinimum(b + 4, g));
}

void ReadQ6_K(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block / 8) * 210;
  const int half = block % 8 / 4, plane = block % 4;
  out->d = U16(b + 208);
  Mask(b + 64 * half + 32 * (plane & 1), 32, 4 * (plane >> 1), 15, out->code);
  Join(b + 128 + 32 * half, 2 * plane, 3, 4, out->code);
  std::memcpy(out->sc, b + 192 + 2 * (block % 8), 2);
}

void ReadIQ4_XS(const uint8_t* row, int block, SourceBlock* out) {
  const uint8_t* b = row + static_cast<size_t>(block / 8) * 136;
  const int g = block % 8;
  out->d = U16(b);
  out->sc[0] = static_cast<uint8_t>(Iq4Scale(U16(b + 2), b + 4, g));
  Nibbles(b + 8 + 16 * g, out->code);
}

// Where a value stands in its table: code of value + 64.
struct CodeOfValue {
  std::array<uint8_t, 128> code{};
  explicit CodeOfValue(const int8_t* table) {
    for (int i = 15; i >= 0; --i) code[static_cast<size_t>(table[i] + 64)] = static_cast<uint8_t>(i);
  }
};

template <WeightType kType, int kBlockBytes>
void ReadIq(const uint8_t* row, int block, SourceBlock* out) {
  static const IqFormat& format = *FindIqFormat(kType);
  static const CodeOfValue codes(CodeTableOf(kType));
  const uint8_t* b = row + static_cast<size_t>(block / 8) * kBlockBytes;
  IqGroup group;
  format.group(b, block % 8, &group);
  out->d = format.scale(b);
  for (int k = 0; k < 32; ++k) out->code[k] = codes.code[static_cast<size_t>(group.q[k] + 64)];
  std::memcpy(out->sc, group.sc, 2);
}

struct Source {
  WeightType type;
  ReadSource read;
  const int8_t* table;
};
constexpr std::array kSources = {
    Source{WeightType::kQ4_0, ReadQ4_0, kQ4_0Values},
    Source{WeightType::kQ4_1, ReadQ4_1, nullptr},
    Source{WeightType::kQ5_0, ReadQ5_0, nullptr},
    Source{WeightType::kQ5_1, ReadQ5_1, nullptr},
    Source{WeightType::kQ8_0, ReadQ8_0, nullptr},
    Source{WeightType::kQ2_K, ReadQ2_K, nullptr},
    Source{WeightType::kQ3_K, ReadQ3_K, kQ3_KValues},
    Source{WeightType::kQ4_K, ReadQ4_K, nullptr},
    Source{WeightType::kQ5_K, ReadQ5_K, nullptr},
    Source{WeightType::kQ6_K, ReadQ6_K, nullptr},
    Source{WeightType::kIQ2_XXS, ReadIq<WeightType::kIQ2_XXS, 66>, kIq2Values},
    Source{WeightType::kIQ2_XS, ReadIq<WeightType::kIQ2_XS, 74>, kIq2Values},
    Source{WeightType::kIQ3_XXS, ReadIq<WeightType::kIQ3_XXS, 98>, kIq3xxsValues},
    Source{WeightType::kIQ1_S, ReadIq<WeightType::kIQ1_S, 50>, kIq1Values},
    Source{WeightType::kIQ4_NL, ReadQ4_0, kIq4Values},
    Source{WeightType::kIQ3_S, ReadIq<WeightType::kIQ3_S, 110>, kIq3sValues},
    Source{WeightType::kIQ2_S, ReadIq<WeightType::kIQ2_S, 82>, kIq2Values},
    Source{WeightType::kIQ4_XS, ReadIQ4_XS, kIq4Values},
    Source{WeightType::kIQ1_M, ReadIq<WeightType::kIQ1_M, 56>, kIq1Values},
    Source{WeightType::kMXFP4, ReadMxfp4, kMxfp4Values},
};

const Source* Find(WeightType type) {
  for (const Source& source : kSources) {
    if (source.type == type) return &source;
  }
  return nullptr;
}

}  // namespace

ReadSource ReadSourceOf(WeightType type) {
  const Source* source = Find(type);
  return source == nullptr ? nullptr : source->read;
}

const int8_t* CodeTableOf(WeightType type) {
  const Source* source = Find(type);
  return source == nullptr ? nullptr : source->table;
}

}  // namespace layover
