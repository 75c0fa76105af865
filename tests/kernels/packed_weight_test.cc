// Packing keeps every value (read back through EmbedRows, bit for bit), sizes are what they are said to be, and bad
// sources are refused by name.
#include "kernels/cpu/packed_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cpu/embed_rows.h"
#include "tests/kernels/reference_matmul.h"

namespace layover {
namespace {

using ::testing::HasSubstr;

std::string PackError(WeightSource source) {
  CpuWeightArena arena;
  const auto packed = PackCpuWeight(source, &arena);
  if (packed.ok()) return "packed";
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(packed.status().message().data(), packed.status().message().size());
}

TEST(PackedWeight, EmbedRowsGivesBackEveryValue) {
  CpuWeightArena arena;
  for (const WeightType type : kMatMulTypes) {
    for (const int rows : {1, 15, 16, 37}) {
      const RawWeight raw = RandomWeight(type, rows, 512, 7);
      const auto packed = PackCpuWeight(raw.Source(), &arena);
      ASSERT_TRUE(packed.ok()) << packed.status();
      std::vector<int32_t> ids(rows);
      std::iota(ids.rbegin(), ids.rend(), 0);
      std::vector<float> got(static_cast<size_t>(rows) * 512), want(512);
      CpuEmbedRowsRange({packed->get(), ids.data(), got.data(), rows}, 0, rows);
      for (int i = 0; i < rows; ++i) {
        DequantizeRow(type, raw.row(ids[i]), 512, want.data());
        EXPECT_EQ(std::memcmp(got.data() + i * 512, want.data(), 512 * 4), 0)
            << WeightTypeName(type) << " row " << ids[i];
      }
    }
  }
}

TEST(PackedWeight, EmbedRowsScales) {
  CpuWeightArena arena;
  const RawWeight raw = RandomWeight(WeightType::kQ8_0, 20, 64, 8);
  const auto packed = PackCpuWeight(raw.Source(), &arena);
  ASSERT_TRUE(packed.ok());
  const int32_t ids[2] = {19, 3};
  std::vector<float> plain(128), scaled(128);
  CpuEmbedRowsRange({packed->get(), ids, plain.data(), 2}, 0, 2);
  CpuEmbedRowsRange({packed->get(), ids, scaled.data(), 2, 1.7f}, 1, 2);
  for (int k = 0; k < 64; ++k) EXPECT_EQ(scaled[k], 0.0f);  // row 0 was not asked for
  for (int k = 64; k < 128; ++k) EXPECT_EQ(scaled[k], plain[k] * 1.7f);
}

TEST(PackedWeight, ExpertsStandBackToBack) {
  CpuWeightArena arena;
  for (const WeightType type : kMatMulTypes) {
    const RawWeight slab = RandomWeight(type, 21, 256, 9, 3);
    const auto packed = PackCpuWeight(slab.Source(), &arena);
    ASSERT_TRUE(packed.ok());
    const auto& all = static_cast<const CpuPackedWeight&>(**packed);
    EXPECT_EQ(all.device_bytes, PackedCpuWeightBytes(type, 3, 21, 256));
    EXPECT_EQ(all.device_bytes, 3 * all.tiles() * all.tile_bytes());
    for (int expert = 0; expert < 3; ++expert) {
      WeightSource source{type, 1, 21, 256, slab.row(21 * expert), slab.data.size() / 3};
      const auto one = PackCpuWeight(source, &arena);
      ASSERT_TRUE(one.ok());
      const auto& alone = static_cast<const CpuPackedWeight&>(**one);
      EXPECT_EQ(std::memcmp(all.data() + expert * alone.device_bytes, alone.data(), alone.device_bytes), 0);
    }
  }
}

TEST(PackedWeight, SizesAreNearlyThoseOfTheFile) {
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kQ4_1, 1, 576, 576), 576u * 360);
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kQ8_0, 1, 49152, 576), 49152u * 612);
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kQ4_0, 1, 16, 64), 576u);
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kQ6_K, 1, 16, 1024), 4u * 16 * 210);
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kQ4_K, 1, 16, 1024), 4u * 16 * (144 + 4));  // sub-scales in whole bytes
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kMXFP4, 1, 16, 1024), 32u * 16 * (17 + 1));
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kIQ2_XXS, 1, 16, 1024), 4u * 16 * 114);  // as Q3_K, whose blocks have 110
  EXPECT_EQ(PackedCpuWeightBytes(WeightType::kF32, 1, 17, 3), 2u * 16 * 3 * 4);
}

TEST(PackedWeight, BadSourcesAreRefusedByName) {
  std::vector<uint8_t> bytes(1 << 16);
  const auto* data = bytes.data();
  EXPECT_EQ(PackError({WeightType::kQ4_1, 1, 2, 64, data, 80}), "packed");
  EXPECT_THAT(PackError({WeightType::kQ4_1, 1, 2, 64, data, 79}), HasSubstr("79 bytes for 1 x 2 x 64 Q4_1"));
  EXPECT_THAT(PackError({WeightType::kQ4_1, 1, 2, 64, data, 120}), HasSubstr("120 bytes"));
  EXPECT_THAT(PackError({WeightType::kQ4_1, 1, 2, 48, data, 60}), HasSubstr("48 columns are no multiple of 32"));
  EXPECT_THAT(PackError({WeightType::kQ6_K, 1, 1, 576, data, 420}), HasSubstr("no multiple of 256, the block of Q6_K"));
  EXPECT_THAT(PackError({WeightType::kQ4_1, 1, 0, 64, data, 0}), HasSubstr("0 rows"));
  EXPECT_THAT(PackError({WeightType::kQ4_1, -1, 2, 64, data, 80}), HasSubstr("-1 experts"));
  EXPECT_THAT(PackError({static_cast<WeightType>(24), 1, 1, 256, data, 256}), HasSubstr("no product for I8"));
  EXPECT_THAT(PackError({static_cast<WeightType>(99), 1, 1, 32, data, 18}), HasSubstr("type 99 is unknown"));
}

TEST(WeightArena, MemoryIsZeroedAlignedAndOutlivesTheArena) {
  auto arena = std::make_unique<CpuWeightArena>();
  std::vector<std::shared_ptr<uint8_t>> parts;
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{40} << 20, size_t{30} << 20, size_t{30} << 20}) {
    auto part = arena->Allocate(bytes);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part->get()) % 64, 0u);
    EXPECT_EQ(part->get()[0], 0);
    EXPECT_EQ(part->get()[bytes - 1], 0);
    part->get()[bytes - 1] = static_cast<uint8_t>(parts.size() + 1);
    parts.push_back(*std::move(part));
  }
  arena.reset();
  EXPECT_EQ(parts[0].get()[0], 1);
  EXPECT_EQ(parts[1].get()[99], 2);
  EXPECT_EQ(parts[2].get()[(size_t{40} << 20) - 1], 3);
  EXPECT_EQ(parts[4].get()[(size_t{30} << 20) - 1], 5);
}

TEST(WeightArena, TooMuchIsAnErrorThatSaysHowMuch) {
  CpuWeightArena arena;
  const auto part = arena.Allocate(size_t{1} << 56);
  ASSERT_FALSE(part.ok());
  EXPECT_EQ(part.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("72057594037927936 bytes"));
}

}  // namespace
}  // namespace layover
