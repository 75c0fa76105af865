#include "kernels/cuda/pack_weight.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/source_block.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/dequantize.h"

namespace layover::gpu {
namespace {

// A chunk's place for one output: `g` is its number in the tile, `block` of the chunk's four.
struct Place {
  uint8_t* chunk;
  int g;
  int block;

  uint8_t* Word(int t, int at = 0) const { return chunk + at + ((4 * g + t) * kChunkBlocks + block) * 4; }
  uint8_t* Half(int at) const { return chunk + at + ((g / 2 * kChunkBlocks + block) * 2 + g % 2) * 2; }
};

void PackQ4_0(const uint8_t* source, const Place& place) {
  for (int t = 0; t < 4; ++t) std::memcpy(place.Word(t), source + 2 + 4 * t, 4);
  std::memcpy(place.Half(kWordsBytes), source, 2);
}

void PackQ4_1(const uint8_t* source, const Place& place) {
  for (int t = 0; t < 4; ++t) std::memcpy(place.Word(t), source + 4 + 4 * t, 4);
  std::memcpy(place.Half(kWordsBytes), source, 2);
  std::memcpy(place.Half(kWordsBytes + kHalvesBytes), source + 2, 2);
}

void PackQ8_0(const uint8_t* source, const Place& place) {
  for (int t = 0; t < 4; ++t) {
    std::memcpy(place.Word(t), source + 2 + 4 * t, 4);
    std::memcpy(place.Word(t, kWordsBytes), source + 2 + 16 + 4 * t, 4);
  }
  std::memcpy(place.Half(2 * kWordsBytes), source, 2);
}

// Column k of a super-block of 256 as GGUF has it: low nibbles of blocks n and n + 2 of a half stand together.
int Q6_KValue(const uint8_t* super, int k) {
  const int half = k / 128, plane = k % 128 / 32, i = k % 32;
  const int low = super[64 * half + 32 * (plane & 1) + i] >> (4 * (plane >> 1)) & 15;
  const int high = super[128 + 32 * half + i] >> (2 * plane) & 3;
  return low | high << 4;
}

// `source` is the row's super-block, `column` the block's first in it.
void PackQ6_K(const uint8_t* source, int column, const Place& place) {
  for (int i = 0; i < 16; ++i) {
    const int first = Q6_KValue(source, column + i), second = Q6_KValue(source, column + 16 + i);
    place.Word(i / 4)[i % 4] = static_cast<uint8_t>((first & 15) | (second & 15) << 4);
    const int high = first >> 4 | second >> 4 << 2;
    uint8_t* pair = place.chunk + kQ6_KHigh + ((4 * place.g + i / 4) * 2 + place.block / 2) * 4 + i % 4;
    *pair = static_cast<uint8_t>(*pair | high << (place.block % 2 * 4));
  }
  const int t = place.g / 2, output = place.g % 2;
  for (int group = 0; group < 2; ++group) {
    place.chunk[kQ6_KScales + ((t * kChunkBlocks + place.block) * 2 + group) * 2 + output] =
        source[192 + column / 16 + group];
  }
  std::memcpy(place.chunk + kQ6_KD + (t * 2 + output) * 2, source + 208, 2);
}

// Codes of four or five bits, from GGUF's block as all packers read it.
void PutCodes(const SourceBlock& source, bool fifth_bits, const Place& place) {
  for (int i = 0; i < 16; ++i) {
    const int first = source.code[i], second = source.code[16 + i];
    place.Word(i / 4)[i % 4] = static_cast<uint8_t>((first & 15) | (second & 15) << 4);
    if (!fifth_bits) continue;
    uint8_t* bits = place.chunk + kWordsBytes + (4 * place.g + i / 4) * 4 + i % 4;
    *bits = static_cast<uint8_t>(*bits | (first >> 4 | second >> 4 << 1) << (2 * place.block));
  }
}

void PackQ5(const SourceBlock& source, bool minimum, const Place& place) {
  PutCodes(source, true, place);
  std::memcpy(place.Half(kWordsBytes + kBitsBytes), &source.d, 2);
  if (minimum) std::memcpy(place.Half(kWordsBytes + kBitsBytes + kHalvesBytes), &source.m, 2);
}

void PackSubScaled(const SourceBlock& source, bool fifth_bits, const Place& place) {
  PutCodes(source, fifth_bits, place);
  const int subs = kWordsBytes + (fifth_bits ? kBitsBytes : 0), t = place.g / 2, output = place.g % 2;
  place.chunk[subs + (t * kChunkBlocks + place.block) * 4 + output] = source.sc[0];
  place.chunk[subs + (t * kChunkBlocks + place.block) * 4 + 2 + output] = source.sub_minimum;
  std::memcpy(place.chunk + subs + kSubsBytes + (t * 4 + output) * 2, &source.d, 2);
  std::memcpy(place.chunk + subs + kSubsBytes + (t * 4 + 2 + output) * 2, &source.m, 2);
}

void OrWord(uint8_t* at, uint32_t bits) {
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  word |= bits;
  std::memcpy(at, &word, sizeof(word));
}

// In a part of `words` words a lane, the bits of every code's slot in word number `word`; `of_code` gives them,
// shifted.
template <typename OfCode>
void PutSlots(const SourceBlock& source, const Place& place, uint8_t* part, int words, int word, OfCode of_code) {
  for (int k = 0; k < 32; ++k) {
    const int t = k % 16 / 4, slot = k / 16 * 4 + k % 4;
    OrWord(part + ((4 * place.g + t) * words + word) * 4, static_cast<uint32_t>(of_code(source.code[k])) << 4 * slot);
  }
}

void PackTable4(const SourceBlock& source, bool super, const Place& place) {
  PutSlots(source, place, place.chunk, kChunkBlocks, place.block, [](int code) { return code; });
  if (!super) {
    std::memcpy(place.Half(kWordsBytes), &source.d, 2);
    return;
  }
  place.chunk[kWordsBytes + (place.g / 2 * kChunkBlocks + place.block) * 2 + place.g % 2] = source.sc[0];
  std::memcpy(place.chunk + kWordsBytes + kBlockScalesBytes + place.g * 2, &source.d, 2);
}

void PutGroupScales(const SourceBlock& source, const Place& place, int at) {
  for (int group = 0; group < 2; ++group) {
    place.chunk[at + ((place.g / 2 * kChunkBlocks + place.block) * 2 + group) * 2 + place.g % 2] = source.sc[group];
  }
}

void PackTable3(const SourceBlock& source, const Place& place) {
  PutSlots(source, place, place.chunk, 2, place.block / 2,
           [&](int code) { return (code & 3) << (place.block % 2 * 2); });
  PutSlots(source, place, place.chunk + kPairsBytes, 1, 0, [&](int code) { return (code >> 2) << place.block; });
  PutGroupScales(source, place, kPairsBytes + kBitsBytes);
  std::memcpy(place.chunk + kPairsBytes + kBitsBytes + kGroupScalesBytes + place.g * 2, &source.d, 2);
}

void PackQ2_K(const SourceBlock& source, const Place& place) {
  for (int k = 0; k < 32; ++k) {
    const int shift = 8 * (k % 4) + place.block % 2 * 4 + k / 16 * 2;
    OrWord(place.chunk + ((4 * place.g + k % 16 / 4) * 2 + place.block / 2) * 4, static_cast<uint32_t>(source.code[k])
                                                                                     << shift);
  }
  PutGroupScales(source, place, kPairsBytes);
  uint8_t* tops = place.chunk + kPairsBytes + kGroupScalesBytes + (place.g / 2 * 4 + place.g % 2) * 2;
  std::memcpy(tops, &source.d, 2);
  std::memcpy(tops + 4, &source.m, 2);
}

// Whether the type is packed from its SourceBlock, and then done.
bool PackFromSource(WeightType type, const uint8_t* row, int block, const Place& place) {
  SourceBlock source;
  switch (type) {
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
      ReadSourceOf(type)(row, block, &source);
      PackQ5(source, type == WeightType::kQ5_1, place);
      return true;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      ReadSourceOf(type)(row, block, &source);
      PackSubScaled(source, type == WeightType::kQ5_K, place);
      return true;
    case WeightType::kIQ4_NL:
    case WeightType::kMXFP4:
    case WeightType::kIQ4_XS:
    case WeightType::kIQ3_S:
    case WeightType::kIQ3_XXS:
      ReadSourceOf(type)(row, block, &source);
      PackTable4(source, BlockElements(type) == 256, place);
      return true;
    case WeightType::kQ3_K:
    case WeightType::kIQ2_XXS:
    case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S:
    case WeightType::kIQ1_S:
    case WeightType::kIQ1_M:
      ReadSourceOf(type)(row, block, &source);
      PackTable3(source, place);
      return true;
    case WeightType::kQ2_K:
      ReadSourceOf(type)(row, block, &source);
      PackQ2_K(source, place);
      return true;
    default:
      return false;
  }
}

struct TypeInfo {
  WeightType type;
  int chunk_bytes;  // 0: float type
  void (*pack)(const uint8_t* block, const Place& place);
};

constexpr std::array kTypes = {
    TypeInfo{WeightType::kF32, 0, nullptr},
    TypeInfo{WeightType::kF16, 0, nullptr},
    TypeInfo{WeightType::kBF16, 0, nullptr},
    TypeInfo{WeightType::kQ4_0, kQ4_0ChunkBytes, PackQ4_0},
    TypeInfo{WeightType::kQ4_1, kQ4_1ChunkBytes, PackQ4_1},
    TypeInfo{WeightType::kQ8_0, kQ8_0ChunkBytes, PackQ8_0},
    TypeInfo{WeightType::kQ6_K, kQ6_KChunkBytes, nullptr},
    TypeInfo{WeightType::kQ5_0, kQ5_0ChunkBytes, nullptr},
    TypeInfo{WeightType::kQ5_1, kQ5_1ChunkBytes, nullptr},
    TypeInfo{WeightType::kQ4_K, kQ4_KChunkBytes, nullptr},
    TypeInfo{WeightType::kQ5_K, kQ5_KChunkBytes, nullptr},
    TypeInfo{WeightType::kQ2_K, kQ2_KChunkBytes, nullptr},
    TypeInfo{WeightType::kQ3_K, kTable3ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ1_S, kTable3ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ1_M, kTable3ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ2_XXS, kTable3ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ2_XS, kTable3ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ2_S, kTable3ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ3_XXS, kTable4ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ3_S, kTable4ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ4_XS, kTable4ChunkBytes, nullptr},
    TypeInfo{WeightType::kIQ4_NL, kIQ4_NLChunkBytes, nullptr},
    TypeInfo{WeightType::kMXFP4, kIQ4_NLChunkBytes, nullptr},
};

const TypeInfo* Find(WeightType type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return &info;
  }
  return nullptr;
}

size_t RoundedUp(int n, int multiple) {
  return (static_cast<size_t>(n) + multiple - 1) / multiple;
}

size_t ExpertBytes(const TypeInfo& info, int rows, int cols) {
  if (info.chunk_bytes > 0) {
    return RoundedUp(rows, kTileOutputs) * RoundedUp(cols, kChunkCols) * static_cast<size_t>(info.chunk_bytes);
  }
  const int per_unit = 16 / static_cast<int>(BlockBytes(info.type));
  return RoundedUp(rows, kFloatTileOutputs) * RoundedUp(cols, per_unit) * kFloatTileOutputs * 16;
}

void PackIntegerRow(const TypeInfo& info, const uint8_t* row, int output, int cols, uint8_t* expert) {
  const size_t chunks = RoundedUp(cols, kChunkCols);
  uint8_t* tile = expert + static_cast<size_t>(output / kTileOutputs) * chunks * static_cast<size_t>(info.chunk_bytes);
  const int in_block = BlockElements(info.type);
  for (int column = 0; column < cols; column += 32) {
    const Place place{tile + static_cast<size_t>(column / kChunkCols) * static_cast<size_t>(info.chunk_bytes),
                      output % kTileOutputs, column % kChunkCols / 32};
    const uint8_t* block = row + static_cast<size_t>(column / in_block) * BlockBytes(info.type);
    if (PackFromSource(info.type, row, column / 32, place)) continue;
    if (info.type == WeightType::kQ6_K) {
      PackQ6_K(block, column % in_block, place);
    } else {
      info.pack(block, place);
    }
  }
}

void PackFloatRow(const TypeInfo& info, const uint8_t* row, int output, int cols, uint8_t* expert) {
  const size_t bytes = BlockBytes(info.type) * static_cast<size_t>(cols);
  const size_t units = (bytes + 15) / 16;
  uint8_t* tile = expert + static_cast<size_t>(output / kFloatTileOutputs) * units * kFloatTileOutputs * 16;
  for (size_t unit = 0; unit < units; ++unit) {
    std::memcpy(tile + (unit * kFloatTileOutputs + static_cast<size_t>(output % kFloatTileOutputs)) * 16,
                row + unit * 16, std::min<size_t>(16, bytes - unit * 16));
  }
}

}  // namespace

bool SupportsWeight(WeightType type) {
  return Find(type) != nullptr;
}

ActivationFormat ActivationOf(WeightType type) {
  return Find(type)->chunk_bytes > 0 ? ActivationFormat::kA16 : ActivationFormat::kF32;
}

CodeTable TableOf(WeightType type) {
  CodeTable table;
  const int8_t* values = CodeTableOf(type);
  if (values == nullptr) return table;
  std::memcpy(table.values, values, sizeof(table.values));
  table.step = FindPackedFormat(type)->step;
  return table;
}

size_t PackedBytes(WeightType type, int experts, int rows, int cols) {
  const TypeInfo* info = Find(type);
  LAYOVER_CHECK(info != nullptr && experts > 0 && rows > 0 && cols > 0 && cols % BlockElements(type) == 0);
  return static_cast<size_t>(experts) * ExpertBytes(*info, rows, cols);
}

absl::Status CheckWeightSource(const WeightSource& source) {
  const WeightTypeTraits* traits = WeightTypeInfo(static_cast<uint32_t>(source.type));
  if (traits == nullptr) return InvalidArgument("weight type {} is unknown", static_cast<uint32_t>(source.type));
  if (!SupportsWeight(source.type))
    return InvalidArgument("the CUDA back end has no product for {} weights", traits->name);
  if (source.experts <= 0 || source.rows <= 0 || source.cols <= 0 || source.experts > limits::kMaxExperts) {
    return InvalidArgument("a weight of {} experts, {} rows, {} columns", source.experts, source.rows, source.cols);
  }
  if (source.cols % BlockElements(source.type) != 0) {
    return InvalidArgument("{} columns are no multiple of {}, the block of {}", source.cols, BlockElements(source.type),
                           traits->name);
  }
  const size_t row_bytes = RowBytes(source.type, source.cols);
  const size_t all_rows = static_cast<size_t>(source.experts) * static_cast<size_t>(source.rows);
  if (source.bytes / row_bytes != all_rows || source.bytes % row_bytes != 0) {
    return InvalidArgument("{} bytes for {} x {} x {} {} weights, which take {} a row", source.bytes, source.experts,
                           source.rows, source.cols, traits->name, row_bytes);
  }
  LAYOVER_CHECK(source.data != nullptr);
  return absl::OkStatus();
}

void PackWeight(const WeightSource& source, uint8_t* out) {
  const TypeInfo& info = *Find(source.type);
  const size_t expert_bytes = ExpertBytes(info, source.rows, source.cols);
  std::memset(out, 0, expert_bytes * static_cast<size_t>(source.experts));
  const size_t row_bytes = RowBytes(source.type, source.cols);
  const auto* row = static_cast<const uint8_t*>(source.data);
  for (int expert = 0; expert < source.experts; ++expert, out += expert_bytes) {
    for (int output = 0; output < source.rows; ++output, row += row_bytes) {
      if (info.chunk_bytes > 0) {
        PackIntegerRow(info, row, output, source.cols, out);
      } else {
        PackFloatRow(info, row, output, source.cols, out);
      }
    }
  }
}

}  // namespace layover::gpu
