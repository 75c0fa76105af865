// A GGUF model file (one file or a split set), memory-mapped read-only and checked before anything is believed.
//
// What must stay true:
//  - Nothing outside the mapped bytes is ever read: every length, count and offset of the file is checked in 64-bit
//    arithmetic that cannot overflow, before it is used or allocated for.
//  - After Open, every tensor lies inside its file, does not overlap another, and has a type with a known block size.
//    Whether its shape is the one that the architecture wants is model_shape.h's question.
//  - Names of split files come from the opened path only, never from what a file says.
//  - Failures name the file, the field and, where it helps, the byte offset. A file that is not what it claims is
//    DataLoss; a type or version that this product does not take is Unimplemented.
//
// A mapped file that is cut short afterwards would raise SIGBUS on the next touch; no reader can prevent that. Open
// compares the size once more after mapping, and CheckUnchanged() is there for those who read tensors much later.
#ifndef LAYOVER_COMMON_GGUF_READER_H_
#define LAYOVER_COMMON_GGUF_READER_H_

#include <array>
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

class GgufFile {
 public:
  // `path` is the file, or the first file of a split set (NAME-00001-of-000NN.gguf; the others stand beside it).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // One file from memory; `name` stands for the path in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromBytes(std::string bytes, const std::string& name);
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

  // Metadata of the first file. Nothing if the key is absent; InvalidArgument naming file and key if its value has
  // another type or does not fit. Integers of any width are taken for GetInt and GetFloat, f32 and f64 for GetFloat.
  bool Has(std::string_view key) const;
  bool IsArray(std::string_view key) const;  // false if absent
  absl::StatusOr<std::optional<int64_t>> GetInt(std::string_view key) const;
  absl::StatusOr<std::optional<double>> GetFloat(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> GetBool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> GetString(std::string_view key) const;
  absl::StatusOr<std::optional<std::vector<std::string>>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::optional<std::vector<int64_t>>> GetInts(std::string_view key) const;  // bools count as 0 and 1
  absl::StatusOr<std::optional<std::vector<double>>> GetFloats(std::string_view key) const;
  absl::StatusOr<std::optional<uint64_t>> GetArrayLength(std::string_view key) const;
  std::vector<std::string> Keys() const;  // in file order

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order, split after split
  const GgufTensor* FindTensor(std::string_view name) const;           // null if there is none

  // DataLoss if one of the files no longer has the size it was opened with.
  absl::Status CheckUnchanged() const;

 private:
  friend class GgufParser;
  struct Part;  // one file: its bytes and how they are held
  // A metadata value that Open has checked to lie inside the file.
  struct Value {
    uint32_t type = 0;  // of the value, or of the elements
    bool is_array = false;
    uint64_t count = 1;  // elements
    const std::byte* data = nullptr;
  };
  GgufFile();

  const Value* FindValue(std::string_view key) const;
  absl::Status WrongType(std::string_view key, const Value& value, std::string_view wanted) const;

  std::string path_;
  std::string architecture_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<std::string> keys_;
  absl::flat_hash_map<std::string, Value> values_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_READER_H_
