// Every format's decoder against ggml's own values and those of PyPI's gguf, bit for bit, and the size table against
// GGUF's.
#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "common/digest.h"
#include "kernels/float16.h"

namespace layover {
namespace {

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const WeightTypeTraits* FindByName(const std::string& name) {
  for (const WeightTypeTraits& traits : AllWeightTypes()) {
    if (traits.name == name) return &traits;
  }
  return nullptr;
}

TEST(Dequantize, EqualsGgmlBitForBit) {
  std::ifstream file(LAYOVER_SOURCE_DIR "/tests/golden/quant_vectors.txt");
  ASSERT_TRUE(file) << "tests/golden/quant_vectors.txt is missing";
  std::map<std::string, int> blocks_seen;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, bar, block_hex, values_hex;
    int elements = 0;
    fields >> name >> bar >> elements >> bar >> block_hex >> bar >> values_hex;
    const WeightTypeTraits* info = FindByName(name);
    ASSERT_NE(info, nullptr) << name;
    const std::vector<uint8_t> block = FromHex(block_hex);
    const std::vector<uint8_t> values = FromHex(values_hex);
    ASSERT_EQ(info->block_elements, elements) << name;
    ASSERT_EQ(block.size(), static_cast<size_t>(info->block_bytes)) << name;
    ASSERT_EQ(values.size(), static_cast<size_t>(elements) * 4) << name;
    // One byte in front, since blocks in a file stand at odd addresses.
    std::vector<uint8_t> shifted(block.size() + 1);
    std::memcpy(shifted.data() + 1, block.data(), block.size());
    std::vector<float> got(elements);
    DequantizeRow(static_cast<WeightType>(info->id), shifted.data() + 1, elements, got.data());
    for (int i = 0; i < elements; ++i) {
      uint32_t want_bits;
      std::memcpy(&want_bits, values.data() + 4 * i, 4);
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), want_bits)
          << name << " element " << i << ": got " << got[i] << ", want " << std::bit_cast<float>(want_bits);
    }
    ++blocks_seen[name];
  }
  EXPECT_EQ(blocks_seen.size(), 20u);
  for (const auto& [name, count] : blocks_seen) EXPECT_EQ(count, 2) << name;
}

// As tests/oracle/quant_blocks.py has it.
std::vector<uint8_t> RandomBytes(uint64_t seed, size_t count) {
  std::vector<uint8_t> bytes(count / 8 * 8 + 8);
  for (size_t i = 0; i < bytes.size() / 8; ++i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15 + seed;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    std::memcpy(bytes.data() + 8 * i, &z, sizeof(z));
  }
  bytes.resize(count);
  return bytes;
}

// Enough blocks that every entry of every codebook occurs.
TEST(Dequantize, EqualsTheGgufPackageOnManyBlocks) {
  constexpr int kBlocks = 4096;
  std::ifstream file(LAYOVER_SOURCE_DIR "/tests/golden/quant_digests.txt");
  ASSERT_TRUE(file) << "tests/golden/quant_digests.txt is missing";
  int types = 0;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, bar, want;
    uint32_t id = 0;
    size_t block_bytes = 0;
    fields >> name >> bar >> id >> bar >> block_bytes >> bar >> want;
    const auto type = static_cast<WeightType>(id);
    ASSERT_EQ(WeightTypeName(type), name);
    ASSERT_EQ(BlockBytes(type), block_bytes) << name;
    const int count = kBlocks * BlockElements(type);
    std::vector<float> values(static_cast<size_t>(count));
    DequantizeRow(type, RandomBytes(id, kBlocks * block_bytes).data(), count, values.data());
    for (float& value : values) {
      if (std::isnan(value)) value = std::bit_cast<float>(0x7fc00000u);
    }
    EXPECT_EQ(DigestOf(values.data(), values.size() * sizeof(float)).Hex(), want) << name;
    ++types;
  }
  EXPECT_EQ(types, 22);
}

TEST(Dequantize, SizesAreThoseOfGguf) {
  EXPECT_EQ(RowBytes(WeightType::kF32, 5), 20u);
  EXPECT_EQ(RowBytes(WeightType::kBF16, 5), 10u);
  EXPECT_EQ(RowBytes(WeightType::kQ4_1, 576), 360u);
  EXPECT_EQ(RowBytes(WeightType::kQ8_0, 576), 612u);
  EXPECT_EQ(RowBytes(WeightType::kQ6_K, 512), 420u);
  EXPECT_EQ(BlockElements(WeightType::kIQ2_XXS), 256);
  EXPECT_EQ(BlockBytes(WeightType::kIQ2_XXS), 66u);
  EXPECT_EQ(WeightTypeName(WeightType::kMXFP4), "MXFP4");
  EXPECT_TRUE(CanDequantize(WeightType::kIQ1_M));
  EXPECT_FALSE(CanDequantize(static_cast<WeightType>(4)));
  EXPECT_FALSE(CanDequantize(static_cast<WeightType>(0xffffffff)));
}

TEST(Dequantize, RowIsBlocksBackToBack) {
  const std::vector<uint8_t> blocks = FromHex(
      "0038"
      "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"  // d = 0.5
      "00c0"
      "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e80");  // d = -2
  std::vector<float> out(64);
  DequantizeRow(WeightType::kQ8_0, blocks.data(), 64, out.data());
  EXPECT_EQ(out[31], 15.5f);
  EXPECT_EQ(out[32], 2.0f);
  EXPECT_EQ(out[63], 256.0f);
}

TEST(Float16, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    const bool is_nan = (half & 0x7fff) > 0x7c00;
    ASSERT_EQ(std::isnan(value), is_nan) << half;
    const uint16_t quiet = is_nan ? 0x0200 : 0;
    ASSERT_EQ(FloatToHalf(value), half | quiet) << value;
  }
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0f);
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(FloatToHalf(1.0f + 0x1p-11f), 0x3c00);  // halfway, even below
  EXPECT_EQ(FloatToHalf(1.0f + 0x3p-11f), 0x3c02);  // halfway, even above
  EXPECT_EQ(FloatToHalf(std::nextafter(1.0f + 0x1p-11f, 2.0f)), 0x3c01);
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0x0000);  // halfway to the least subnormal, even below
  EXPECT_EQ(FloatToHalf(0x3p-25f), 0x0002);
  EXPECT_EQ(FloatToHalf(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
  EXPECT_EQ(FloatToHalf(std::nextafter(0x1p-14f, 0.0f)), 0x0400);
}

}  // namespace
}  // namespace layover
