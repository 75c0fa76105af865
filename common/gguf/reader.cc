#include "common/gguf/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "common/limits.h"
#include "common/status.h"

namespace layover {

// The descriptor is kept so that the size can be asked for again.
struct GgufFile::Part {
  std::string path;
  int fd = -1;
  void* map = nullptr;                // of Open
  std::unique_ptr<std::byte[]> copy;  // of FromBytes
  std::span<const std::byte> bytes;

  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() {
    if (map != nullptr) munmap(map, bytes.size());
    if (fd >= 0) close(fd);
  }

  absl::Status CheckSize() const {
    if (fd < 0) return absl::OkStatus();
    struct stat info;
    if (fstat(fd, &info) != 0) return ErrnoStatus(errno, path);
    if (static_cast<uint64_t>(info.st_size) == bytes.size()) return absl::OkStatus();
    return DataLoss("{}: its size changed from {} to {} bytes while it was in use", path, bytes.size(),
                    static_cast<int64_t>(info.st_size));
  }
};

namespace {

constexpr std::string_view kSplitNo = "split.no";
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitTensors = "split.tensors.count";

std::string SplitSuffix(int index, int count) {
  return fmt::format("-{:05d}-of-{:05d}.gguf", index + 1, count);
}

// The integer under `key` of a header, `fallback` if it is absent.
absl::StatusOr<int64_t> HeaderInt(const GgufHeader& header, std::string_view key, int64_t fallback,
                                  const std::string& path) {
  const GgufValue* value = header.Find(key);
  if (value == nullptr) return fallback;
  bool fits = false;
  if (!value->is_array && IsGgufInt(value->type)) {
    const std::byte* at = value->data;
    const int64_t result = ReadGgufInt(value->type, &at, &fits);
    if (fits) return result;
  }
  return DataLoss("{}: {} is not an integer", path, key);
}

}  // namespace

GgufFile::GgufFile() = default;
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile::Part>> GgufFile::MapPart(const std::string& path) {
  auto part = std::make_unique<Part>();
  part->path = path;
  // O_NONBLOCK: a named pipe put in the file's place must not hold us.
  part->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (part->fd < 0) return ErrnoStatus(errno, fmt::format("open {}", path));
  struct stat info;
  if (fstat(part->fd, &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISREG(info.st_mode)) return DataLoss("{}: not a regular file", path);
  if (info.st_size == 0) return DataLoss("{}: the file is empty", path);
  const auto size = static_cast<size_t>(info.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, part->fd, 0);
  if (map == MAP_FAILED) return ErrnoStatus(errno, fmt::format("map {}", path));
  part->map = map;
  part->bytes = {static_cast<const std::byte*>(map), size};
  return part;
}

absl::StatusOr<GgufHeader> GgufFile::AddPart(std::unique_ptr<Part> part) {
  RETURN_IF_ERROR(part->CheckSize());
  absl::StatusOr<GgufHeader> header = ParseGgufHeader(part->bytes, part->path);
  if (header.ok()) RETURN_IF_ERROR(part->CheckSize());
  parts_.push_back(std::move(part));
  return header;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = path;
  ASSIGN_OR_RETURN(std::unique_ptr<Part> part, MapPart(path));
  ASSIGN_OR_RETURN(GgufHeader header, file->AddPart(std::move(part)));
  RETURN_IF_ERROR(file->AdoptFirst(std::move(header)));
  RETURN_IF_ERROR(file->OpenSiblings());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromBytes(std::string_view bytes, const std::string& name) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = name;
  auto part = std::make_unique<Part>();
  part->path = name;
  // A copy of exactly this size, so that an address sanitizer sees the first byte read too far.
  part->copy = std::make_unique<std::byte[]>(bytes.size());
  std::memcpy(part->copy.get(), bytes.data(), bytes.size());
  part->bytes = {part->copy.get(), bytes.size()};
  ASSIGN_OR_RETURN(GgufHeader header, file->AddPart(std::move(part)));
  ASSIGN_OR_RETURN(const int64_t count, HeaderInt(header, kSplitCount, 1, name));
  if (count > 1) return DataLoss("{}: one file of a split set cannot be read from memory", name);
  RETURN_IF_ERROR(file->AdoptFirst(std::move(header)));
  return file;
}

absl::Status GgufFile::AdoptFirst(GgufHeader header) {
  for (auto& [key, value] : header.values) {
    keys_.push_back(key);
    values_.emplace(std::move(key), value);
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> architecture, GetString("general.architecture"));
  architecture_ = architecture.value_or("");
  return AdoptTensors(std::move(header.tensors), 0);
}

absl::Status GgufFile::AdoptTensors(std::vector<GgufTensor> tensors, int split) {
  if (tensors_.size() + tensors.size() > limits::kMaxGgufTensors) {
    return DataLoss("{}: more than {} tensors over all files", path_, limits::kMaxGgufTensors);
  }
  for (GgufTensor& tensor : tensors) {
    tensor.split = split;
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return DataLoss("{}: tensor '{}' is in another file of the set as well", parts_[split]->path, tensor.name);
    }
    tensors_.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::OpenSiblings() {
  ASSIGN_OR_RETURN(const std::optional<int64_t> stated_count, GetInt(kSplitCount));
  const int64_t count = stated_count.value_or(1);
  if (count <= 1) return absl::OkStatus();
  if (count > limits::kMaxGgufSplits) {
    return DataLoss("{}: split.count {} is more than {}", path_, count, limits::kMaxGgufSplits);
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> no, GetInt(kSplitNo));
  if (no != 0) {
    return DataLoss("{}: this is file {} of {}; open the first one (...{})", path_, no.value_or(-1) + 1, count,
                    SplitSuffix(0, static_cast<int>(count)));
  }
  const std::string suffix = SplitSuffix(0, static_cast<int>(count));
  if (!path_.ends_with(suffix)) {
    return DataLoss("{}: the first of {} files must have a name that ends in {}, or its siblings cannot be found",
                    path_, count, suffix);
  }
  const std::string prefix = path_.substr(0, path_.size() - suffix.size());
  for (int i = 1; i < count; ++i) {
    const std::string path = prefix + SplitSuffix(i, static_cast<int>(count));
    ASSIGN_OR_RETURN(std::unique_ptr<Part> part, MapPart(path));
    ASSIGN_OR_RETURN(GgufHeader header, AddPart(std::move(part)));
    ASSIGN_OR_RETURN(const int64_t part_no, HeaderInt(header, kSplitNo, -1, path));
    ASSIGN_OR_RETURN(const int64_t part_count, HeaderInt(header, kSplitCount, -1, path));
    if (part_no != i || part_count != count) {
      return DataLoss("{}: split.no {} and split.count {} do not match its name", path, part_no, part_count);
    }
    RETURN_IF_ERROR(AdoptTensors(std::move(header.tensors), i));
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> tensors, GetInt(kSplitTensors));
  if (tensors != static_cast<int64_t>(tensors_.size())) {
    return DataLoss("{}: split.tensors.count is {}, the {} files have {}", path_, tensors.value_or(-1), count,
                    tensors_.size());
  }
  return absl::OkStatus();
}

std::vector<GgufFile::FileSize> GgufFile::files() const {
  std::vector<FileSize> files;
  for (const std::unique_ptr<Part>& part : parts_) files.push_back({part->path, part->bytes.size()});
  return files;
}

uint64_t GgufFile::total_bytes() const {
  uint64_t total = 0;
  for (const std::unique_ptr<Part>& part : parts_) total += part->bytes.size();
  return total;
}

absl::Status GgufFile::CheckUnchanged() const {
  for (const std::unique_ptr<Part>& part : parts_) RETURN_IF_ERROR(part->CheckSize());
  return absl::OkStatus();
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(ToAbsl(name));
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto found = values_.find(ToAbsl(key));
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufFile::IsArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  return value != nullptr && value->is_array;
}

absl::Status GgufFile::WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return DataLoss("{}: {} is {}{}, it must be {}", path_, key, value.is_array ? "an array of " : "",
                  GgufTypeName(value.type), wanted);
}

absl::Status GgufFile::CheckReadable(std::string_view key, const GgufValue& value) const {
  if (value.count <= limits::kMaxGgufReadElements) return absl::OkStatus();
  return DataLoss("{}: {} has {} elements, at most {} are read", path_, key, value.count, limits::kMaxGgufReadElements);
}

absl::StatusOr<std::optional<int64_t>> GgufFile::GetInt(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || !IsGgufInt(value->type)) return WrongType(key, *value, "an integer");
  bool fits = false;
  const std::byte* at = value->data;
  const int64_t result = ReadGgufInt(value->type, &at, &fits);
  if (!fits) return DataLoss("{}: {} does not fit into 63 bits", path_, key);
  return result;
}

absl::StatusOr<std::optional<double>> GgufFile::GetFloat(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type == GgufType::kBool || value->type == GgufType::kString) {
    return WrongType(key, *value, "a number");
  }
  const std::byte* at = value->data;
  const double result = ReadGgufFloat(value->type, &at);
  if (!std::isfinite(result)) return DataLoss("{}: {} is not finite", path_, key);
  return result;
}

absl::StatusOr<std::optional<bool>> GgufFile::GetBool(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufType::kBool) return WrongType(key, *value, "a bool");
  const auto byte = std::to_integer<uint8_t>(*value->data);
  if (byte > 1) return DataLoss("{}: {} is {}, a bool is 0 or 1", path_, key, byte);
  return byte == 1;
}

absl::StatusOr<std::optional<std::string>> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufType::kString) return WrongType(key, *value, "a string");
  const std::byte* at = value->data;
  return std::string(ReadGgufString(&at));
}

absl::StatusOr<std::optional<std::vector<std::string>>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type != GgufType::kString) return WrongType(key, *value, "an array of strings");
  RETURN_IF_ERROR(CheckReadable(key, *value));
  std::vector<std::string> result;
  result.reserve(value->count);
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) result.emplace_back(ReadGgufString(&at));
  return result;
}

absl::StatusOr<std::optional<std::vector<int64_t>>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || !(IsGgufInt(value->type) || value->type == GgufType::kBool)) {
    return WrongType(key, *value, "an array of integers");
  }
  RETURN_IF_ERROR(CheckReadable(key, *value));
  std::vector<int64_t> result;
  result.reserve(value->count);
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    bool fits = false;
    result.push_back(ReadGgufInt(value->type, &at, &fits));
    if (!fits) return DataLoss("{}: element {} of {} does not fit into 63 bits", path_, i, key);
  }
  return result;
}

absl::StatusOr<std::optional<std::vector<double>>> GgufFile::GetFloats(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type == GgufType::kBool || value->type == GgufType::kString) {
    return WrongType(key, *value, "an array of numbers");
  }
  RETURN_IF_ERROR(CheckReadable(key, *value));
  std::vector<double> result;
  result.reserve(value->count);
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    result.push_back(ReadGgufFloat(value->type, &at));
    if (!std::isfinite(result.back())) return DataLoss("{}: element {} of {} is not finite", path_, i, key);
  }
  return result;
}

absl::StatusOr<std::optional<uint64_t>> GgufFile::GetArrayLength(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array) return WrongType(key, *value, "an array");
  return value->count;
}

}  // namespace layover
