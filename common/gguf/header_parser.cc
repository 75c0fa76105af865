#include "common/gguf/header_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "common/check.h"
#include "common/gguf/weight_types.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF fields are read as they lie");

constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;             // empty name, type, one-byte value
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 4 + 8;  // empty name, no dims, type, offset
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMinAlignment = 8;
constexpr uint32_t kTypeCount = 13;

// Bytes of one value of a fixed-size type, 0 for strings and arrays.
constexpr uint64_t kTypeBytes[kTypeCount] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::string_view kTypeNames[kTypeCount] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                     "bool", "string", "array", "u64", "i64", "f64"};

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

template <typename T>
T Take(const std::byte** at) {
  const T value = Load<T>(*at);
  *at += sizeof(T);
  return value;
}

// Printable form of an untrusted name for messages.
std::string Quoted(std::string_view name) {
  std::string out = "'";
  for (const char c : name.substr(0, 80)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (name.size() > 80) out += "...";
  return out + "'";
}

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  absl::StatusOr<GgufHeader> Parse() {
    RETURN_IF_ERROR(ParseCounts());
    for (uint64_t i = 0; i < key_count_; ++i) RETURN_IF_ERROR(ParseKey());
    RETURN_IF_ERROR(ReadAlignment());
    if (tensor_count_ > (bytes_.size() - position_) / kMinTensorInfoBytes) {
      return Damage("tensor_count {} is more than the rest of the file can hold", tensor_count_);
    }
    for (uint64_t i = 0; i < tensor_count_; ++i) RETURN_IF_ERROR(ParseTensorInfo());
    RETURN_IF_ERROR(PlaceTensors());
    RETURN_IF_ERROR(CheckOverlaps());
    return std::move(header_);
  }

 private:
  uint64_t Remaining() const { return bytes_.size() - position_; }

  template <typename... Args>
  absl::Status Damage(fmt::format_string<Args...> format, Args&&... args) const {
    return DataLoss("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }
  absl::Status CutShort(std::string_view field) const {
    return Damage("{} at byte {} runs past the end of the file ({} bytes)", field, position_, bytes_.size());
  }

  template <typename T>
  absl::StatusOr<T> Read(std::string_view field) {
    if (Remaining() < sizeof(T)) return CutShort(field);
    const T value = Load<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  absl::StatusOr<std::string_view> ReadString(std::string_view field, uint64_t max_bytes) {
    ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>(field));
    if (length > Remaining()) return CutShort(field);
    if (length > max_bytes)
      return Damage("{} at byte {} has {} bytes, at most {}", field, position_, length, max_bytes);
    const char* begin = reinterpret_cast<const char*>(bytes_.data() + position_);
    position_ += length;
    return std::string_view(begin, length);
  }

  absl::Status ParseCounts() {
    if (bytes_.size() < kHeaderBytes) {
      return Damage("{} bytes are too few for a GGUF header ({})", bytes_.size(), kHeaderBytes);
    }
    if (std::memcmp(bytes_.data(), "GGUF", 4) != 0) return Damage("not a GGUF file (magic at byte 0)");
    const auto version = Load<uint32_t>(bytes_.data() + 4);
    if (version != 0 && (version & 0xffff) == 0) {
      return Unimplemented("{}: a big-endian GGUF file (version field {:#x}); only little-endian files are read", path_,
                           version);
    }
    if (version != 2 && version != 3) {
      return Unimplemented("{}: GGUF version {}; versions 2 and 3 are read", path_, version);
    }
    tensor_count_ = Load<uint64_t>(bytes_.data() + 8);
    key_count_ = Load<uint64_t>(bytes_.data() + 16);
    position_ = kHeaderBytes;
    if (tensor_count_ > limits::kMaxGgufTensors || tensor_count_ > Remaining() / kMinTensorInfoBytes) {
      return Damage("tensor_count {} (byte 8) is more than the file or the limit of {} can hold", tensor_count_,
                    limits::kMaxGgufTensors);
    }
    if (key_count_ > limits::kMaxGgufKeys || key_count_ > Remaining() / kMinKeyBytes) {
      return Damage("kv_count {} (byte 16) is more than the file or the limit of {} can hold", key_count_,
                    limits::kMaxGgufKeys);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GgufType> ReadType(std::string_view field) {
    ASSIGN_OR_RETURN(const uint32_t type, Read<uint32_t>(field));
    if (type >= kTypeCount) return Damage("{} at byte {}: no value type {}", field, position_ - 4, type);
    return static_cast<GgufType>(type);
  }

  absl::Status ParseKey() {
    const uint64_t key_position = position_;
    ASSIGN_OR_RETURN(const std::string_view key, ReadString("a key", limits::kMaxGgufKeyBytes));
    if (key.empty()) return Damage("an empty key at byte {}", key_position);
    if (std::any_of(key.begin(), key.end(), [](char c) { return c < 0x20 || c > 0x7e; })) {
      return Damage("key {} at byte {} is not printable ASCII", Quoted(key), key_position);
    }
    if (!keys_.emplace(key).second) return Damage("key {} stands twice (byte {})", Quoted(key), key_position);
    const std::string field = fmt::format("the value of {}", Quoted(key));
    GgufValue value;
    ASSIGN_OR_RETURN(value.type, ReadType(field));
    if (value.type == GgufType::kArray) {
      value.is_array = true;
      ASSIGN_OR_RETURN(value.type, ReadType(field));
      if (value.type == GgufType::kArray) return Damage("{}: nested arrays are not allowed", field);
      ASSIGN_OR_RETURN(value.count, Read<uint64_t>(field));
      if (value.count > limits::kMaxGgufArrayElements) {
        return Damage("{}: {} elements, at most {}", field, value.count, limits::kMaxGgufArrayElements);
      }
    }
    value.data = bytes_.data() + position_;
    RETURN_IF_ERROR(SkipElements(value, field));
    header_.values.emplace_back(key, value);
    return absl::OkStatus();
  }

  // Proves that the value's elements lie inside the file.
  absl::Status SkipElements(const GgufValue& value, std::string_view field) {
    const uint64_t element_bytes =
        value.type == GgufType::kString ? sizeof(uint64_t) : kTypeBytes[static_cast<uint32_t>(value.type)];
    if (value.count > Remaining() / element_bytes) return CutShort(field);
    if (value.type != GgufType::kString) {
      position_ += value.count * element_bytes;
      return absl::OkStatus();
    }
    for (uint64_t i = 0; i < value.count; ++i) {
      RETURN_IF_ERROR(ReadString(field, limits::kMaxGgufStringBytes).status());
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    const GgufValue* value = header_.Find("general.alignment");
    if (value == nullptr) return absl::OkStatus();
    if (value->is_array || value->type != GgufType::kU32) {
      return Damage("general.alignment is {}, it must be u32", GgufTypeName(value->type));
    }
    alignment_ = Load<uint32_t>(value->data);
    if (!std::has_single_bit(alignment_) || alignment_ < kMinAlignment || alignment_ > limits::kMaxGgufAlignment) {
      return Damage("general.alignment {} is not a power of two from {} to {}", alignment_, kMinAlignment,
                    limits::kMaxGgufAlignment);
    }
    return absl::OkStatus();
  }

  absl::Status ParseTensorInfo() {
    const uint64_t info_position = position_;
    ASSIGN_OR_RETURN(const std::string_view name, ReadString("a tensor's name", limits::kMaxGgufTensorNameBytes));
    if (name.empty()) return Damage("a tensor without a name at byte {}", info_position);
    const std::string field = fmt::format("tensor {}", Quoted(name));
    if (!names_.emplace(name).second) return Damage("{} stands twice (byte {})", field, info_position);
    GgufTensor tensor;
    tensor.name = name;
    ASSIGN_OR_RETURN(const uint32_t n_dims, Read<uint32_t>(field));
    if (n_dims < 1 || n_dims > 4) return Damage("{} has {} dimensions, 1 to 4 are allowed", field, n_dims);
    tensor.n_dims = static_cast<int>(n_dims);
    for (uint32_t d = 0; d < n_dims; ++d) {
      ASSIGN_OR_RETURN(const uint64_t dim, Read<uint64_t>(field));
      if (dim == 0 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Damage("{}: dimension {} is {}", field, d, dim);
      }
      tensor.dims[d] = static_cast<int64_t>(dim);
    }
    ASSIGN_OR_RETURN(tensor.type, Read<uint32_t>(field));
    RETURN_IF_ERROR(ComputeBytes(field, &tensor));
    ASSIGN_OR_RETURN(const uint64_t offset, Read<uint64_t>(field));
    if (offset % alignment_ != 0) return Damage("{}: offset {} is no multiple of {}", field, offset, alignment_);
    offsets_.push_back(offset);
    header_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ComputeBytes(std::string_view field, GgufTensor* tensor) const {
    const WeightTypeTraits* traits = WeightTypeInfo(tensor->type);
    if (traits == nullptr) return Damage("{}: no tensor type has the id {}", field, tensor->type);
    if (!traits->supported) return Unimplemented("{}: {}: type {} is not supported", path_, field, traits->name);
    if (tensor->dims[0] % traits->block_elements != 0) {
      return Damage("{}: rows of {} values are no multiple of {}'s block of {}", field, tensor->dims[0], traits->name,
                    traits->block_elements);
    }
    uint64_t bytes = static_cast<uint64_t>(tensor->dims[0] / traits->block_elements);
    // The element count must fit as well: others multiply the dimensions.
    uint64_t elements = static_cast<uint64_t>(tensor->dims[0]);
    bool overflow = __builtin_mul_overflow(bytes, static_cast<uint64_t>(traits->block_bytes), &bytes);
    for (int d = 1; d < 4; ++d) {
      overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor->dims[d]), &bytes);
      overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(tensor->dims[d]), &elements);
    }
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (overflow || bytes > kMax || elements > kMax) {
      return Damage("{}: its size {} x {} x {} x {} overflows", field, tensor->dims[0], tensor->dims[1],
                    tensor->dims[2], tensor->dims[3]);
    }
    tensor->bytes = bytes;
    return absl::OkStatus();
  }

  absl::Status PlaceTensors() {
    if (header_.tensors.empty()) return absl::OkStatus();
    const uint64_t data_begin = AlignUp(position_, alignment_);
    if (data_begin > bytes_.size()) {
      return Damage("the tensor data would begin at byte {}, the file has {}", data_begin, bytes_.size());
    }
    const uint64_t data_bytes = bytes_.size() - data_begin;
    for (size_t i = 0; i < header_.tensors.size(); ++i) {
      GgufTensor& tensor = header_.tensors[i];
      // Written so that nothing can overflow.
      if (offsets_[i] > data_bytes || tensor.bytes > data_bytes - offsets_[i]) {
        return Damage("tensor {}: {} bytes at offset {} run past the end of the file ({} bytes of tensor data)",
                      Quoted(tensor.name), tensor.bytes, offsets_[i], data_bytes);
      }
      tensor.data = bytes_.data() + data_begin + offsets_[i];
    }
    return absl::OkStatus();
  }

  absl::Status CheckOverlaps() const {
    std::vector<const GgufTensor*> by_place;
    by_place.reserve(header_.tensors.size());
    for (const GgufTensor& tensor : header_.tensors) by_place.push_back(&tensor);
    std::sort(by_place.begin(), by_place.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->data < b->data; });
    for (size_t i = 1; i < by_place.size(); ++i) {
      if (by_place[i]->data - by_place[i - 1]->data < static_cast<ptrdiff_t>(by_place[i - 1]->bytes)) {
        return Damage("tensors {} and {} overlap", Quoted(by_place[i - 1]->name), Quoted(by_place[i]->name));
      }
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  uint64_t position_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint32_t alignment_ = kDefaultAlignment;
  GgufHeader header_;
  std::vector<uint64_t> offsets_;  // as header_.tensors
  absl::flat_hash_set<std::string> keys_;
  absl::flat_hash_set<std::string> names_;
};

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  return kTypeNames[static_cast<uint32_t>(type)];
}

bool IsGgufInt(GgufType type) {
  return type != GgufType::kBool && type != GgufType::kString && type != GgufType::kArray && type != GgufType::kF32 &&
         type != GgufType::kF64;
}

int64_t ReadGgufInt(GgufType type, const std::byte** at, bool* fits) {
  *fits = true;
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return Take<uint8_t>(at);
    case GgufType::kI8:
      return Take<int8_t>(at);
    case GgufType::kU16:
      return Take<uint16_t>(at);
    case GgufType::kI16:
      return Take<int16_t>(at);
    case GgufType::kU32:
      return Take<uint32_t>(at);
    case GgufType::kI32:
      return Take<int32_t>(at);
    case GgufType::kI64:
      return Take<int64_t>(at);
    case GgufType::kU64: {
      const auto value = Take<uint64_t>(at);
      *fits = value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      return *fits ? static_cast<int64_t>(value) : 0;
    }
    default:
      LAYOVER_CHECK(false);
  }
  return 0;
}

double ReadGgufFloat(GgufType type, const std::byte** at) {
  if (type == GgufType::kF32) return Take<float>(at);
  if (type == GgufType::kF64) return Take<double>(at);
  if (type == GgufType::kU64) return static_cast<double>(Take<uint64_t>(at));
  bool fits = true;
  return static_cast<double>(ReadGgufInt(type, at, &fits));
}

std::string_view ReadGgufString(const std::byte** at) {
  const auto length = Take<uint64_t>(at);
  const std::string_view text(reinterpret_cast<const char*>(*at), length);
  *at += length;
  return text;
}

const GgufValue* GgufHeader::Find(std::string_view key) const {
  for (const auto& [name, value] : values) {
    if (name == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> bytes, const std::string& path) {
  return HeaderParser(bytes, path).Parse();
}

}  // namespace layover
