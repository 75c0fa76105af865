// Every rule of the reader, each with a file that breaks it and one that just keeps it.
#include "common/gguf/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "common/gguf/weight_types.h"
#include "common/limits.h"
#include "common/status.h"
#include "tests/gguf/gguf_builder.h"
#include "tests/gguf/gguf_exercise.h"

namespace layover {
namespace {

using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::WriteTestFile;

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ8_0 = 8;

absl::Status OpenStatus(std::string_view bytes) {
  return GgufFile::FromBytes(bytes, "m.gguf").status();
}

void ExpectRefused(std::string_view bytes, std::string_view text, absl::StatusCode code = absl::StatusCode::kDataLoss) {
  const absl::Status status = OpenStatus(bytes);
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("m.gguf: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
}

void ExpectAccepted(std::string_view bytes) {
  const absl::Status status = OpenStatus(bytes);
  EXPECT_TRUE(status.ok()) << status;
}

template <typename T>
std::string Bytes(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// A good file with two tensors that the damage starts from.
GgufBuilder Good() {
  GgufBuilder builder;
  builder.String("general.architecture", "llama").U32("llama.block_count", 2);
  builder.Tensor("a", {32, 3}, kQ4_0, std::string(54, 'a')).Tensor("b", {5}, kF32, std::string(20, 'b'));
  return builder;
}

TEST(GgufReader, ReadsWhatWasWritten) {
  const auto file = GgufFile::FromBytes(Good().Build(), "m.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->architecture(), "llama");
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const GgufTensor* a = (*file)->FindTensor("a");
  const GgufTensor* b = (*file)->FindTensor("b");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ((*file)->FindTensor("c"), nullptr);
  EXPECT_THAT(a->dims, ElementsAre(32, 3, 1, 1));
  EXPECT_EQ(a->n_dims, 2);
  EXPECT_EQ(a->bytes, 54u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(a->data), 54), std::string(54, 'a'));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b->data), 20), std::string(20, 'b'));
  EXPECT_THAT((*file)->Keys(), ElementsAre("general.architecture", "llama.block_count"));
}

TEST(GgufReader, VersionTwoIsTheSameLayout) {
  ExpectAccepted(Good().OverrideVersion(2).Build());
}

TEST(GgufReader, PaddingAfterTheLastTensorMayBeMissing) {
  const std::string bytes = Good().Build();
  ExpectAccepted(bytes.substr(0, bytes.size() - 12));
  ExpectRefused(bytes.substr(0, bytes.size() - 13), "tensor 'b': 20 bytes at offset 64 run past the end");
}

TEST(GgufReader, AFileWithoutTensorsNeedsNoData) {
  ExpectAccepted(GgufBuilder().U32("x", 1).Build());
}

TEST(GgufReader, CutAnywhereItIsRefusedOrComplete) {
  const std::string bytes = Good().Build();
  for (size_t length = 0; length < bytes.size() - 12; ++length) {
    EXPECT_EQ(OpenStatus(bytes.substr(0, length)).code(), absl::StatusCode::kDataLoss) << length;
  }
}

// --- Header

TEST(GgufReader, RefusesABadHeader) {
  ExpectRefused("GGUF", "too few");
  ExpectRefused(Good().OverrideMagic("GGML").Build(), "not a GGUF file");
  ExpectRefused(Good().OverrideVersion(0).Build(), "version 0", absl::StatusCode::kUnimplemented);
  ExpectRefused(Good().OverrideVersion(1).Build(), "version 1", absl::StatusCode::kUnimplemented);
  ExpectRefused(Good().OverrideVersion(4).Build(), "version 4", absl::StatusCode::kUnimplemented);
  ExpectRefused(Good().OverrideVersion(0x03000000).Build(), "big-endian", absl::StatusCode::kUnimplemented);
}

TEST(GgufReader, RefusesCountsThatTheFileCannotHold) {
  for (const uint64_t count : {uint64_t{1000}, limits::kMaxGgufTensors + 1, uint64_t{1} << 62, ~uint64_t{0}}) {
    ExpectRefused(Good().OverrideTensorCount(count).Build(), "tensor_count");
    ExpectRefused(Good().OverrideKeyCount(count).Build(), "kv_count");
  }
  // One more than there is: the next structure is read as one of these, and something about it is wrong.
  EXPECT_FALSE(OpenStatus(Good().OverrideTensorCount(3).Build()).ok());
  EXPECT_FALSE(OpenStatus(Good().OverrideKeyCount(3).Build()).ok());
}

TEST(GgufReader, RefusesMoreThanTheLimitsEvenInALargeFile) {
  std::string bytes = GgufBuilder().OverrideTensorCount(limits::kMaxGgufTensors + 1).Build();
  bytes.resize(24 + 24 * (limits::kMaxGgufTensors + 10));
  ExpectRefused(bytes, "tensor_count");
}

// --- Keys and values

TEST(GgufReader, RefusesBadKeys) {
  ExpectRefused(GgufBuilder().U32("", 1).Build(), "empty key at byte 24");
  ExpectRefused(GgufBuilder().U32("a\x01", 1).Build(), "not printable ASCII");
  ExpectRefused(GgufBuilder().U32("\xc3\xa4", 1).Build(), "not printable ASCII");
  ExpectRefused(GgufBuilder().U32("twice", 1).U8("twice", 1).Build(), "key 'twice' stands twice");
  ExpectAccepted(GgufBuilder().U32(std::string(limits::kMaxGgufKeyBytes, 'k'), 1).Build());
  ExpectRefused(GgufBuilder().U32(std::string(limits::kMaxGgufKeyBytes + 1, 'k'), 1).Build(), "at most 65535");
}

TEST(GgufReader, RefusesBadValueTypes) {
  ExpectRefused(GgufBuilder().Raw("k", 13, "12345678").Build(), "no value type 13");
  ExpectRefused(GgufBuilder().Raw("k", ~0u, "12345678").Build(), "no value type");
  ExpectRefused(GgufBuilder().Raw("k", 9, Bytes<uint32_t>(13) + Bytes<uint64_t>(0)).Build(), "no value type 13");
  ExpectRefused(GgufBuilder().Raw("k", 9, Bytes<uint32_t>(9) + Bytes<uint64_t>(0)).Build(), "nested arrays");
}

TEST(GgufReader, RefusesStringsAndArraysThatRunPastTheEnd) {
  for (const uint64_t length : {uint64_t{9}, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}}) {
    ExpectRefused(GgufBuilder().Raw("k", 8, Bytes(length) + "12345678").Build(), "past the end");
    EXPECT_FALSE(OpenStatus(GgufBuilder().Raw("k", 9, Bytes<uint32_t>(0) + Bytes(length) + "12345678").Build()).ok());
    EXPECT_FALSE(OpenStatus(GgufBuilder().Raw("k", 9, Bytes<uint32_t>(8) + Bytes(length) + "12345678").Build()).ok());
    EXPECT_FALSE(OpenStatus(GgufBuilder().Raw("k", 9, Bytes<uint32_t>(12) + Bytes(length) + "12345678").Build()).ok());
  }
  // A string inside an array that runs past the end, though the count fits.
  ExpectRefused(
      GgufBuilder()
          .Raw("k", 9, Bytes<uint32_t>(8) + Bytes<uint64_t>(2) + Bytes<uint64_t>(1) + "x" + Bytes<uint64_t>(5))
          .Build(),
      "past the end");
}

TEST(GgufReader, GettersTakeAnyIntegerWidth) {
  GgufBuilder builder;
  builder.U8("u8", 200).U16("u16", 60000).U32("u32", 4000000000u).I32("i32", -7).U64("u64", 1ull << 40);
  builder.Raw("i8", 1, Bytes<int8_t>(-3)).Raw("i16", 3, Bytes<int16_t>(-300)).Raw("i64", 11, Bytes<int64_t>(-1));
  builder.U64("huge", ~0ull).F32("f", 1.5f).F64("d", 2.5).Bool("b", true).Raw("bad_bool", 7, "\x02");
  builder.String("s", "text").F32("nan", NAN);
  const auto opened = GgufFile::FromBytes(builder.Build(), "m.gguf");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_EQ(file.GetInt("u8").value(), 200);
  EXPECT_EQ(file.GetInt("u16").value(), 60000);
  EXPECT_EQ(file.GetInt("u32").value(), 4000000000);
  EXPECT_EQ(file.GetInt("i8").value(), -3);
  EXPECT_EQ(file.GetInt("i16").value(), -300);
  EXPECT_EQ(file.GetInt("i32").value(), -7);
  EXPECT_EQ(file.GetInt("i64").value(), -1);
  EXPECT_EQ(file.GetInt("u64").value(), int64_t{1} << 40);
  EXPECT_EQ(file.GetInt("absent").value(), std::nullopt);
  EXPECT_EQ(file.GetFloat("f").value(), 1.5);
  EXPECT_EQ(file.GetFloat("d").value(), 2.5);
  EXPECT_EQ(file.GetFloat("i32").value(), -7.0);
  EXPECT_EQ(file.GetBool("b").value(), true);
  EXPECT_EQ(file.GetString("s").value(), "text");
  EXPECT_THAT(std::string(file.GetInt("huge").status().message()), HasSubstr("m.gguf: huge does not fit"));
  EXPECT_THAT(std::string(file.GetFloat("nan").status().message()), HasSubstr("nan is not finite"));
  EXPECT_THAT(std::string(file.GetBool("bad_bool").status().message()), HasSubstr("a bool is 0 or 1"));
}

TEST(GgufReader, GettersNameTheKeyOfAnotherType) {
  GgufBuilder builder;
  builder.U32("n", 1).F32("f", 1).String("s", "x").Bool("b", true).I32s("list", {1, 2}).Strings("texts", {"a", "b"});
  const auto opened = GgufFile::FromBytes(builder.Build(), "m.gguf");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  const auto expect = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect(file.GetInt("f").status(), "m.gguf: f is f32, it must be an integer");
  expect(file.GetInt("b").status(), "b is bool, it must be an integer");
  expect(file.GetInt("list").status(), "list is an array of i32, it must be an integer");
  expect(file.GetFloat("s").status(), "s is string, it must be a number");
  expect(file.GetBool("n").status(), "n is u32, it must be a bool");
  expect(file.GetString("texts").status(), "texts is an array of string, it must be a string");
  expect(file.GetStrings("s").status(), "s is string, it must be an array of strings");
  expect(file.GetInts("n").status(), "n is u32, it must be an array of integers");
  expect(file.GetInts("texts").status(), "it must be an array of integers");
  expect(file.GetFloats("texts").status(), "it must be an array of numbers");
  expect(file.GetArrayLength("n").status(), "n is u32, it must be an array");
  EXPECT_FALSE(file.IsArray("n"));
  EXPECT_FALSE(file.IsArray("absent"));
  EXPECT_TRUE(file.IsArray("list"));
}

TEST(GgufReader, GettersReadArrays) {
  GgufBuilder builder;
  builder.I32s("ints", {1, -2, 3}).Strings("texts", {"a", std::string("b\0c", 3), ""}).F32s("floats", {0.5f, -1});
  builder.Raw("bools", 9, Bytes<uint32_t>(7) + Bytes<uint64_t>(2) + std::string("\x00\x01", 2));
  builder.Raw("u64s", 9, Bytes<uint32_t>(10) + Bytes<uint64_t>(1) + Bytes(~uint64_t{0}));
  const auto opened = GgufFile::FromBytes(builder.Build(), "m.gguf");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_THAT(*file.GetInts("ints").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(*file.GetInts("bools").value(), ElementsAre(0, 1));
  EXPECT_THAT(*file.GetStrings("texts").value(), ElementsAre("a", std::string("b\0c", 3), ""));
  EXPECT_THAT(*file.GetFloats("floats").value(), ElementsAre(0.5, -1));
  EXPECT_THAT(*file.GetFloats("ints").value(), ElementsAre(1, -2, 3));
  EXPECT_EQ(file.GetArrayLength("texts").value(), 3u);
  EXPECT_EQ(file.GetInts("absent").value(), std::nullopt);
  EXPECT_THAT(std::string(file.GetInts("u64s").status().message()), HasSubstr("element 0 of u64s does not fit"));
}

TEST(GgufReader, DoesNotTakeHugeArraysIntoMemory) {
  const uint64_t count = limits::kMaxGgufReadElements + 1;
  const std::string bytes =
      GgufBuilder().Raw("k", 9, Bytes<uint32_t>(0) + Bytes(count) + std::string(count, '\0')).Build();
  const auto file = GgufFile::FromBytes(bytes, "m.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string((*file)->GetInts("k").status().message()), HasSubstr("k has 4194305 elements, at most"));
  EXPECT_FALSE((*file)->GetFloats("k").ok());
}

// --- Alignment

TEST(GgufReader, ChecksTheAlignment) {
  for (const uint32_t good : {8u, 64u, 1u << 20}) {
    ExpectAccepted(GgufBuilder().Alignment(good).Tensor("a", {3}, kF32).Tensor("b", {3}, kF32).Build());
  }
  for (const uint32_t bad : {0u, 1u, 4u, 24u, 1u << 21}) {
    ExpectRefused(GgufBuilder().U32("general.alignment", bad).Tensor("a", {8}, kF32).Build(), "general.alignment");
  }
  ExpectRefused(GgufBuilder().U64("general.alignment", 32).Tensor("a", {8}, kF32).Build(), "it must be u32");
  ExpectRefused(Good().OverrideOffset("b", 65).Build(), "tensor 'b': offset 65 is no multiple of 32");
}

// --- Tensor infos

TEST(GgufReader, RefusesBadNames) {
  ExpectRefused(GgufBuilder().Tensor("", {8}, kF32).Build(), "without a name");
  ExpectAccepted(GgufBuilder().Tensor(std::string(63, 't'), {8}, kF32).Build());
  ExpectRefused(GgufBuilder().Tensor(std::string(64, 't'), {8}, kF32).Build(), "at most 63");
  ExpectRefused(GgufBuilder().Tensor("t", {8}, kF32).Tensor("t", {8}, kF32).Build(), "tensor 't' stands twice");
}

TEST(GgufReader, RefusesBadDimensions) {
  ExpectRefused(Good().OverrideDimCount("b", 0).Build(), "tensor 'b' has 0 dimensions");
  ExpectRefused(Good().OverrideDimCount("b", 5).Build(), "tensor 'b' has 5 dimensions");
  ExpectRefused(Good().OverrideDimCount("b", ~0u).Build(), "dimensions, 1 to 4");
  ExpectAccepted(GgufBuilder().Tensor("t", {2, 3, 4, 5}, kF32).Build());
  ExpectRefused(GgufBuilder().Tensor("t", {8, 0}, kF32, "12345678").Build(), "dimension 1 is 0");
  ExpectRefused(GgufBuilder().Tensor("t", {uint64_t{1} << 63}, kF32, "12345678").Build(), "dimension 0 is");
}

TEST(GgufReader, RefusesSizesThatOverflow) {
  const uint64_t big = uint64_t{1} << 32;
  ExpectRefused(GgufBuilder().Tensor("t", {big, big}, kF32, "12345678").Build(), "overflows");
  ExpectRefused(GgufBuilder().Tensor("t", {big, big, big, big}, kF32, "12345678").Build(), "overflows");
  ExpectRefused(GgufBuilder().Tensor("t", {uint64_t{1} << 62}, kF32, "12345678").Build(), "overflows");
  // Fewer bytes than elements: the bytes fit, the element count does not.
  ExpectRefused(GgufBuilder().Tensor("t", {big, uint64_t{1} << 31}, 16, "12345678").Build(), "overflows");
  ExpectRefused(GgufBuilder().Tensor("t", {big}, kF32, "12345678").Build(), "past the end");
}

TEST(GgufReader, RefusesTypesThatAreNotTaken) {
  for (const uint32_t removed : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 99u, ~0u}) {
    ExpectRefused(GgufBuilder().Tensor("t", {256}, removed, std::string(1024, ' ')).Build(),
                  "no tensor type has the id");
  }
  for (const uint32_t other : {9u, 15u, 24u, 28u, 34u, 40u}) {
    ExpectRefused(GgufBuilder().Tensor("t", {256}, other).Build(), "is not supported",
                  absl::StatusCode::kUnimplemented);
  }
  for (const WeightTypeTraits& traits : AllWeightTypes()) {
    if (traits.supported) ExpectAccepted(GgufBuilder().Tensor("t", {256, 2}, traits.id).Build());
  }
}

TEST(GgufReader, RefusesRowsThatSplitABlock) {
  ExpectRefused(GgufBuilder().Tensor("t", {33}, kQ8_0, std::string(68, ' ')).Build(),
                "rows of 33 values are no multiple");
  ExpectRefused(GgufBuilder().Tensor("t", {128, 2}, 12, std::string(144, ' ')).Build(), "Q4_K's block of 256");
}

TEST(GgufReader, RefusesTensorsOutsideTheData) {
  ExpectRefused(Good().OverrideOffset("b", 96).Build(), "tensor 'b': 20 bytes at offset 96 run past");
  ExpectRefused(Good().OverrideOffset("b", uint64_t{1} << 62).Build(), "past the end");
  ExpectRefused(Good().OverrideOffset("b", ~uint64_t{0} - 31).Build(), "past the end");
}

TEST(GgufReader, RefusesOverlaps) {
  ExpectRefused(Good().OverrideOffset("b", 32).Build(), "tensors 'a' and 'b' overlap");
  ExpectRefused(Good().OverrideOffset("b", 0).Build(), "overlap");
  // Another order, and a gap, are fine.
  GgufBuilder swapped;
  swapped.Tensor("a", {8}, kF32).Tensor("b", {8}, kF32).Tensor("c", {8}, kF32);
  ExpectAccepted(swapped.OverrideOffset("a", 64).OverrideOffset("c", 0).Build());
}

TEST(GgufReader, MessagesHoldNoControlCharacters) {
  const absl::Status status = OpenStatus(GgufBuilder().Tensor("a\x1b[31m\n", {8}, 99, "12345678").Build());
  EXPECT_THAT(std::string(status.message()), HasSubstr("'a?[31m?'"));
}

// --- Files

TEST(GgufReader, OpensAFile) {
  const std::string path = WriteTestFile("good.gguf", Good().Build());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->path(), path);
  EXPECT_EQ((*file)->total_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ((*file)->files().size(), 1u);
  EXPECT_TRUE((*file)->CheckUnchanged().ok());
}

TEST(GgufReader, RefusesWhatIsNoFile) {
  EXPECT_EQ(GgufFile::Open(WriteTestFile("x", "") + "-absent").status().code(), absl::StatusCode::kNotFound);
  const std::string empty = WriteTestFile("empty.gguf", "");
  EXPECT_THAT(std::string(GgufFile::Open(empty).status().message()), HasSubstr("empty"));
  const std::string folder = std::filesystem::path(empty).parent_path().string();
  EXPECT_THAT(std::string(GgufFile::Open(folder).status().message()), HasSubstr("not a regular file"));
  const std::string pipe = folder + "/pipe.gguf";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(GgufFile::Open(pipe).status().message()), HasSubstr("not a regular file"));
}

TEST(GgufReader, NoticesThatTheFileWasCutShort) {
  const std::string path = WriteTestFile("cut.gguf", Good().Build());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  EXPECT_EQ((*file)->CheckUnchanged().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string((*file)->CheckUnchanged().message()), HasSubstr("its size changed"));
}

// --- Split sets

class GgufSplits : public ::testing::Test {
 protected:
  // Part `no` (from 0) of three; the first has no tensors and all metadata.
  GgufBuilder Part(uint16_t no) {
    GgufBuilder builder;
    if (no == 0) builder.String("general.architecture", "llama");
    builder.U16("split.no", no).U16("split.count", 3).I32("split.tensors.count", 2);
    if (no == 1) builder.Alignment(64).Tensor("a", {4}, kF32, std::string(16, 'a'));
    if (no == 2) builder.Tensor("b", {4}, kF32, std::string(16, 'b'));
    return builder;
  }
  std::string Write(const std::string& set, uint16_t no, const GgufBuilder& builder) {
    return WriteTestFile(set + "/m-0000" + std::to_string(no + 1) + "-of-00003.gguf", builder.Build());
  }
  std::string WriteAll(const std::string& set) {
    Write(set, 1, Part(1));
    Write(set, 2, Part(2));
    return Write(set, 0, Part(0));
  }
  void ExpectOpenFails(const std::string& path, const std::string& text) {
    const absl::Status status = GgufFile::Open(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
};

TEST_F(GgufSplits, AreOneModel) {
  const auto file = GgufFile::Open(WriteAll("good"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->files().size(), 3u);
  EXPECT_EQ((*file)->FindTensor("a")->split, 1);
  EXPECT_EQ((*file)->FindTensor("b")->split, 2);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((*file)->FindTensor("b")->data), 16), std::string(16, 'b'));
  EXPECT_EQ((*file)->architecture(), "llama");
}

TEST_F(GgufSplits, BeginWithTheFirst) {
  WriteAll("second");
  const std::string second = Write("second", 1, Part(1));
  ExpectOpenFails(second, "this is file 2 of 3; open the first one (...-00001-of-00003.gguf)");
}

TEST_F(GgufSplits, NeedTheirNames) {
  const std::string path = WriteTestFile("names/model.gguf", Part(0).Build());
  ExpectOpenFails(path, "must have a name that ends in -00001-of-00003.gguf");
}

TEST_F(GgufSplits, NeedEveryFile) {
  const std::string first = WriteAll("missing");
  std::filesystem::remove(Write("missing", 2, Part(2)));
  ExpectOpenFails(first, "m-00003-of-00003.gguf: No such file");
}

TEST_F(GgufSplits, MustMatchTheirPlaces) {
  const std::string first = WriteAll("swapped");
  Write("swapped", 1, Part(2));
  ExpectOpenFails(first, "m-00002-of-00003.gguf: split.no 2 and split.count 3 do not match its name");
  GgufBuilder bare;
  bare.Tensor("a", {4}, kF32);
  Write("swapped", 1, bare);
  ExpectOpenFails(first, "split.no -1");
}

TEST_F(GgufSplits, MustAddUp) {
  const std::string first = WriteAll("sum");
  GgufBuilder more = Part(2);
  Write("sum", 2, more.Tensor("c", {4}, kF32));
  ExpectOpenFails(first, "split.tensors.count is 2, the 3 files have 3");
}

TEST_F(GgufSplits, HaveNoTensorTwice) {
  const std::string first = WriteAll("twice");
  GgufBuilder other;
  other.U16("split.no", 2).U16("split.count", 3).Tensor("a", {4}, kF32);
  Write("twice", 2, other);
  ExpectOpenFails(first, "tensor 'a' is in another file of the set");
}

TEST_F(GgufSplits, AreNotTooMany) {
  GgufBuilder builder;
  builder.U16("split.no", 0).U16("split.count", limits::kMaxGgufSplits + 1);
  ExpectOpenFails(WriteTestFile("many/m-00001-of-01001.gguf", builder.Build()), "split.count 1001 is more than");
}

TEST_F(GgufSplits, DamagedSiblingsAreNamed) {
  const std::string first = WriteAll("damaged");
  WriteTestFile("damaged/m-00002-of-00003.gguf", "GGUFGGUFGGUFGGUFGGUFGGUFGGUF");
  ExpectOpenFails(first, "m-00002-of-00003.gguf: ");
}

TEST_F(GgufSplits, ASplitCountOfOneIsNoSplit) {
  GgufBuilder builder;
  builder.U16("split.no", 0).U16("split.count", 1).Tensor("a", {4}, kF32);
  EXPECT_TRUE(GgufFile::Open(WriteTestFile("one/any.gguf", builder.Build())).ok());
}

// --- Seeded damage: whatever the bytes, an answer, never a crash (run under sanitizers this proves more).

uint64_t NextRandom(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

TEST(GgufReader, TenThousandMutationsAreAnsweredCalmly) {
  testing::TinyLlamaOptions options;
  options.layers = 1;
  options.embd = 32;
  options.ff = 32;
  options.vocab = 260;
  options.weight_type = WeightType::kQ4_0;
  const std::string good = testing::BuildTinyLlama(options);
  uint64_t state = 20240607;
  int accepted = 0;
  for (int round = 0; round < 10'000; ++round) {
    const std::string bytes = testing::Mutate(good, [&state] { return NextRandom(&state); });
    accepted += testing::ReadEverything(bytes);
  }
  // Most flips fall into weights and token texts, which are nobody's business here; yet many must be seen.
  EXPECT_GT(accepted, 500);
  EXPECT_LT(accepted, 9'500);
}

}  // namespace
}  // namespace layover
