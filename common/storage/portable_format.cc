#include "common/storage/portable_format.h"

#include <bit>
#include <cstring>

#include "common/status.h"
#include "common/storage/on_disk.h"

namespace layover {
namespace {

constexpr uint32_t kScryptLog2N = 15;
constexpr uint32_t kScryptR = 8;
constexpr uint32_t kScryptP = 1;

struct HeaderBytes {
  char magic[8];
  uint32_t version;
  uint32_t cipher;
  uint32_t key_source;
  uint32_t scrypt_log2_n;
  uint32_t scrypt_r;
  uint32_t scrypt_p;
  uint32_t chunk_bytes;
  uint32_t zero;
  uint64_t head_bytes;
  uint8_t salt[32];
  uint8_t key_check[32];
  DigestBytes digest;
};
static_assert(sizeof(HeaderBytes) == kPortableHeaderBytes);

struct HeadBytes {
  uint64_t journal_bytes;
  uint32_t manifest_bytes;
  uint32_t owner_bytes;
  uint32_t id_bytes;
  uint32_t zero;
};
static_assert(sizeof(HeadBytes) == 24);

struct NonceBytes {
  uint32_t part;
  uint32_t counter;
  uint32_t last;
};
static_assert(sizeof(NonceBytes) == sizeof(ChunkNonce));

bool IsZero(const Bytes32& bytes) {
  return bytes == Bytes32{};
}

// What the values of a header with the right digest may be.
absl::Status CheckValues(const HeaderBytes& in) {
  const bool with_passphrase = in.key_source == static_cast<uint32_t>(KeySource::kPassphrase);
  const bool sources_fit = in.cipher <= 1 && in.key_source <= 2 && (in.cipher == 0) == (in.key_source == 0);
  const bool scrypt_fits = with_passphrase
                               ? in.scrypt_log2_n == kScryptLog2N && in.scrypt_r == kScryptR && in.scrypt_p == kScryptP
                               : in.scrypt_log2_n == 0 && in.scrypt_r == 0 && in.scrypt_p == 0;
  if (!sources_fit || !scrypt_fits) {
    return DataLoss("the header says cipher {}, key source {}, scrypt {}, {}, {}", in.cipher, in.key_source,
                    in.scrypt_log2_n, in.scrypt_r, in.scrypt_p);
  }
  if (!std::has_single_bit(in.chunk_bytes) || in.chunk_bytes < limits::kMinPortableChunkBytes ||
      in.chunk_bytes > limits::kMaxPortableChunkBytes) {
    return DataLoss("the header says chunks of {} bytes", in.chunk_bytes);
  }
  if (in.head_bytes < sizeof(HeadBytes) || in.head_bytes > kMaxPortableHeadBytes) {
    return DataLoss("the header says a head of {} bytes", in.head_bytes);
  }
  if (in.zero != 0) return DataLoss("the header is not zero where it must be");
  return absl::OkStatus();
}

#define LAYOVER_FIELD(Struct, field)                       \
  FieldSpec {                                              \
#field, offsetof(Struct, field), sizeof(Struct::field) \
  }

}  // namespace

std::string EncodePortableHeader(const PortableHeader& header) {
  HeaderBytes out{};
  std::memcpy(out.magic, kPortableMagic, sizeof(out.magic));
  out.version = kPortableVersion;
  out.cipher = static_cast<uint32_t>(header.cipher);
  out.key_source = static_cast<uint32_t>(header.key_source);
  if (header.key_source == KeySource::kPassphrase) {
    out.scrypt_log2_n = kScryptLog2N;
    out.scrypt_r = kScryptR;
    out.scrypt_p = kScryptP;
  }
  out.chunk_bytes = header.chunk_bytes;
  out.head_bytes = header.head_bytes;
  std::memcpy(out.salt, header.salt.data(), sizeof(out.salt));
  std::memcpy(out.key_check, header.key_check.data(), sizeof(out.key_check));
  out.digest = DigestBytes::Of(DigestOf(&out, offsetof(HeaderBytes, digest)));
  std::string bytes;
  AppendBytes(&bytes, out);
  return bytes;
}

absl::StatusOr<PortableHeader> DecodePortableHeader(std::string_view bytes) {
  if (bytes.size() != kPortableHeaderBytes) return DataLoss("the header is cut short");
  const auto in = LoadBytes<HeaderBytes>(bytes, 0);
  if (std::memcmp(in.magic, kPortableMagic, sizeof(in.magic)) != 0) return DataLoss("it is not a portable file");
  if (DigestOf(&in, offsetof(HeaderBytes, digest)) != in.digest.Value()) {
    return DataLoss("the header is damaged: its digest differs");
  }
  if (in.version != kPortableVersion) {
    return DataLoss("the header has version {}, this program reads {}", in.version, kPortableVersion);
  }
  RETURN_IF_ERROR(CheckValues(in));
  PortableHeader header;
  header.cipher = static_cast<PortableCipher>(in.cipher);
  header.key_source = static_cast<KeySource>(in.key_source);
  header.chunk_bytes = in.chunk_bytes;
  header.head_bytes = in.head_bytes;
  std::memcpy(header.salt.data(), in.salt, sizeof(in.salt));
  std::memcpy(header.key_check.data(), in.key_check, sizeof(in.key_check));
  if (header.cipher == PortableCipher::kNone && !IsZero(header.key_check)) {
    return DataLoss("the header is not zero where it must be");
  }
  return header;
}

std::string EncodePortableHead(const PortableHead& head) {
  std::string out;
  AppendBytes(&out, HeadBytes{head.journal_bytes, static_cast<uint32_t>(head.manifest.size()),
                              static_cast<uint32_t>(head.owner.size()), static_cast<uint32_t>(head.id.size()), 0});
  return out + head.owner + head.id + head.manifest;
}

absl::StatusOr<PortableHead> DecodePortableHead(std::string_view bytes) {
  if (bytes.size() < sizeof(HeadBytes)) return DataLoss("the head is cut short");
  const auto in = LoadBytes<HeadBytes>(bytes, 0);
  const bool bounded = in.journal_bytes >= 1 && in.journal_bytes <= limits::kMaxJournalBytes &&
                       in.manifest_bytes <= limits::kMaxManifestBytes && in.id_bytes >= 1 &&
                       in.owner_bytes <= limits::kMaxStoredNameBytes && in.id_bytes <= limits::kMaxConversationIdBytes;
  const uint64_t total = sizeof(HeadBytes) + uint64_t{in.owner_bytes} + in.id_bytes + in.manifest_bytes;
  if (!bounded || in.zero != 0 || total != bytes.size()) {
    return DataLoss("the head says a journal of {} bytes, a manifest of {}, names of {} and {}", in.journal_bytes,
                    in.manifest_bytes, in.owner_bytes, in.id_bytes);
  }
  const std::string_view names = bytes.substr(sizeof(HeadBytes));
  return PortableHead{in.journal_bytes, std::string(names.substr(0, in.owner_bytes)),
                      std::string(names.substr(in.owner_bytes, in.id_bytes)),
                      std::string(names.substr(in.owner_bytes + in.id_bytes))};
}

ChunkNonce MakeChunkNonce(PortablePart part, uint32_t counter, bool last) {
  const NonceBytes fields{static_cast<uint32_t>(part), counter, last ? 1u : 0u};
  ChunkNonce nonce;
  std::memcpy(nonce.data(), &fields, sizeof(fields));
  return nonce;
}

uint64_t SealedBytes(uint64_t bytes, uint32_t chunk_bytes) {
  return bytes + (bytes + chunk_bytes - 1) / chunk_bytes * kChunkTrailerBytes;
}

std::span<const FieldSpec> PortableHeaderFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(HeaderBytes, magic),         LAYOVER_FIELD(HeaderBytes, version),
      LAYOVER_FIELD(HeaderBytes, cipher),        LAYOVER_FIELD(HeaderBytes, key_source),
      LAYOVER_FIELD(HeaderBytes, scrypt_log2_n), LAYOVER_FIELD(HeaderBytes, scrypt_r),
      LAYOVER_FIELD(HeaderBytes, scrypt_p),      LAYOVER_FIELD(HeaderBytes, chunk_bytes),
      LAYOVER_FIELD(HeaderBytes, zero),          LAYOVER_FIELD(HeaderBytes, head_bytes),
      LAYOVER_FIELD(HeaderBytes, salt),          LAYOVER_FIELD(HeaderBytes, key_check),
      LAYOVER_FIELD(HeaderBytes, digest)};
  return kFields;
}

std::span<const FieldSpec> PortableHeadFields() {
  static constexpr std::array kFields = {
      LAYOVER_FIELD(HeadBytes, journal_bytes), LAYOVER_FIELD(HeadBytes, manifest_bytes),
      LAYOVER_FIELD(HeadBytes, owner_bytes), LAYOVER_FIELD(HeadBytes, id_bytes), LAYOVER_FIELD(HeadBytes, zero)};
  return kFields;
}

std::span<const FieldSpec> ChunkNonceFields() {
  static constexpr std::array kFields = {LAYOVER_FIELD(NonceBytes, part), LAYOVER_FIELD(NonceBytes, counter),
                                         LAYOVER_FIELD(NonceBytes, last)};
  return kFields;
}

}  // namespace layover
