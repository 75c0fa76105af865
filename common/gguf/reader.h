// A GGUF model file (one file or a split set), memory-mapped read-only and checked before anything is believed.
//
// What must stay true:
//  - Nothing outside the mapped bytes is ever read: every length, count and offset of the file is checked in 64-bit
//    arithmetic that cannot overflow, before it is used or allocated for (header_parser.cc).
//  - After Open, every tensor lies inside its file, does not overlap another, and has a type that we take. Whether its
//    shape is the one that the architecture wants is model_shape.h's question.
//  - Names of split files come from the opened path only, never from what a file says.
//  - Failures name the file, the field and, where it helps, the byte offset. A file that is not what it claims is
//    DataLoss; a version or tensor type that this product does not take is Unimplemented.
//
// A mapped file that is cut short afterwards would raise SIGBUS on the next touch; no reader can prevent that. Open
// compares the size once more after reading the header, and CheckUnchanged() is there for who reads tensors much later.
#ifndef LAYOVER_COMMON_GGUF_READER_H_
#define LAYOVER_COMMON_GGUF_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/gguf/header_parser.h"

namespace layover {

class GgufFile {
 public:
  // `path` is the file, or the first file of a split set (NAME-00001-of-000NN.gguf; the others stand beside it).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // One file from memory; `name` stands for the path in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromBytes(std::string_view bytes, const std::string& name);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& architecture() const { return architecture_; }  // general.architecture, "" if absent

  struct FileSize {
    std::string path;
    uint64_t bytes = 0;
  };
  std::vector<FileSize> files() const;  // in split order
  uint64_t total_bytes() const;         // of all files

  // Metadata of the first file. Nothing if the key is absent; DataLoss naming file and key if its value has another
  // type or does not fit. Integers of any width are taken for GetInt and GetFloat, f32 and f64 for GetFloat.
  bool Has(std::string_view key) const { return FindValue(key) != nullptr; }
  bool IsArray(std::string_view key) const;  // false if absent
  absl::StatusOr<std::optional<int64_t>> GetInt(std::string_view key) const;
  absl::StatusOr<std::optional<double>> GetFloat(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> GetBool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> GetString(std::string_view key) const;
  absl::StatusOr<std::optional<std::vector<std::string>>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::optional<std::vector<int64_t>>> GetInts(std::string_view key) const;  // bools count as 0 and 1
  absl::StatusOr<std::optional<std::vector<double>>> GetFloats(std::string_view key) const;
  absl::StatusOr<std::optional<uint64_t>> GetArrayLength(std::string_view key) const;
  std::vector<std::string> Keys() const { return keys_; }  // in file order

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order, split after split
  const GgufTensor* FindTensor(std::string_view name) const;           // null if there is none

  // DataLoss if one of the files no longer has the size it was opened with.
  absl::Status CheckUnchanged() const;

 private:
  struct Part;  // one file: its bytes and how they are held
  GgufFile();

  static absl::StatusOr<std::unique_ptr<Part>> MapPart(const std::string& path);
  absl::StatusOr<GgufHeader> AddPart(std::unique_ptr<Part> part);
  absl::Status AdoptFirst(GgufHeader header);
  absl::Status AdoptTensors(std::vector<GgufTensor> tensors, int split);
  absl::Status OpenSiblings();
  const GgufValue* FindValue(std::string_view key) const;
  absl::Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const;
  absl::Status CheckReadable(std::string_view key, const GgufValue& value) const;

  std::string path_;
  std::string architecture_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::string> keys_;
  absl::flat_hash_map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_READER_H_
