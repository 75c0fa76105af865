// How numbers and digests lie in the store's files, for the few files that encode and decode them.
#ifndef LAYOVER_COMMON_STORAGE_ON_DISK_H_
#define LAYOVER_COMMON_STORAGE_ON_DISK_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/digest.h"

namespace layover {

static_assert(std::endian::native == std::endian::little, "on-disk structs are copied as they lie in memory");

namespace limits {
inline constexpr int64_t kMaxGeneration = (int64_t{1} << 53) - 1;  // exact also for JSON readers that know only doubles
}

// A digest in its canonical form: the bytes that its hex digits spell.
struct DigestBytes {
  uint8_t bytes[16];

  static DigestBytes Of(const Digest& digest) {
    DigestBytes out;
    for (int i = 0; i < 8; ++i) {
      out.bytes[i] = static_cast<uint8_t>(digest.high >> (56 - 8 * i));
      out.bytes[8 + i] = static_cast<uint8_t>(digest.low >> (56 - 8 * i));
    }
    return out;
  }

  Digest Value() const {
    Digest digest;
    for (int i = 0; i < 8; ++i) {
      digest.high = digest.high << 8 | bytes[i];
      digest.low = digest.low << 8 | bytes[8 + i];
    }
    return digest;
  }
};

template <typename T>
void AppendBytes(std::string* out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// `bytes` must hold offset + sizeof(T).
template <typename T>
T LoadBytes(std::string_view bytes, size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline bool AllZero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_ON_DISK_H_
