// Signs: bit j of a sign byte makes coordinate j negative. Where a format stores seven of the eight, the eighth makes
// their number even.
#include "kernels/iq_blocks.h"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/iq_grids.h"

namespace layover {
namespace {

constexpr int8_t kIq2Levels[4] = {8, 25, 43, 0};
constexpr int8_t kIq3xxsLevels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3sLevels[8] = {1, 3, 5, 7, 9, 11, 13, 15};

uint16_t U16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
uint32_t U32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint8_t EvenSigns(uint32_t seven) {
  const uint32_t bits = seven & 127;
  return static_cast<uint8_t>(bits | (std::popcount(bits) & 1) << 7);
}

void PutPoint(uint16_t code, int coordinates, int bits, const int8_t* levels, uint8_t signs, int8_t* q) {
  for (int j = 0; j < coordinates; ++j) {
    const int8_t level = levels[code >> (bits * j) & ((1 << bits) - 1)];
    q[j] = static_cast<int8_t>(signs >> j & 1 ? -level : level);
  }
}

uint16_t FirstHalf(const uint8_t* block) {
  return U16(block);
}

uint8_t Odd(int scale) {
  return static_cast<uint8_t>(2 * scale + 1);
}

// The four-bit scales of IQ2_XS and IQ2_S.
void PutNibbleScales(uint8_t scales, IqGroup* out) {
  out->sc[0] = Odd(scales & 15);
  out->sc[1] = Odd(scales >> 4);
}

void GroupIQ2_XXS(const uint8_t* block, int group, IqGroup* out) {
  const uint8_t* at = block + 2 + 8 * group;
  const uint32_t word = U32(at + 4);
  for (int l = 0; l < 4; ++l) PutPoint(kIq2xxsGrid[at[l]], 8, 2, kIq2Levels, EvenSigns(word >> 7 * l), out->q + 8 * l);
  out->sc[0] = out->sc[1] = Odd(static_cast<int>(word >> 28));
}

void GroupIQ2_XS(const uint8_t* block, int group, IqGroup* out) {
  for (int l = 0; l < 4; ++l) {
    const uint16_t word = U16(block + 2 + 2 * (4 * group + l));
    PutPoint(kIq2xsGrid[word & 511], 8, 2, kIq2Levels, EvenSigns(word >> 9), out->q + 8 * l);
  }
  PutNibbleScales(block[66 + group], out);
}

void GroupIQ2_S(const uint8_t* block, int group, IqGroup* out) {
  for (int l = 0; l < 4; ++l) {
    const int index = block[2 + 4 * group + l] | (block[66 + group] >> 2 * l & 3) << 8;
    PutPoint(kIq2sGrid[index], 8, 2, kIq2Levels, block[34 + 4 * group + l], out->q + 8 * l);
  }
  PutNibbleScales(block[74 + group], out);
}

void GroupIQ3_XXS(const uint8_t* block, int group, IqGroup* out) {
  const uint32_t word = U32(block + 66 + 4 * group);
  for (int k = 0; k < 8; ++k) {
    const uint8_t signs = static_cast<uint8_t>(EvenSigns(word >> 7 * (k / 2)) >> 4 * (k % 2));
    PutPoint(kIq3xxsGrid[block[2 + 8 * group + k]], 4, 3, kIq3xxsLevels, signs, out->q + 4 * k);
  }
  out->sc[0] = out->sc[1] = Odd(static_cast<int>(word >> 28));
}

void GroupIQ3_S(const uint8_t* block, int group, IqGroup* out) {
  for (int k = 0; k < 8; ++k) {
    const int index = block[2 + 8 * group + k] | (block[66 + group] >> k & 1) << 8;
    const uint8_t signs = static_cast<uint8_t>(block[74 + 4 * group + k / 2] >> 4 * (k % 2));
    PutPoint(kIq3sGrid[index], 4, 3, kIq3sLevels, signs, out->q + 4 * k);
  }
  out->sc[0] = out->sc[1] = Odd(block[106 + group / 2] >> 4 * (group & 1) & 15);
}

// Point p (-1, 0, 1) shifted by +-1/8, times 8.
void PutShiftedPoint(uint16_t code, bool down, int8_t* q) {
  for (int j = 0; j < 8; ++j) q[j] = static_cast<int8_t>(8 * ((code >> 2 * j & 3) - 1) + (down ? -1 : 1));
}

void GroupIQ1_S(const uint8_t* block, int group, IqGroup* out) {
  const uint16_t high = U16(block + 34 + 2 * group);
  for (int l = 0; l < 4; ++l) {
    const int index = block[2 + 4 * group + l] | (high >> 3 * l & 7) << 8;
    PutShiftedPoint(kIq1Grid[index], high >> 15 != 0, out->q + 8 * l);
  }
  out->sc[0] = out->sc[1] = Odd(high >> 12 & 7);
}

// IQ1_M has no field for d: the top nibbles of its four scale words are it.
uint16_t ScaleIQ1_M(const uint8_t* block) {
  uint16_t d = 0;
  for (int k = 0; k < 4; ++k) d = static_cast<uint16_t>(d | (U16(block + 48 + 2 * k) >> 12) << 4 * k);
  return d;
}

void GroupIQ1_M(const uint8_t* block, int group, IqGroup* out) {
  const uint16_t scales = U16(block + 48 + 2 * (group / 2));
  for (int l = 0; l < 4; ++l) {
    const int high = block[32 + 2 * group + l / 2] >> 4 * (l & 1) & 15;
    PutShiftedPoint(kIq1Grid[block[4 * group + l] | (high & 7) << 8], (high & 8) != 0, out->q + 8 * l);
  }
  for (int half = 0; half < 2; ++half) out->sc[half] = Odd(scales >> (6 * (group & 1) + 3 * half) & 7);
}

constexpr std::array kFormats = {
    IqFormat{WeightType::kIQ2_XXS, 0.125f, FirstHalf, GroupIQ2_XXS},
    IqFormat{WeightType::kIQ2_XS, 0.125f, FirstHalf, GroupIQ2_XS},
    IqFormat{WeightType::kIQ2_S, 0.125f, FirstHalf, GroupIQ2_S},
    IqFormat{WeightType::kIQ3_XXS, 0.25f, FirstHalf, GroupIQ3_XXS},
    IqFormat{WeightType::kIQ3_S, 1.0f, FirstHalf, GroupIQ3_S},
    IqFormat{WeightType::kIQ1_S, 0.125f, FirstHalf, GroupIQ1_S},
    IqFormat{WeightType::kIQ1_M, 0.125f, ScaleIQ1_M, GroupIQ1_M},
};

}  // namespace

const IqFormat* FindIqFormat(WeightType type) {
  for (const IqFormat& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

}  // namespace layover
