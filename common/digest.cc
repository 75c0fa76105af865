#include "common/digest.h"

#include <bit>

#include "fmt/format.h"
#define XXH_STATIC_LINKING_ONLY
#include "xxhash.h"

namespace layover {

static_assert(std::endian::native == std::endian::little, "token ids are digested as they lie in memory");

struct DigestStream::State {
  // XXH3_state_t wants 64-byte alignment, which operator new gives for an over-aligned type.
  XXH3_state_t xxh;
};

std::string Digest::Hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<Digest> Digest::FromHex(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  uint64_t halves[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const char c = hex[i];
    int value;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    halves[i / 16] = halves[i / 16] << 4 | static_cast<uint64_t>(value);
  }
  return Digest{halves[0], halves[1]};
}

Digest DigestOf(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return Digest{hash.high64, hash.low64};
}

Digest DigestOfTokens(std::span<const int32_t> ids) { return DigestOf(ids.data(), ids.size_bytes()); }

DigestStream::DigestStream() : state_(std::make_unique<State>()) { Reset(); }
DigestStream::DigestStream(const DigestStream& other) : state_(std::make_unique<State>(*other.state_)) {}
DigestStream& DigestStream::operator=(const DigestStream& other) {
  *state_ = *other.state_;
  return *this;
}
DigestStream::DigestStream(DigestStream&&) noexcept = default;
DigestStream& DigestStream::operator=(DigestStream&&) noexcept = default;
DigestStream::~DigestStream() = default;

void DigestStream::Update(const void* data, size_t bytes) { XXH3_128bits_update(&state_->xxh, data, bytes); }
void DigestStream::UpdateTokens(std::span<const int32_t> ids) { Update(ids.data(), ids.size_bytes()); }

Digest DigestStream::Value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return Digest{hash.high64, hash.low64};
}

void DigestStream::Reset() { XXH3_128bits_reset(&state_->xxh); }

}  // namespace layover
