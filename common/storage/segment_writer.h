// Writes one segment: records in the order given, hashed while they stream to disk, then the index and the footer.
//
//   ASSIGN_OR_RETURN(auto writer, SegmentWriter::Create(path, header, {}));
//   for each layer and kind:
//     RETURN_IF_ERROR(writer->BeginRun());
//     for each page: ASSIGN_OR_RETURN(auto room, writer->AppendRecord(key, bytes)); copy rows to room
//     (or, faster: RETURN_IF_ERROR(writer->AppendRecords(pages, [&](size_t i, auto room) { copy rows of page i }));)
//   ASSIGN_OR_RETURN(SegmentSummary summary, writer->Finish());
//
// Not thread-safe. Destroyed without Finish, or after an error: the file is removed. Errors carry WithPart(file,
// stage).
#ifndef LAYOVER_COMMON_STORAGE_SEGMENT_WRITER_H_
#define LAYOVER_COMMON_STORAGE_SEGMENT_WRITER_H_

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/block_io.h"
#include "common/storage/segment_format.h"

namespace layover {

struct SegmentSummary {
  std::string file;            // "s01-g000017.seg"
  uint64_t bytes = 0;          // of the file
  uint64_t payload_bytes = 0;  // of the records
  uint64_t n_records = 0;
  Digest index_digest;
};

class SegmentWriter {
 public:
  struct Options {
    BlockIoOptions io;
    std::function<void(uint64_t bytes)> progress;  // bytes of the file so far, now and then, on the caller's thread
    int threads = 1;                               // that fill and digest in AppendRecords
  };
  // `path` = .../FOLDER/SegmentFileName(header.stage, header.generation); AlreadyExists if there is one.
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Create(const std::string& path, const SegmentHeader& header,
                                                               Options options);
  virtual ~SegmentWriter() = default;

  // A natural border (next layer or kind): what follows starts on a block of its own, so that a stage that owns other
  // layers reads nothing of it. Small runs are joined instead, else the padding of a small save would outweigh its
  // rows.
  virtual absl::Status BeginRun() = 0;
  // Room for the record's payload (aligned to 64 bytes), to be filled before the next call.
  virtual absl::StatusOr<std::span<std::byte>> AppendRecord(const RecordKey& key, size_t bytes) = 0;
  // Several records at once, in this order in the file. `fill(i, room)` writes the payload of records[i]; with more
  // than one thread, calls come at once. If there is a `filled`, they come one by one, need only have begun to write,
  // and `filled` returns when all have written; it is called for as many records as share a buffer.
  struct RecordSize {
    RecordKey key;
    size_t bytes = 0;
  };
  using Fill = std::function<void(size_t i, std::span<std::byte> room)>;
  using Filled = std::function<absl::Status()>;
  virtual absl::Status AppendRecords(std::span<const RecordSize> records, const Fill& fill, const Filled& filled) = 0;
  absl::Status AppendRecords(std::span<const RecordSize> records, const Fill& fill) {
    return AppendRecords(records, fill, nullptr);
  }
  // Index, footer, sync of the file and of its folder.
  virtual absl::StatusOr<SegmentSummary> Finish() = 0;
  virtual void Abandon() = 0;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_SEGMENT_WRITER_H_
