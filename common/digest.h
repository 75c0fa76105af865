// XXH3-128, the integrity digest of everything this product stores or compares (not a cryptographic hash: names that an
// attacker may choose go through SHA-256 in common/storage/file_names).
#ifndef LAYOVER_COMMON_DIGEST_H_
#define LAYOVER_COMMON_DIGEST_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace layover {

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;

  auto operator<=>(const Digest&) const = default;
  bool IsZero() const { return high == 0 && low == 0; }
  std::string Hex() const;  // 32 lower-case hex digits, high half first
  static std::optional<Digest> FromHex(std::string_view hex);
};

Digest DigestOf(const void* data, size_t bytes);
inline Digest DigestOf(std::string_view text) { return DigestOf(text.data(), text.size()); }

// Token ids are digested as little-endian uint32, four bytes each.
Digest DigestOfTokens(std::span<const int32_t> ids);

// Streaming: Update(a); Update(b); Value() equals DigestOf(a followed by b). Value() may be asked at any point.
class DigestStream {
 public:
  DigestStream();
  DigestStream(const DigestStream& other);
  DigestStream& operator=(const DigestStream& other);
  DigestStream(DigestStream&&) noexcept;
  DigestStream& operator=(DigestStream&&) noexcept;
  ~DigestStream();

  void Update(const void* data, size_t bytes);
  void UpdateTokens(std::span<const int32_t> ids);
  Digest Value() const;
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace layover

template <>
struct std::hash<layover::Digest> {
  size_t operator()(const layover::Digest& digest) const noexcept { return digest.low; }
};

#endif  // LAYOVER_COMMON_DIGEST_H_
