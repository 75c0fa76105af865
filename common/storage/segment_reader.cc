#include "common/storage/segment_reader.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/fork_join.h"
#include "common/storage/on_disk.h"
#include "common/storage/remote_segment.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr uint64_t kBlock = limits::kBlockBytes;

uint64_t BlockBegin(uint64_t offset) {
  return offset / kBlock * kBlock;
}
uint64_t BlockEnd(uint64_t offset) {
  return (offset + kBlock - 1) / kBlock * kBlock;
}

// One request to the disk and the records that lie in it whole.
struct Batch {
  Extent extent;
  size_t first = 0;  // position in the caller's list
  size_t count = 0;
};

class SegmentReaderImpl : public SegmentReader {
 public:
  SegmentReaderImpl(std::string path, Options options, std::unique_ptr<BlockReader> in)
      : path_(std::move(path)), options_(std::move(options)), in_(std::move(in)), threads_(options_.threads) {
    if (const std::optional<SegmentName> name = ParseSegmentFileName(BaseName(path_))) stage_ = name->stage;
  }

  const SegmentHeader& header() const override { return header_; }
  const std::vector<IndexEntry>& index() const override { return index_; }
  const Digest& index_digest() const override { return footer_.index_digest; }
  uint64_t file_bytes() const override { return in_->file_bytes(); }
  uint64_t bytes_read() const override { return in_->bytes_read(); }
  int damaged_layer() const override { return damaged_layer_; }

  absl::Status ReadParts(const SegmentExpectations& expected) {
    const uint64_t bytes = in_->file_bytes();
    if (expected.bytes.has_value() && *expected.bytes != bytes) {
      return DataLoss("the file has {} bytes, the manifest says {}", bytes, *expected.bytes);
    }
    if (bytes % kBlock != 0 || bytes < 2 * kBlock || bytes > limits::kMaxSegmentBytes) {
      return DataLoss("the file is cut short or not a segment: {} bytes", bytes);
    }
    const Extent ends[] = {{0, kBlock}, {bytes - kBlock, kBlock}};
    std::string header_block;
    RETURN_IF_ERROR(in_->Read(ends, [&](size_t i, std::span<const std::byte> block) -> absl::Status {
      if (i == 0) {
        header_block = AsText(block);
        ASSIGN_OR_RETURN(header_, DecodeHeader(block));
        return CheckExpected(expected);
      }
      ASSIGN_OR_RETURN(footer_, DecodeFooter(block, bytes));
      return absl::OkStatus();
    }));
    if (expected.index_digest.has_value() && *expected.index_digest != footer_.index_digest) {
      return DataLoss("it is not the file that the manifest names: the index digest differs");
    }
    return ReadIndex(header_block);
  }

  using SegmentReader::ReadRecords;
  absl::Status ReadRecords(std::span<const size_t> positions, const Use& use, const ReadHold* hold) override {
    damaged_layer_ = kNoLayer;
    const std::vector<Batch> batches = Plan(positions);
    std::vector<Extent> extents;
    extents.reserve(batches.size());
    for (const Batch& batch : batches) extents.push_back(batch.extent);
    uint64_t verified = 0;
    bool callers_own = false;  // the caller's own failure is not the file's
    const auto handle = [&](size_t i, std::span<const std::byte> data) -> absl::Status {
      Outcome outcome =
          HandleBatch(positions.subspan(batches[i].first, batches[i].count), batches[i].extent.offset, data, use);
      callers_own = outcome.callers_own;
      damaged_layer_ = outcome.damaged_layer;
      verified += outcome.verified;
      if (outcome.status.ok() && options_.progress) options_.progress(verified);
      return outcome.status;
    };
    const absl::Status status = in_->Read(extents, handle, hold);
    return callers_own ? status : Note(status);
  }

  absl::Status VerifyAll() override {
    std::vector<size_t> all(index_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return ReadRecords(all, nullptr);
  }

  // Names the file and the stage.
  absl::Status Note(const absl::Status& status) const {
    if (status.ok()) return status;
    StatusPart part = PartOf(status).value_or(StatusPart{});
    part.file = std::string(BaseName(path_));
    part.stage = stage_;
    return WithPart(absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", part.file, ToStd(status.message())))),
                    part);
  }

 private:
  absl::Status CheckExpected(const SegmentExpectations& expected) const {
    if (expected.identity.has_value() && *expected.identity != header_.identity) {
      StatusPart part;
      part.field = "weights";
      return WithPart(FailedPrecondition("it was written by another model (identity {}, not {})",
                                         header_.identity.Hex(), expected.identity->Hex()),
                      part);
    }
    if (expected.conversation.has_value() && *expected.conversation != header_.conversation) {
      return DataLoss("it belongs to another conversation ({})", FolderName(header_.conversation));
    }
    if (expected.generation.has_value() && *expected.generation != header_.generation) {
      return DataLoss("it is of generation {}, not {}", header_.generation, *expected.generation);
    }
    if (expected.stage.has_value() && *expected.stage != header_.stage) {
      return DataLoss("it was written by stage {}, not {}", header_.stage, *expected.stage);
    }
    if (expected.layer_begin.value_or(header_.layer_begin) != header_.layer_begin ||
        expected.layer_end.value_or(header_.layer_end) != header_.layer_end) {
      return DataLoss("it holds layers [{}, {}), which the manifest does not say", header_.layer_begin,
                      header_.layer_end);
    }
    return absl::OkStatus();
  }

  absl::Status ReadIndex(std::string_view header_block) {
    const uint64_t bytes = in_->file_bytes() - kBlock - footer_.index_offset;
    // In pieces, so that a long index does not need a buffer of its length for each request in flight.
    std::vector<Extent> extents;
    for (uint64_t done = 0; done < bytes; done += limits::kIoBufferBytes) {
      extents.push_back({footer_.index_offset + done, std::min<uint64_t>(limits::kIoBufferBytes, bytes - done)});
    }
    std::string index;
    index.reserve(bytes);
    RETURN_IF_ERROR(in_->Read(extents, [&](size_t, std::span<const std::byte> data) {
      index += AsText(data);
      return absl::OkStatus();
    }));
    if (IndexDigest(header_block, index) != footer_.index_digest)
      return DataLoss("the index is damaged: its digest differs");
    ASSIGN_OR_RETURN(index_, DecodeIndex(header_, footer_, std::as_bytes(std::span(index))));
    return absl::OkStatus();
  }

  // Neighbours share a request up to the options' bytes; a larger record has one of its own.
  std::vector<Batch> Plan(std::span<const size_t> positions) const {
    std::vector<Batch> batches;
    for (size_t k = 0; k < positions.size(); ++k) {
      LAYOVER_CHECK(positions[k] < index_.size() && (k == 0 || positions[k] > positions[k - 1]));
      const IndexEntry& entry = index_[positions[k]];
      const uint64_t begin = BlockBegin(entry.offset);
      const uint64_t end = BlockEnd(entry.offset + entry.bytes);
      if (!batches.empty()) {
        Batch& last = batches.back();
        if (begin <= last.extent.offset + last.extent.bytes && end - last.extent.offset <= options_.io.request_bytes &&
            !LeavesLittleIn(last, positions, k)) {
          last.extent.bytes = end - last.extent.offset;
          ++last.count;
          continue;
        }
      }
      batches.push_back({{begin, end - begin}, k, 1});
    }
    return batches;
  }

  // As SegmentWriter does: whether a run (of a layer and kind) begins at `k`, of which only a little, and not all,
  // would come to lie in the request.
  bool LeavesLittleIn(const Batch& batch, std::span<const size_t> positions, size_t k) const {
    const auto same_run = [&](size_t a, size_t b) {
      const RecordKey &x = index_[positions[a]].key, &y = index_[positions[b]].key;
      return x.layer == y.layer && x.kind == y.kind;
    };
    if (options_.io.request_bytes < 2 * limits::kIoBufferBytes || same_run(k - 1, k)) return false;
    size_t here = 0;
    for (size_t i = k; i < positions.size() && same_run(k, i); ++i) {
      const IndexEntry& entry = index_[positions[i]];
      if (BlockEnd(entry.offset + entry.bytes) - batch.extent.offset > options_.io.request_bytes) {
        return here < limits::kIoBufferBytes;
      }
      here += entry.bytes;
    }
    return false;
  }

  struct Outcome {
    absl::Status status;
    bool callers_own = false;
    int damaged_layer = kNoLayer;
    uint64_t verified = 0;
  };

  // Verifies and hands over the records of one read, whose first byte lies at `begin` in the file.
  Outcome HandleBatch(std::span<const size_t> positions, uint64_t begin, std::span<const std::byte> data,
                      const Use& use) {
    std::vector<Outcome> outcomes(positions.size());
    std::atomic<bool> stop = false;
    threads_.Run(positions.size(), [&](size_t i) {
      if (stop) return;
      const IndexEntry& entry = index_[positions[i]];
      const std::span<const std::byte> rest = data.subspan(entry.offset - begin);
      const std::span<const std::byte> payload = rest.first(entry.bytes);
      Outcome& outcome = outcomes[i];
      outcome.status = Verify(positions[i], payload, rest.subspan(entry.bytes));
      if (!outcome.status.ok()) {
        outcome.damaged_layer = entry.key.layer;
      } else if (use) {
        outcome.status = use(entry, payload);
        outcome.callers_own = !outcome.status.ok();
      }
      outcome.verified = entry.bytes;
      if (!outcome.status.ok()) stop = true;
    });
    uint64_t verified = 0;
    for (Outcome& outcome : outcomes) {
      if (!outcome.status.ok()) return std::move(outcome);
      verified += outcome.verified;
    }
    return {absl::OkStatus(), false, kNoLayer, verified};
  }

  // `rest`: what was read behind the payload. Padding reaches to the next record, or to the end of the block.
  absl::Status Verify(size_t position, std::span<const std::byte> payload, std::span<const std::byte> rest) const {
    const IndexEntry& entry = index_[position];
    const uint64_t end = entry.offset + entry.bytes;
    const uint64_t next = position + 1 < index_.size() ? index_[position + 1].offset : footer_.index_offset;
    if (DigestOf(payload.data(), payload.size()) != entry.payload) return Damage(entry, "its digest differs");
    if (!AllZero(AsText(rest.first(next - end)))) return Damage(entry, "the padding behind it is not zero");
    return absl::OkStatus();
  }

  static absl::Status Damage(const IndexEntry& entry, std::string_view what) {
    const std::string layer = entry.key.layer == kNoLayer ? "" : fmt::format(" of layer {}", entry.key.layer);
    return DataLoss("the {}{}, tokens [{}, {}), are damaged: {}", RecordKindName(entry.key.kind), layer,
                    entry.key.token_begin, entry.key.token_end, what);
  }

  const std::string path_;
  const Options options_;
  std::unique_ptr<BlockReader> in_;
  int stage_ = -1;  // as the name says
  SegmentHeader header_;
  Footer footer_;
  std::vector<IndexEntry> index_;
  int damaged_layer_ = kNoLayer;
  ForkJoin threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentReader>> SegmentReader::Open(const std::string& path,
                                                                   const SegmentExpectations& expected,
                                                                   Options options) {
  const BlockIoOptions io = options.io;
  absl::StatusOr<std::unique_ptr<BlockReader>> in = BlockReader::Open(path, io);
  if (!in.ok()) {
    StatusPart part;
    part.file = std::string(BaseName(path));
    if (const std::optional<SegmentName> name = ParseSegmentFileName(part.file)) part.stage = name->stage;
    return WithPart(in.status(), part);
  }
  return OpenSegmentBlocks(*std::move(in), path, expected, std::move(options));
}

absl::StatusOr<std::unique_ptr<SegmentReader>> OpenSegmentBlocks(std::unique_ptr<BlockReader> in,
                                                                 const std::string& path,
                                                                 const SegmentExpectations& expected,
                                                                 SegmentReader::Options options) {
  auto reader = std::make_unique<SegmentReaderImpl>(path, std::move(options), std::move(in));
  RETURN_IF_ERROR(reader->Note(reader->ReadParts(expected)));
  return reader;
}

}  // namespace layover
