// A portable file as a stream: written front to back under a temporary name, read front to back with every chunk
// checked before a byte of it is handed out. Memory does not depend on the file's length.
#ifndef LAYOVER_COMMON_STORAGE_PORTABLE_STREAM_H_
#define LAYOVER_COMMON_STORAGE_PORTABLE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/portable_format.h"
#include "common/storage/portable_key.h"

namespace layover {

struct PortableWriteOptions {
  uint32_t chunk_bytes = limits::kMaxPortableChunkBytes;
  std::optional<Bytes32> salt;  // drawn at random if absent; set only by tests
};

// Not thread-safe. Destroyed unfinished: the temporary file is removed.
class PortableWriter {
 public:
  // AlreadyExists if `file` is there. `body_bytes` (1 or more) is what Append will be given in all.
  static absl::StatusOr<std::unique_ptr<PortableWriter>> Create(const std::string& file, const PortableSecret& secret,
                                                                const PortableHead& head, uint64_t body_bytes,
                                                                const PortableWriteOptions& options = {});
  virtual ~PortableWriter() = default;

  virtual absl::Status Append(std::string_view bytes) = 0;
  // Synced and under its name, durably; the file's length. AlreadyExists if somebody made `file` meanwhile.
  virtual absl::StatusOr<uint64_t> Finish() = 0;
};

// Not thread-safe. Errors: DataLoss for damage and for a wrong key, FailedPrecondition where a key is missing or of no
// use, NotFound if there is no such file.
class PortableReader {
 public:
  // Checks the header and the head.
  static absl::StatusOr<std::unique_ptr<PortableReader>> Open(const std::string& file, const PortableSecret& secret);
  virtual ~PortableReader() = default;

  virtual const PortableHeader& header() const = 0;
  virtual const PortableHead& head() const = 0;
  virtual uint64_t file_bytes() const = 0;
  // What the body must have by the head. DataLoss if the file's length says otherwise. Call it once, before Read.
  virtual absl::Status ExpectBody(uint64_t body_bytes) = 0;
  // The next out.size() bytes of the body.
  virtual absl::Status Read(std::span<std::byte> out) = 0;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_PORTABLE_STREAM_H_
