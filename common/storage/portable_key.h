// Keys of portable files: where they come from, and what is derived from them for one file.
//
// What holds a secret wipes it when it goes. Errors of a secret's file name the file, never its content.
#ifndef LAYOVER_COMMON_STORAGE_PORTABLE_KEY_H_
#define LAYOVER_COMMON_STORAGE_PORTABLE_KEY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/portable_format.h"

namespace layover {

// What the user gave: nothing, a key of 32 bytes, or a passphrase.
class PortableSecret {
 public:
  PortableSecret() = default;
  PortableSecret(KeySource source, std::string bytes) : source_(source), bytes_(std::move(bytes)) {}
  PortableSecret(const PortableSecret&) = default;
  PortableSecret& operator=(const PortableSecret&) = default;
  ~PortableSecret();

  // 32 raw bytes, or 64 hex digits and perhaps a newline.
  static absl::StatusOr<PortableSecret> FromKeyFile(const std::string& path);
  // All of the file but one newline at its end.
  static absl::StatusOr<PortableSecret> FromPassphraseFile(const std::string& path);

  KeySource source() const { return source_; }
  std::string_view bytes() const { return bytes_; }

 private:
  KeySource source_ = KeySource::kNone;
  std::string bytes_;
};

// Puts trailers on chunks and checks them: encrypting, if there is a key.
class ChunkSeal {
 public:
  // The file's own key from the secret and the salt; `check` becomes the header's key_check.
  static absl::StatusOr<ChunkSeal> Create(const PortableSecret& secret, const Bytes32& salt, Bytes32* check);
  ChunkSeal(ChunkSeal&& other) noexcept;
  ~ChunkSeal();

  // What the chunks that follow are bound to.
  void Bind(const Bytes32& binding) { binding_ = binding; }
  // `data` is encrypted where it lies.
  absl::Status Seal(const ChunkNonce& nonce, std::span<uint8_t> data, std::span<uint8_t, kChunkTrailerBytes> trailer);
  // Decrypts where it lies; false: the trailer is not this chunk's, and `data` is of no use.
  bool Open(const ChunkNonce& nonce, std::span<uint8_t> data, std::span<const uint8_t, kChunkTrailerBytes> trailer);

 private:
  ChunkSeal() = default;
  void DigestTrailer(const ChunkNonce& nonce, std::span<const uint8_t> data,
                     std::span<uint8_t, kChunkTrailerBytes> trailer) const;

  void* cipher_ = nullptr;  // OpenSSL's context with the key set; null: no cipher
  Bytes32 binding_{};
};

// The SHA-256 of the header, or of header and head.
Bytes32 PortableBinding(std::string_view header, std::string_view head);

Bytes32 RandomSalt32();

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_PORTABLE_KEY_H_
