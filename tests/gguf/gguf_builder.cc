#include "tests/gguf/gguf_builder.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/check.h"
#include "common/gguf/weight_types.h"

namespace layover::testing {
namespace {

// GGUF value type ids.
constexpr uint32_t kU8 = 0, kU16 = 2, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10,
                   kF64 = 12;

template <typename T>
void Append(std::string* out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

void AppendString(std::string* out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  out->append(text);
}

template <typename T>
std::string Bytes(T value) {
  std::string out;
  Append(&out, value);
  return out;
}

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Removed, with what is in it, when the process ends.
struct TemporaryFolder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("layover-gguf-test-" + std::to_string(getpid()));
  TemporaryFolder() { std::filesystem::create_directories(path); }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

void GgufBuilder::AppendKey(std::string_view key, uint32_t type) {
  AppendString(&keys_, key);
  Append<uint32_t>(&keys_, type);
  ++key_count_;
}

GgufBuilder& GgufBuilder::Raw(std::string_view key, uint32_t type, std::string_view payload) {
  AppendKey(key, type);
  keys_.append(payload);
  return *this;
}

GgufBuilder& GgufBuilder::U8(std::string_view key, uint8_t value) {
  return Raw(key, kU8, Bytes(value));
}
GgufBuilder& GgufBuilder::U16(std::string_view key, uint16_t value) {
  return Raw(key, kU16, Bytes(value));
}
GgufBuilder& GgufBuilder::U32(std::string_view key, uint32_t value) {
  return Raw(key, kU32, Bytes(value));
}
GgufBuilder& GgufBuilder::I32(std::string_view key, int32_t value) {
  return Raw(key, kI32, Bytes(value));
}
GgufBuilder& GgufBuilder::U64(std::string_view key, uint64_t value) {
  return Raw(key, kU64, Bytes(value));
}
GgufBuilder& GgufBuilder::F32(std::string_view key, float value) {
  return Raw(key, kF32, Bytes(value));
}
GgufBuilder& GgufBuilder::F64(std::string_view key, double value) {
  return Raw(key, kF64, Bytes(value));
}
GgufBuilder& GgufBuilder::Bool(std::string_view key, bool value) {
  return Raw(key, kBool, Bytes<uint8_t>(value));
}

GgufBuilder& GgufBuilder::String(std::string_view key, std::string_view value) {
  std::string payload;
  AppendString(&payload, value);
  return Raw(key, kString, payload);
}

GgufBuilder& GgufBuilder::Strings(std::string_view key, const std::vector<std::string>& values) {
  std::string payload = Bytes(kString) + Bytes<uint64_t>(values.size());
  for (const std::string& value : values) AppendString(&payload, value);
  return Raw(key, kArray, payload);
}

GgufBuilder& GgufBuilder::I32s(std::string_view key, const std::vector<int32_t>& values) {
  std::string payload = Bytes(kI32) + Bytes<uint64_t>(values.size());
  for (const int32_t value : values) Append(&payload, value);
  return Raw(key, kArray, payload);
}

GgufBuilder& GgufBuilder::F32s(std::string_view key, const std::vector<float>& values) {
  std::string payload = Bytes(kF32) + Bytes<uint64_t>(values.size());
  for (const float value : values) Append(&payload, value);
  return Raw(key, kArray, payload);
}

GgufBuilder& GgufBuilder::Tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, std::string data) {
  const WeightTypeTraits* traits = WeightTypeInfo(type);
  PendingTensor tensor{std::string(name), std::move(dims), type, std::move(data)};
  tensor.bytes = tensor.data.size();
  if (traits != nullptr && tensor.data.empty()) {
    uint64_t elements = 1;
    for (const uint64_t dim : tensor.dims) elements *= dim;
    tensor.bytes = elements / traits->block_elements * traits->block_bytes;
  }
  tensors_.push_back(std::move(tensor));
  return *this;
}

GgufBuilder& GgufBuilder::Alignment(uint32_t alignment) {
  alignment_ = alignment;
  return U32("general.alignment", alignment);
}

GgufBuilder& GgufBuilder::OverrideMagic(std::string_view magic) {
  magic_ = magic;
  return *this;
}

GgufBuilder& GgufBuilder::OverrideVersion(uint32_t version) {
  version_ = version;
  return *this;
}

GgufBuilder& GgufBuilder::OverrideTensorCount(uint64_t count) {
  tensor_count_override_ = static_cast<int64_t>(count);
  return *this;
}

GgufBuilder& GgufBuilder::OverrideKeyCount(uint64_t count) {
  key_count_override_ = static_cast<int64_t>(count);
  return *this;
}

GgufBuilder& GgufBuilder::OverrideOffset(std::string_view tensor, uint64_t offset) {
  Find(tensor).offset_override = static_cast<int64_t>(offset);
  return *this;
}

GgufBuilder& GgufBuilder::OverrideDimCount(std::string_view tensor, uint32_t n_dims) {
  Find(tensor).n_dims_override = n_dims;
  return *this;
}

GgufBuilder::PendingTensor& GgufBuilder::Find(std::string_view tensor) {
  for (PendingTensor& pending : tensors_) {
    if (pending.name == tensor) return pending;
  }
  LAYOVER_CHECK(false);
  return tensors_[0];
}

std::string GgufBuilder::BuildHeader(uint64_t* file_bytes) const {
  std::string out = magic_;
  Append(&out, version_);
  Append<uint64_t>(&out, tensor_count_override_ == kNoOverride ? tensors_.size() : tensor_count_override_);
  Append<uint64_t>(&out, key_count_override_ == kNoOverride ? key_count_ : key_count_override_);
  out += keys_;
  uint64_t offset = 0;
  for (const PendingTensor& tensor : tensors_) {
    AppendString(&out, tensor.name);
    Append<uint32_t>(&out, tensor.n_dims_override == kNoOverride ? tensor.dims.size() : tensor.n_dims_override);
    for (const uint64_t dim : tensor.dims) Append(&out, dim);
    Append(&out, tensor.type);
    Append<uint64_t>(&out, tensor.offset_override == kNoOverride ? offset : tensor.offset_override);
    offset = AlignUp(offset + tensor.bytes, alignment_);
  }
  if (!tensors_.empty() && alignment_ != 0) out.resize(AlignUp(out.size(), alignment_));
  *file_bytes = out.size() + offset;
  return out;
}

std::string GgufBuilder::Build() const {
  uint64_t file_bytes = 0;
  std::string out = BuildHeader(&file_bytes);
  for (const PendingTensor& tensor : tensors_) {
    out += tensor.data;
    out.resize(out.size() + tensor.bytes - tensor.data.size());
    out.resize(out.size() + AlignUp(tensor.bytes, alignment_) - tensor.bytes);
  }
  return out;
}

std::string WriteTestFile(const std::string& name, std::string_view bytes) {
  static const TemporaryFolder folder;
  const std::filesystem::path path = folder.path / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  LAYOVER_CHECK(stream.good());
  return path.string();
}

}  // namespace layover::testing
