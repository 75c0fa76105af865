// Reads segments: nothing is handed over before its digest has been verified.
//
// Errors: damage of any byte that was read DataLoss, another model's file FailedPrecondition with a field, a missing
// file NotFound, the disk Internal; all with WithPart(file, stage) and the file's name in the message.
#ifndef LAYOVER_COMMON_STORAGE_SEGMENT_READER_H_
#define LAYOVER_COMMON_STORAGE_SEGMENT_READER_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/block_io.h"
#include "common/storage/segment_format.h"

namespace layover {

// What the manifest (and the model) say about the file. What is absent is not checked.
struct SegmentExpectations {
  std::optional<Digest> identity;
  std::optional<FolderDigest> conversation;  // of the folder in which the file lies
  std::optional<int64_t> generation;
  std::optional<int32_t> stage;  // as the file's name says
  std::optional<int32_t> layer_begin;
  std::optional<int32_t> layer_end;
  std::optional<Digest> index_digest;
  std::optional<uint64_t> bytes;
};

class SegmentReader {
 public:
  struct Options {
    BlockIoOptions io;
    std::function<void(uint64_t bytes)> progress;  // payload bytes verified by the running call; on the caller's thread
    int threads = 1;  // that verify and call `use`; with more than one, neighbouring records may come at once
  };
  // Reads and checks header, index and footer.
  static absl::StatusOr<std::unique_ptr<SegmentReader>> Open(const std::string& path,
                                                             const SegmentExpectations& expected, Options options);
  virtual ~SegmentReader() = default;

  virtual const SegmentHeader& header() const = 0;
  virtual const std::vector<IndexEntry>& index() const = 0;  // by ascending offset
  virtual const Digest& index_digest() const = 0;
  virtual uint64_t file_bytes() const = 0;
  virtual uint64_t bytes_read() const = 0;  // from the file, in all

  using Use = std::function<absl::Status(const IndexEntry& entry, std::span<const std::byte> payload)>;
  // Streams the records at the given positions of index() (strictly ascending) in large reads, several in flight;
  // verifies each payload and the padding after it, then calls `use` (payload aligned to 64, valid during the call). In
  // order with one thread; with more, records of one read come in any order, from several threads. Stops at the first
  // error. With a `hold` (BlockReader::Read) payloads stay valid until it has been waited for.
  virtual absl::Status ReadRecords(std::span<const size_t> positions, const Use& use, const ReadHold* hold) = 0;
  absl::Status ReadRecords(std::span<const size_t> positions, const Use& use) {
    return ReadRecords(positions, use, nullptr);
  }
  // After DataLoss from ReadRecords or VerifyAll: the damaged record's layer, else kNoLayer.
  virtual int damaged_layer() const = 0;
  // Every byte of the file.
  virtual absl::Status VerifyAll() = 0;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_SEGMENT_READER_H_
