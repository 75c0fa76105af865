// The portable file itself: header, head, chunks and keys. What is in it: portable_transfer_test.cc.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "common/status.h"
#include "common/storage/on_disk.h"
#include "fmt/format.h"
#include "tests/storage/portable_fixture.h"
#include "tests/storage/storage_exercise.h"

namespace layover {
namespace {

namespace fs = std::filesystem;
using testing::Noise;
using testing::PortableParts;
using testing::ReadFile;
using testing::SampleKey;
using testing::SamplePassphrase;
using testing::TempFolder;
using testing::WriteFile;
using testing::WritePortable;

constexpr uint32_t kSmallChunk = limits::kMinPortableChunkBytes;

// Reads all of a file. The body is as long as the parts'.
absl::Status ReadAll(const std::string& file, const PortableSecret& secret, const PortableParts& expected) {
  ASSIGN_OR_RETURN(const auto reader, PortableReader::Open(file, secret));
  EXPECT_EQ(reader->head(), expected.head);
  uint64_t body_bytes = 0;
  for (const std::string& part : expected.body) body_bytes += part.size();
  RETURN_IF_ERROR(reader->ExpectBody(body_bytes));
  for (const std::string& part : expected.body) {
    std::string got(part.size(), '\0');
    RETURN_IF_ERROR(reader->Read(std::as_writable_bytes(std::span(got))));
    EXPECT_EQ(got, part);
  }
  return absl::OkStatus();
}

class PortableFileTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name) const { return temp_.path() + "/" + name; }

  // Parts of all lengths around a chunk's.
  PortableParts Sample() const {
    PortableParts parts;
    parts.body = {Noise(1, 700), Noise(2, kSmallChunk), "x", Noise(3, kSmallChunk - 1)};
    parts.head = {parts.body[0].size(), "ann", "chat", Noise(4, 300)};
    return parts;
  }

  TempFolder temp_;
};

TEST_F(PortableFileTest, WhatIsWrittenIsRead) {
  for (const PortableSecret& secret : {PortableSecret(), SampleKey(), SamplePassphrase()}) {
    const std::string file = File("a");
    ASSERT_OK(WritePortable(file, Sample(), secret, {kSmallChunk, {}}));
    EXPECT_OK(ReadAll(file, secret, Sample()));
    struct stat info;
    ASSERT_EQ(stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
    uint64_t body = 0;
    for (const std::string& part : Sample().body) body += part.size();
    EXPECT_EQ(fs::file_size(file), kPortableHeaderBytes +
                                       SealedBytes(EncodePortableHead(Sample().head).size(), kSmallChunk) +
                                       SealedBytes(body, kSmallChunk));
    EXPECT_EQ(std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator()), 1) << "temporary left";
  }
}

TEST_F(PortableFileTest, BodiesThatEndOnAChunk) {
  for (const size_t bytes :
       {size_t{1}, size_t{kSmallChunk - 1}, size_t{kSmallChunk}, size_t{kSmallChunk + 1}, size_t{2 * kSmallChunk}}) {
    const PortableParts parts{{bytes, "", "c", ""}, {Noise(bytes, bytes)}};
    ASSERT_OK(WritePortable(File("a"), parts, SampleKey(), {kSmallChunk, {}}));
    EXPECT_OK(ReadAll(File("a"), SampleKey(), parts));
  }
}

TEST_F(PortableFileTest, EncryptionHidesAndDiffersEachTime) {
  PortableParts parts = Sample();
  parts.body[1] = std::string(kSmallChunk, 'A');
  ASSERT_OK(WritePortable(File("plain"), parts, {}));
  ASSERT_OK(WritePortable(File("a"), parts, SampleKey()));
  ASSERT_OK(WritePortable(File("b"), parts, SampleKey()));
  EXPECT_NE(ReadFile(File("plain")).find("AAAAAAAA"), std::string::npos);
  EXPECT_EQ(ReadFile(File("a")).find("AAAAAAAA"), std::string::npos);
  EXPECT_NE(ReadFile(File("a")).substr(kPortableHeaderBytes), ReadFile(File("b")).substr(kPortableHeaderBytes));
}

TEST_F(PortableFileTest, AFileThatIsThereIsNotOverwritten) {
  WriteFile(File("a"), "mine");
  const auto writer = PortableWriter::Create(File("a"), {}, Sample().head, 1);
  EXPECT_TRUE(absl::IsAlreadyExists(writer.status())) << writer.status();
  EXPECT_EQ(ReadFile(File("a")), "mine");
}

TEST_F(PortableFileTest, AnUnfinishedFileIsRemoved) {
  {
    const auto writer = PortableWriter::Create(File("a"), {}, Sample().head, 5000);
    ASSERT_OK(writer);
    ASSERT_OK((*writer)->Append("some"));
  }
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

// ------------------------------------------------------------------------------------------------------------- keys

TEST_F(PortableFileTest, AnotherKeyIsRefused) {
  ASSERT_OK(WritePortable(File("key"), Sample(), SampleKey()));
  ASSERT_OK(WritePortable(File("pass"), Sample(), SamplePassphrase()));
  ASSERT_OK(WritePortable(File("plain"), Sample(), {}));
  const PortableSecret other(KeySource::kPassphrase, "correct horse battery stable");
  const auto code = [&](const char* file, const PortableSecret& secret) {
    return PortableReader::Open(File(file), secret).status().code();
  };
  EXPECT_EQ(code("key", SampleKey('l')), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code("pass", other), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code("key", {}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("pass", SampleKey()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("key", SamplePassphrase()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("plain", SampleKey()), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("none", {}), absl::StatusCode::kNotFound);
}

TEST_F(PortableFileTest, KeyFiles) {
  const std::string raw = Noise(9, 32);
  std::string hex;
  for (const char c : raw) hex += fmt::format("{:02X}", static_cast<uint8_t>(c));
  for (const std::string& text : {raw, hex, hex + "\n", hex + "\r\n"}) {
    WriteFile(File("key"), text);
    const absl::StatusOr<PortableSecret> secret = PortableSecret::FromKeyFile(File("key"));
    ASSERT_OK(secret);
    EXPECT_EQ(secret->bytes(), raw);
    EXPECT_EQ(secret->source(), KeySource::kKeyFile);
  }
  for (const std::string& text :
       {std::string(), raw + "x", raw.substr(1), hex.substr(1), hex.substr(1) + "g", hex + "\n\n"}) {
    WriteFile(File("key"), text);
    const absl::Status status = PortableSecret::FromKeyFile(File("key")).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.ToString().find(File("key")), std::string::npos);
    EXPECT_TRUE(text.empty() || status.ToString().find(text) == std::string::npos) << "a secret in a message";
  }
  EXPECT_TRUE(absl::IsNotFound(PortableSecret::FromKeyFile(File("nothing")).status()));
}

TEST_F(PortableFileTest, PassphraseFiles) {
  const std::pair<std::string, std::string> kRows[] = {
      {"a b\n", "a b"}, {"a b", "a b"}, {"a\r\n", "a"}, {"a\n\n", "a\n"}, {" a ", " a "}};
  for (const auto& [text, passphrase] : kRows) {
    WriteFile(File("pass"), text);
    const absl::StatusOr<PortableSecret> secret = PortableSecret::FromPassphraseFile(File("pass"));
    ASSERT_OK(secret);
    EXPECT_EQ(secret->bytes(), passphrase);
  }
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string(limits::kMaxSecretFileBytes + 1, 'a')}) {
    WriteFile(File("pass"), text);
    EXPECT_TRUE(absl::IsInvalidArgument(PortableSecret::FromPassphraseFile(File("pass")).status()));
  }
}

// ----------------------------------------------------------------------------------------------------------- damage

// Every byte of a file, with and without a cipher.
TEST_F(PortableFileTest, EveryFlippedByteIsRefused) {
  const std::string file = File("a");
  for (const PortableSecret& secret : {PortableSecret(), SampleKey()}) {
    ASSERT_OK(WritePortable(file, Sample(), secret, {kSmallChunk, {}}));
    const std::string good = ReadFile(file);
    const int fd = open(file.c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    for (size_t at = 0; at < good.size(); ++at) {
      const char flipped = static_cast<char>(good[at] ^ (1 << at % 8));
      ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(at)), 1);
      const absl::Status status = ReadAll(file, secret, Sample());
      ASSERT_TRUE(absl::IsDataLoss(status)) << at << ": " << status;
      ASSERT_EQ(pwrite(fd, &good[at], 1, static_cast<off_t>(at)), 1);
    }
    close(fd);
    EXPECT_OK(ReadAll(file, secret, Sample()));
  }
}

TEST_F(PortableFileTest, EveryOtherLengthIsRefused) {
  ASSERT_OK(WritePortable(File("a"), Sample(), SampleKey(), {kSmallChunk, {}}));
  const std::string good = ReadFile(File("a"));
  for (size_t bytes = 0; bytes < good.size(); bytes += bytes < 200 ? 1 : 37) {
    WriteFile(File("a"), good.substr(0, bytes));
    EXPECT_TRUE(absl::IsDataLoss(ReadAll(File("a"), SampleKey(), Sample()))) << bytes;
  }
  // The last chunk gone, so that the file ends with a whole one; one more chunk; one more byte.
  const size_t chunk = kSmallChunk + kChunkTrailerBytes;
  for (const std::string& bad :
       {good.substr(0, good.size() - chunk), good + good.substr(good.size() - chunk), good + "x"}) {
    WriteFile(File("a"), bad);
    EXPECT_TRUE(absl::IsDataLoss(ReadAll(File("a"), SampleKey(), Sample())));
  }
}

// Whole chunks in another place, or of another file with the same key: each by itself is genuine.
TEST_F(PortableFileTest, MovedAndForeignChunksAreRefused) {
  for (const PortableSecret& secret : {PortableSecret(), SampleKey()}) {
    ASSERT_OK(WritePortable(File("a"), Sample(), secret, {kSmallChunk, {}}));
    ASSERT_OK(WritePortable(File("b"), Sample(), secret, {kSmallChunk, {}}));
    const std::string a = ReadFile(File("a"));
    const std::string b = ReadFile(File("b"));
    const size_t chunk = kSmallChunk + kChunkTrailerBytes;
    const size_t body = kPortableHeaderBytes + SealedBytes(EncodePortableHead(Sample().head).size(), kSmallChunk);
    const std::string swapped =
        a.substr(0, body) + a.substr(body + chunk, chunk) + a.substr(body, chunk) + a.substr(body + 2 * chunk);
    const std::string foreign = a.substr(0, body) + b.substr(body, chunk) + a.substr(body + chunk);
    const std::string foreign_head = a.substr(0, kPortableHeaderBytes) +
                                     b.substr(kPortableHeaderBytes, body - kPortableHeaderBytes) + a.substr(body);
    const std::string foreign_header = b.substr(0, kPortableHeaderBytes) + a.substr(kPortableHeaderBytes);
    for (const std::string& bad : {swapped, foreign, foreign_head, foreign_header}) {
      ASSERT_EQ(bad.size(), a.size());
      WriteFile(File("c"), bad);
      EXPECT_TRUE(absl::IsDataLoss(ReadAll(File("c"), secret, Sample())));
    }
  }
}

// With a right digest over wrong values: nothing is allocated by them, and what is accepted is what would be written.
TEST_F(PortableFileTest, HostileHeadersAndHeads) {
  std::mt19937_64 generator(7);
  const auto next = [&] { return generator(); };
  PortableHeader header;
  header.cipher = PortableCipher::kAes256Gcm;
  header.key_source = KeySource::kPassphrase;
  header.head_bytes = 1000;
  const std::string good_header = EncodePortableHeader(header);
  EXPECT_EQ(*DecodePortableHeader(good_header), header);
  const PortableHead head{77, "ann", "chat", "text"};
  const std::string good_head = EncodePortableHead(head);
  EXPECT_EQ(*DecodePortableHead(good_head), head);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = testing::MutateBytes(good_header, next);
    if (bytes.size() >= kPortableHeaderBytes) {
      const DigestBytes digest = DigestBytes::Of(DigestOf(bytes.data(), 112));
      std::memcpy(bytes.data() + 112, &digest, sizeof(digest));
    }
    const absl::StatusOr<PortableHeader> decoded = DecodePortableHeader(bytes);
    if (decoded.ok()) {
      EXPECT_EQ(EncodePortableHeader(*decoded), bytes);
    }
    accepted += decoded.ok();
    const std::string mutated_head = testing::MutateBytes(good_head, next);
    const absl::StatusOr<PortableHead> decoded_head = DecodePortableHead(mutated_head);
    if (decoded_head.ok()) {
      EXPECT_EQ(EncodePortableHead(*decoded_head), mutated_head);
    }
  }
  EXPECT_GT(accepted, 0) << "the salt may change";
  EXPECT_LT(accepted, 15'000);
}

// A head of the greatest length in a short file: refused before room for it is made.
TEST_F(PortableFileTest, ALongHeadInAShortFile) {
  PortableHeader header;
  header.head_bytes = kMaxPortableHeadBytes;
  WriteFile(File("a"), EncodePortableHeader(header) + "short");
  EXPECT_TRUE(absl::IsDataLoss(PortableReader::Open(File("a"), {}).status()));
}

TEST_F(PortableFileTest, OnlyRegularFilesAreRead) {
  ASSERT_EQ(mkfifo(File("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(PortableReader::Open(File("pipe"), {}).ok());
  EXPECT_FALSE(PortableReader::Open(temp_.path(), {}).ok());
}

}  // namespace
}  // namespace layover
