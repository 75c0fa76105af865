// The bytes of one GGUF file to keys, values and tensors. Everything in the file is hostile until checked: see the
// rules at the top of reader.h, which holds the files together and gives the values types.
#ifndef LAYOVER_COMMON_GGUF_HEADER_PARSER_H_
#define LAYOVER_COMMON_GGUF_HEADER_PARSER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace layover {

struct GgufTensor {
  std::string name;
  uint32_t type = 0;                           // id of WeightTypeInfo, always one that is supported
  int n_dims = 0;                              // as written, 1 to 4
  std::array<int64_t, 4> dims = {1, 1, 1, 1};  // dims[0] is the contiguous one: {in, out, ...}
  uint64_t bytes = 0;
  const std::byte* data = nullptr;  // in the map; no alignment beyond the block's own
  int split = 0;                    // index of the file that holds it
};

// GGUF's value types by id.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view GgufTypeName(GgufType type);  // "u32"

// A metadata value, known to lie inside the file.
struct GgufValue {
  GgufType type = GgufType::kU8;  // of the value, or of an array's elements; never kArray
  bool is_array = false;
  uint64_t count = 1;  // elements
  const std::byte* data = nullptr;
};

// Reads on from `*at`, which lies in a checked value, and moves it behind what was read.
int64_t ReadGgufInt(GgufType type, const std::byte** at, bool* fits);  // any integer type or bool; u64 above i64: !fits
double ReadGgufFloat(GgufType type, const std::byte** at);             // f32, f64 or any integer type
std::string_view ReadGgufString(const std::byte** at);
bool IsGgufInt(GgufType type);  // u8 .. i64, not bool

struct GgufHeader {
  std::vector<std::pair<std::string, GgufValue>> values;  // file order, keys unique
  std::vector<GgufTensor> tensors;                        // file order, names unique, checked against the file's length

  const GgufValue* Find(std::string_view key) const;  // linear: for the few keys that splits need
};

// `path` is for messages. The result points into `bytes`.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> bytes, const std::string& path);

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_HEADER_PARSER_H_
