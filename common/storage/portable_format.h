// The bytes of a portable file: docs/storage_format.md section 7 in code. Pure functions on memory; portable_stream.h
// reads and writes the file.
//
//   header | head, in chunks | body, in chunks
#ifndef LAYOVER_COMMON_STORAGE_PORTABLE_FORMAT_H_
#define LAYOVER_COMMON_STORAGE_PORTABLE_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/limits.h"
#include "common/storage/segment_format.h"

namespace layover {

inline constexpr uint32_t kPortableVersion = 1;
inline constexpr char kPortableMagic[8] = {'L', 'A', 'Y', 'O', 'P', 'R', 'T', '1'};
inline constexpr size_t kPortableHeaderBytes = 128;
inline constexpr size_t kChunkTrailerBytes = 16;

using Bytes32 = std::array<uint8_t, 32>;

enum class PortableCipher : uint32_t { kNone = 0, kAes256Gcm = 1 };
enum class KeySource : uint32_t { kNone = 0, kKeyFile = 1, kPassphrase = 2 };

struct PortableHeader {
  PortableCipher cipher = PortableCipher::kNone;
  KeySource key_source = KeySource::kNone;
  uint32_t chunk_bytes = limits::kMaxPortableChunkBytes;
  uint64_t head_bytes = 0;  // without trailers
  Bytes32 salt{};
  Bytes32 key_check{};
  bool operator==(const PortableHeader&) const = default;
};
std::string EncodePortableHeader(const PortableHeader& header);  // kPortableHeaderBytes
// DataLoss if any rule of the page is broken. `bytes`: kPortableHeaderBytes.
absl::StatusOr<PortableHeader> DecodePortableHeader(std::string_view bytes);

struct PortableHead {
  uint64_t journal_bytes = 0;
  std::string owner;
  std::string id;
  std::string manifest;  // text of manifest.json; empty: never saved
  bool operator==(const PortableHead&) const = default;
};
std::string EncodePortableHead(const PortableHead& head);
absl::StatusOr<PortableHead> DecodePortableHead(std::string_view bytes);
inline constexpr uint64_t kMaxPortableHeadBytes =
    24 + limits::kMaxStoredNameBytes + limits::kMaxConversationIdBytes + limits::kMaxManifestBytes;

enum class PortablePart : uint32_t { kHead = 1, kBody = 2 };
using ChunkNonce = std::array<uint8_t, 12>;
ChunkNonce MakeChunkNonce(PortablePart part, uint32_t counter, bool last);

// A part's length in the file, trailers included.
uint64_t SealedBytes(uint64_t bytes, uint32_t chunk_bytes);

std::span<const FieldSpec> PortableHeaderFields();
std::span<const FieldSpec> PortableHeadFields();
std::span<const FieldSpec> ChunkNonceFields();

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_PORTABLE_FORMAT_H_
