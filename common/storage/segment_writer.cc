#include "common/storage/segment_writer.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/fork_join.h"
#include "fmt/format.h"

namespace layover {
namespace {

class SegmentWriterImpl : public SegmentWriter {
 public:
  SegmentWriterImpl(std::string path, const SegmentHeader& header, Options options, std::unique_ptr<BlockWriter> out)
      : path_(std::move(path)),
        header_(header),
        options_(std::move(options)),
        out_(std::move(out)),
        threads_(options_.threads) {}
  ~SegmentWriterImpl() override { Abandon(); }

  absl::Status Begin() { return Note(WriteText(EncodeHeader(header_))); }

  absl::Status BeginRun() override {
    SealRecord();
    if (out_->offset() - run_begin_ < limits::kMinRunBytes) return absl::OkStatus();
    RETURN_IF_ERROR(Note(out_->Pad(limits::kBlockBytes)));
    run_begin_ = out_->offset();
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<std::byte>> AppendRecord(const RecordKey& key, size_t bytes) override {
    SealRecord();
    RETURN_IF_ERROR(PrepareRecord(key, bytes));
    return PlaceRecord(key, bytes);
  }

  using SegmentWriter::AppendRecords;
  absl::Status AppendRecords(std::span<const RecordSize> records, const Fill& fill, const Filled& filled) override {
    SealRecord();
    if (LeavesLittleHere(records)) RETURN_IF_ERROR(Note(out_->NextBuffer()));
    // As many at a time as fit into the buffer that is being filled: their rooms must stay until all are digested.
    std::vector<std::span<std::byte>> rooms;
    for (size_t done = 0; done < records.size(); done += rooms.size()) {
      SealRecord();
      rooms.clear();
      for (size_t i = done; i < records.size(); ++i) {
        const RecordSize& record = records[i];
        if (!rooms.empty() && out_->room() < AlignedUp(out_->offset()) - out_->offset() + record.bytes) break;
        RETURN_IF_ERROR(PrepareRecord(record.key, record.bytes));
        ASSIGN_OR_RETURN(rooms.emplace_back(), PlaceRecord(record.key, record.bytes));
      }
      open_record_ = {};
      IndexEntry* entries = index_.data() + (index_.size() - rooms.size());
      if (filled) {
        for (size_t i = 0; i < rooms.size(); ++i) fill(done + i, rooms[i]);
        RETURN_IF_ERROR(filled());
      }
      threads_.Run(rooms.size(), [&](size_t i) {
        if (!filled) fill(done + i, rooms[i]);
        entries[i].payload = DigestOf(rooms[i].data(), rooms[i].size());
      });
      Report();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SegmentSummary> Finish() override {
    SealRecord();
    RETURN_IF_ERROR(Note(out_->Pad(limits::kBlockBytes)));
    Footer footer;
    footer.index_offset = out_->offset();
    footer.index_count = index_.size();
    const std::string index = EncodeIndex(index_);
    footer.index_digest = IndexDigest(EncodeHeader(header_), index);
    footer.file_bytes = footer.index_offset + index.size() + limits::kBlockBytes;
    RETURN_IF_ERROR(Note(WriteText(index)));
    RETURN_IF_ERROR(Note(WriteText(EncodeFooter(footer))));
    RETURN_IF_ERROR(Note(out_->Finish()));
    finished_ = true;
    if (options_.progress) options_.progress(footer.file_bytes);
    return SegmentSummary{std::string(BaseName(path_)), footer.file_bytes, payload_bytes_, index_.size(),
                          footer.index_digest};
  }

  void Abandon() override {
    if (finished_) return;
    finished_ = true;
    open_record_ = {};
    out_->Abandon();
  }

 private:
  // Where requests hold much, records come in large pieces, whose copies are slow if they are cut small: whether only a
  // little of these, and not all, would come to lie in the buffer that is being filled.
  bool LeavesLittleHere(std::span<const RecordSize> records) const {
    if (options_.io.request_bytes < 2 * limits::kIoBufferBytes) return false;
    const uint64_t begin = out_->offset();
    uint64_t end = begin;
    for (const RecordSize& record : records) {
      const uint64_t next = AlignedUp(end) + record.bytes;
      if (next - begin > out_->room()) return end - begin < limits::kIoBufferBytes;
      end = next;
    }
    return false;
  }
  static uint64_t AlignedUp(uint64_t offset) {
    return (offset + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }

  absl::Status PrepareRecord(const RecordKey& key, size_t bytes) {
    RETURN_IF_ERROR(Note(CheckRecord(header_, key, bytes)));
    if (index_.size() == limits::kMaxSegmentRecords) return Note(ResourceExhausted("too many records in one segment"));
    RETURN_IF_ERROR(Note(out_->Pad(kRecordAlignment)));
    if (out_->offset() + bytes > limits::kMaxSegmentBytes) return Note(ResourceExhausted("the segment grows too long"));
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<std::byte>> PlaceRecord(const RecordKey& key, size_t bytes) {
    IndexEntry entry;
    entry.key = key;
    entry.offset = out_->offset();
    entry.bytes = bytes;
    absl::StatusOr<std::span<std::byte>> room = out_->Reserve(bytes);
    if (!room.ok()) return Note(room.status());
    index_.push_back(entry);
    payload_bytes_ += bytes;
    open_record_ = *room;
    return room;
  }

  // The caller has filled the last record: its digest is taken while the bytes are still in the cache.
  void SealRecord() {
    if (open_record_.empty()) return;
    index_.back().payload = DigestOf(open_record_.data(), open_record_.size());
    open_record_ = {};
    Report();
  }

  void Report() {
    if (!options_.progress || out_->offset() - reported_ < limits::kIoBufferBytes) return;
    reported_ = out_->offset();
    options_.progress(reported_);
  }

  absl::Status WriteText(std::string_view text) {
    // In pieces: an index may be larger than what should be held in one buffer.
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, limits::kIoBufferBytes / 2);
      ASSIGN_OR_RETURN(const std::span<std::byte> room, out_->Reserve(piece.size()));
      std::memcpy(room.data(), piece.data(), piece.size());
      text.remove_prefix(piece.size());
    }
    return absl::OkStatus();
  }

  // Names the file and the stage. After an error the writer is of no more use, and the file goes.
  absl::Status Note(absl::Status status) {
    if (status.ok()) return status;
    Abandon();
    StatusPart part;
    part.file = std::string(BaseName(path_));
    part.stage = header_.stage;
    return WithPart(absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", part.file, ToStd(status.message())))),
                    part);
  }

  const std::string path_;
  const SegmentHeader header_;
  const Options options_;
  std::unique_ptr<BlockWriter> out_;
  std::vector<IndexEntry> index_;
  std::span<std::byte> open_record_;  // of index_.back(), not yet digested
  uint64_t run_begin_ = limits::kBlockBytes;
  uint64_t payload_bytes_ = 0;
  uint64_t reported_ = 0;
  bool finished_ = false;
  ForkJoin threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const std::string& path,
                                                                     const SegmentHeader& header, Options options) {
  LAYOVER_CHECK(BaseName(path) == SegmentFileName(header.stage, header.generation));
  const BlockIoOptions io = options.io;
  absl::StatusOr<std::unique_ptr<BlockWriter>> out = BlockWriter::Create(path, io);
  if (!out.ok()) {
    StatusPart part;
    part.file = std::string(BaseName(path));
    part.stage = header.stage;
    return WithPart(out.status(), part);
  }
  auto writer = std::make_unique<SegmentWriterImpl>(path, header, std::move(options), *std::move(out));
  RETURN_IF_ERROR(writer->Begin());
  return writer;
}

}  // namespace layover
