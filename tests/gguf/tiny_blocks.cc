#include "tests/gguf/tiny_blocks.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"

namespace layover::testing {
namespace {

// Where a block keeps its f16 scale and minimum, and how random quants spread under a scale of 1.
struct BlockFormat {
  WeightType type;
  int scale;           // byte; -1: spread over the high nibbles of the last four u16 (IQ1_M)
  int minimum;         // byte; -1: none
  float minimum_of_1;  // that puts the middle of the values at zero
  float deviation_of_1;
};
constexpr BlockFormat kFormats[] = {
    {WeightType::kQ5_0, 0, -1, 0, 9.24f},     {WeightType::kQ5_1, 0, 2, -15.5f, 9.24f},
    {WeightType::kQ2_K, 80, 82, 1.5f, 13.9f}, {WeightType::kQ3_K, 108, -1, 0, 43.3f},
    {WeightType::kQ4_K, 0, 2, 7.5f, 258.8f},  {WeightType::kQ5_K, 0, 2, 15.5f, 524.2f},
    {WeightType::kQ6_K, 208, -1, 0, 1363.6f}, {WeightType::kIQ4_NL, 0, -1, 0, 67.2f},
    {WeightType::kIQ4_XS, 0, -1, 0, 1245.4f}, {WeightType::kIQ3_S, 0, -1, 0, 139.8f},
    {WeightType::kIQ3_XXS, 0, -1, 0, 142.3f}, {WeightType::kIQ2_XXS, 0, -1, 0, 53.4f},
    {WeightType::kIQ2_XS, 0, -1, 0, 55.8f},   {WeightType::kIQ2_S, 0, -1, 0, 56.3f},
    {WeightType::kIQ1_S, 0, -1, 0, 7.21f},    {WeightType::kIQ1_M, -1, -1, 0, 7.2f},
};
constexpr float kMxfp4Deviation = 2.93f;  // under the exponent byte 127

uint16_t HalfBits(float value) {
  const std::string bytes = EncodeWeights({value}, WeightType::kF16);
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data(), sizeof(bits));
  return bits;
}

void SetScales(const BlockFormat& format, float scale, uint8_t* block, size_t bytes) {
  const uint16_t bits = HalfBits(scale);
  if (format.scale >= 0) {
    std::memcpy(block + format.scale, &bits, 2);
  } else {
    for (int i = 0; i < 4; ++i) {
      uint8_t& high = block[bytes - 8 + 2 * static_cast<size_t>(i) + 1];
      high = static_cast<uint8_t>((high & 15) | (bits >> (4 * i) & 15) << 4);
    }
  }
  if (format.minimum < 0) return;
  const uint16_t minimum = HalfBits(scale * format.minimum_of_1);
  std::memcpy(block + format.minimum, &minimum, 2);
}

}  // namespace

bool HasEncoder(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kQ8_0:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
      return true;
    default:
      return false;
  }
}

std::string RandomBlocks(WeightType type, uint64_t seed, std::string_view name, size_t count, float deviation) {
  const WeightTypeTraits& traits = WeightTypeInfo(type);
  LAYOVER_CHECK(count % static_cast<size_t>(traits.block_elements) == 0);
  const size_t block_bytes = static_cast<size_t>(traits.block_bytes);
  const size_t n_blocks = count / static_cast<size_t>(traits.block_elements);
  const std::vector<float> noise = SeededValues(seed, name, n_blocks * (block_bytes + 1), 0, 1);
  std::string out(n_blocks * block_bytes, '\0');
  for (size_t b = 0; b < n_blocks; ++b) {
    auto* block = reinterpret_cast<uint8_t*>(out.data()) + b * block_bytes;
    const float* random = noise.data() + b * (block_bytes + 1);
    for (size_t i = 0; i < block_bytes; ++i)
      block[i] = static_cast<uint8_t>(static_cast<int>((random[i] + 1) * 128) & 255);
    const float spread = 1.0f + 0.25f * random[block_bytes];  // blocks differ
    if (type == WeightType::kMXFP4) {
      block[0] = static_cast<uint8_t>(127 + std::lround(std::log2(deviation * spread / kMxfp4Deviation)));
      continue;
    }
    bool found = false;
    for (const BlockFormat& format : kFormats) {
      if (format.type != type) continue;
      SetScales(format, deviation * spread / format.deviation_of_1, block, block_bytes);
      found = true;
    }
    LAYOVER_CHECK(found);
  }
  return out;
}

}  // namespace layover::testing
