// Statuses with parts, and the digest everything is compared by.
#include "common/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "common/digest.h"

namespace layover {
namespace {

TEST(Status, CarriesItsPart) {
  const absl::Status plain = DataLoss("cut at byte {}", 7);
  EXPECT_EQ(PartOf(plain), std::nullopt);
  const absl::Status status = WithPart(plain, {.file = "s01-g000017.seg", .stage = 1, .field = "weights"});
  EXPECT_EQ(status.message(), plain.message());
  const std::optional<StatusPart> part = PartOf(status);
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->file, "s01-g000017.seg");
  EXPECT_EQ(part->stage, 1);
  EXPECT_EQ(part->field, "weights");
  EXPECT_EQ(part->param, "");
  EXPECT_EQ(part->code, "");
}

TEST(Status, ErrnoHasTheCodeItDeserves) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "write x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EIO, "read x").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(ErrnoStatus(ENOENT, "open x").message()), "open x: No such file or directory");
}

// The published test value of XXH3-128 for no input.
TEST(Digest, IsXxh3) {
  EXPECT_EQ(DigestOf("").Hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Digest, StreamsEqualOneShot) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{63}, size_t{1024}, text.size()}) {
    DigestStream stream;
    stream.Update(text.data(), cut);
    DigestStream copy = stream;
    stream.Update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(stream.Value(), DigestOf(text));
    EXPECT_EQ(copy.Value(), DigestOf(std::string_view(text).substr(0, cut)));
  }
}

TEST(Digest, TokensAreFourBytesLittleEndian) {
  const std::vector<int32_t> ids = {1, 0x01020304, -1};
  EXPECT_EQ(DigestOfTokens(ids), DigestOf(std::string_view("\1\0\0\0\4\3\2\1\xff\xff\xff\xff", 12)));
}

TEST(Digest, HexGoesBothWays) {
  const Digest digest{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(digest.Hex(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(Digest::FromHex(digest.Hex()), digest);
  for (const char* bad : {"", "0123456789abcdeffedcba987654321", "0123456789abcdeffedcba98765432100",
                          "0123456789ABCDEFfedcba9876543210", "g123456789abcdeffedcba9876543210"}) {
    EXPECT_EQ(Digest::FromHex(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace layover
