#include "common/storage/portable_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/on_disk.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr std::string_view kHkdfInfo = "layover portable 1";

// The file may be a link or a pipe: it is the user's own. Never more than the bound is read.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  std::string text(limits::kMaxSecretFileBytes + 1, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(fd.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  if (done > limits::kMaxSecretFileBytes) {
    OPENSSL_cleanse(text.data(), text.size());
    return InvalidArgument("{}: longer than {} bytes", path, limits::kMaxSecretFileBytes);
  }
  OPENSSL_cleanse(text.data() + done, text.size() - done);
  text.resize(done);
  return text;
}

void DropNewline(std::string* text) {
  if (!text->ends_with('\n')) return;
  text->pop_back();
  if (text->ends_with('\r')) text->pop_back();
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Empty if the text is not exactly 64 hex digits.
std::string KeyFromHex(std::string_view text) {
  if (text.size() != 2 * kKeyBytes) return "";
  std::string key(kKeyBytes, '\0');
  for (size_t i = 0; i < kKeyBytes; ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return "";
    key[i] = static_cast<char>(high * 16 + low);
  }
  return key;
}

const uint8_t* Data(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// N, r and p are those that the format fixes. OpenSSL's own memory limit is below what they need.
absl::Status Scrypt(std::string_view passphrase, const Bytes32& salt, Bytes32* key) {
  constexpr uint64_t kN = 1 << 15;
  constexpr uint64_t kR = 8;
  constexpr uint64_t kP = 1;
  constexpr uint64_t kMemory = 2 * 128 * kN * kR;  // twice what the algorithm's table takes
  const int done = EVP_PBE_scrypt(passphrase.data(), passphrase.size(), salt.data(), salt.size(), kN, kR, kP, kMemory,
                                  key->data(), key->size());
  return done == 1 ? absl::OkStatus() : Internal("scrypt failed: no memory for its 32 MiB");
}

struct DerivedKey {
  Bytes32 key;
  Bytes32 check;
  ~DerivedKey() { OPENSSL_cleanse(this, sizeof(*this)); }
};

absl::Status Hkdf(const Bytes32& input, const Bytes32& salt, DerivedKey* out) {
  uint8_t both[64];
  size_t bytes = sizeof(both);
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
  const bool done = context != nullptr && EVP_PKEY_derive_init(context) == 1 &&
                    EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()) == 1 &&
                    EVP_PKEY_CTX_set1_hkdf_salt(context, salt.data(), salt.size()) == 1 &&
                    EVP_PKEY_CTX_set1_hkdf_key(context, input.data(), input.size()) == 1 &&
                    EVP_PKEY_CTX_add1_hkdf_info(context, Data(kHkdfInfo), kHkdfInfo.size()) == 1 &&
                    EVP_PKEY_derive(context, both, &bytes) == 1 && bytes == sizeof(both);
  EVP_PKEY_CTX_free(context);
  if (!done) return Internal("the key derivation failed");
  std::memcpy(out->key.data(), both, 32);
  std::memcpy(out->check.data(), both + 32, 32);
  OPENSSL_cleanse(both, sizeof(both));
  return absl::OkStatus();
}

absl::Status Derive(const PortableSecret& secret, const Bytes32& salt, DerivedKey* out) {
  Bytes32 input{};
  absl::Status status;
  if (secret.source() == KeySource::kPassphrase) {
    status = Scrypt(secret.bytes(), salt, &input);
  } else {
    LAYOVER_CHECK(secret.bytes().size() == input.size());
    std::memcpy(input.data(), secret.bytes().data(), input.size());
  }
  if (status.ok()) status = Hkdf(input, salt, out);
  OPENSSL_cleanse(input.data(), input.size());
  return status;
}

EVP_CIPHER_CTX* Context(void* cipher) {
  return static_cast<EVP_CIPHER_CTX*>(cipher);
}

}  // namespace

PortableSecret::~PortableSecret() {
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

absl::StatusOr<PortableSecret> PortableSecret::FromKeyFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadSecretFile(path));
  std::string key = text.size() == kKeyBytes ? text : "";
  if (key.empty()) {
    DropNewline(&text);
    key = KeyFromHex(text);
  }
  OPENSSL_cleanse(text.data(), text.size());
  if (key.empty()) return InvalidArgument("{}: a key is {} bytes, or {} hex digits", path, kKeyBytes, 2 * kKeyBytes);
  PortableSecret secret(KeySource::kKeyFile, key);
  OPENSSL_cleanse(key.data(), key.size());
  return secret;
}

absl::StatusOr<PortableSecret> PortableSecret::FromPassphraseFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadSecretFile(path));
  DropNewline(&text);
  if (text.empty()) return InvalidArgument("{}: the passphrase is empty", path);
  PortableSecret secret(KeySource::kPassphrase, text);
  OPENSSL_cleanse(text.data(), text.size());
  return secret;
}

absl::StatusOr<ChunkSeal> ChunkSeal::Create(const PortableSecret& secret, const Bytes32& salt, Bytes32* check) {
  ChunkSeal seal;
  *check = {};
  if (secret.source() == KeySource::kNone) return seal;
  DerivedKey derived;
  RETURN_IF_ERROR(Derive(secret, salt, &derived));
  *check = derived.check;
  seal.cipher_ = EVP_CIPHER_CTX_new();
  if (seal.cipher_ == nullptr ||
      EVP_CipherInit_ex(Context(seal.cipher_), EVP_aes_256_gcm(), nullptr, derived.key.data(), nullptr, 1) != 1) {
    return Internal("AES-256-GCM is not to be had");
  }
  return seal;
}

ChunkSeal::ChunkSeal(ChunkSeal&& other) noexcept
    : cipher_(std::exchange(other.cipher_, nullptr)), binding_(other.binding_) {}

ChunkSeal::~ChunkSeal() {
  EVP_CIPHER_CTX_free(Context(cipher_));  // wipes the key; null is fine
}

void ChunkSeal::DigestTrailer(const ChunkNonce& nonce, std::span<const uint8_t> data,
                              std::span<uint8_t, kChunkTrailerBytes> trailer) const {
  DigestStream stream;
  stream.Update(nonce.data(), nonce.size());
  stream.Update(binding_.data(), binding_.size());
  stream.Update(data.data(), data.size());
  const DigestBytes digest = DigestBytes::Of(stream.Value());
  std::memcpy(trailer.data(), digest.bytes, trailer.size());
}

absl::Status ChunkSeal::Seal(const ChunkNonce& nonce, std::span<uint8_t> data,
                             std::span<uint8_t, kChunkTrailerBytes> trailer) {
  if (cipher_ == nullptr) {
    DigestTrailer(nonce, data, trailer);
    return absl::OkStatus();
  }
  EVP_CIPHER_CTX* context = Context(cipher_);
  int bytes = 0;
  int rest = 0;
  const bool done =
      EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), 1) == 1 &&
      EVP_CipherUpdate(context, nullptr, &bytes, binding_.data(), static_cast<int>(binding_.size())) == 1 &&
      EVP_CipherUpdate(context, data.data(), &bytes, data.data(), static_cast<int>(data.size())) == 1 &&
      EVP_CipherFinal_ex(context, data.data() + bytes, &rest) == 1 && static_cast<size_t>(bytes) == data.size() &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, kChunkTrailerBytes, trailer.data()) == 1;
  return done ? absl::OkStatus() : Internal("AES-256-GCM failed");
}

bool ChunkSeal::Open(const ChunkNonce& nonce, std::span<uint8_t> data,
                     std::span<const uint8_t, kChunkTrailerBytes> trailer) {
  if (cipher_ == nullptr) {
    uint8_t expected[kChunkTrailerBytes];
    DigestTrailer(nonce, data, expected);
    return std::equal(trailer.begin(), trailer.end(), expected);
  }
  EVP_CIPHER_CTX* context = Context(cipher_);
  uint8_t tag[kChunkTrailerBytes];
  std::copy(trailer.begin(), trailer.end(), tag);
  int bytes = 0;
  int rest = 0;
  return EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), 0) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, sizeof(tag), tag) == 1 &&
         EVP_CipherUpdate(context, nullptr, &bytes, binding_.data(), static_cast<int>(binding_.size())) == 1 &&
         EVP_CipherUpdate(context, data.data(), &bytes, data.data(), static_cast<int>(data.size())) == 1 &&
         EVP_CipherFinal_ex(context, data.data() + bytes, &rest) == 1 && static_cast<size_t>(bytes) == data.size();
}

Bytes32 PortableBinding(std::string_view header, std::string_view head) {
  Bytes32 digest;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  unsigned bytes = 0;
  LAYOVER_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1 &&
                EVP_DigestUpdate(context, header.data(), header.size()) == 1 &&
                EVP_DigestUpdate(context, head.data(), head.size()) == 1 &&
                EVP_DigestFinal_ex(context, digest.data(), &bytes) == 1 && bytes == digest.size());
  EVP_MD_CTX_free(context);
  return digest;
}

Bytes32 RandomSalt32() {
  Bytes32 salt;
  LAYOVER_CHECK(getrandom(salt.data(), salt.size(), 0) == static_cast<ssize_t>(salt.size()));
  return salt;
}

}  // namespace layover
