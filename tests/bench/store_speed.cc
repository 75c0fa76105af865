// How fast a segment is saved and restored, against raw sequential I/O of the same file: same size, same requests in
// flight, same syncs, no records, no digests. Interleaved, medians.
//
//   store_speed FOLDER [--bytes 536870912] [--record 24576] [--rounds 7] [--threads 1]
//
// Prints one JSON value. FOLDER should lie on the disk in question.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"
#include "common/storage/block_io.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/segment_reader.h"
#include "common/storage/segment_writer.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr int kLayers = 30;
constexpr int kPageTokens = limits::kPageTokens;

struct Job {
  std::string folder;
  uint64_t bytes = 512 * limits::kMiB;
  uint64_t record_bytes = 24576;  // one page of K or V of one layer of the demo model
  int rounds = 7;
  int threads = 1;     // that copy and digest
  std::string source;  // what the rows are copied from

  uint64_t pages() const { return std::max<uint64_t>(1, bytes / record_bytes / (2 * kLayers)); }
};

// Memory in huge pages, as the pages of a session should be: with small ones the copies are bound by the page tables.
class HugeMemory {
 public:
  explicit HugeMemory(size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LAYOVER_CHECK(memory != MAP_FAILED);
    madvise(memory, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
  }
  ~HugeMemory() { munmap(data_, bytes_); }
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  const size_t bytes_;
};

double Seconds(const std::function<absl::Status()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!status.ok()) std::cerr << status << "\n";
  LAYOVER_CHECK(status.ok());
  return took.count();
}

SegmentHeader Header() {
  SegmentHeader header;
  header.layer_end = kLayers;
  header.generation = 1;
  return header;
}

// `image`: what is saved, in memory of its own, as the pages of a session are.
absl::StatusOr<SegmentSummary> Save(const Job& job, const HugeMemory& image) {
  SegmentWriter::Options options;
  options.threads = job.threads;
  ASSIGN_OR_RETURN(auto writer, SegmentWriter::Create(JoinPath(job.folder, "s00-g000001.seg"), Header(), options));
  const std::byte* source = image.data();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const RecordKind kind : {RecordKind::kKRows, RecordKind::kVRows}) {
      std::vector<SegmentWriter::RecordSize> records;
      for (uint64_t page = 0; page < job.pages(); ++page) {
        const auto begin = static_cast<int32_t>(page) * kPageTokens;
        records.push_back(
            {{kind, ElementType::kF16, layer, begin, begin + kPageTokens, 0, Digest{page, 1}}, job.record_bytes});
      }
      RETURN_IF_ERROR(writer->BeginRun());
      RETURN_IF_ERROR(writer->AppendRecords(records, [&](size_t i, std::span<std::byte> room) {
        std::memcpy(room.data(), source + i * job.record_bytes, room.size());
      }));
      source += records.size() * job.record_bytes;
    }
  }
  return writer->Finish();
}

// Each record to its own place in memory.
absl::Status Restore(const Job& job, HugeMemory* destination) {
  SegmentReader::Options options;
  options.threads = job.threads;
  ASSIGN_OR_RETURN(auto reader, SegmentReader::Open(JoinPath(job.folder, "s00-g000001.seg"), {}, options));
  std::vector<size_t> all(reader->index().size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return reader->ReadRecords(all, [&](const IndexEntry& entry, std::span<const std::byte> payload) {
    const uint64_t run = static_cast<uint64_t>(entry.key.layer) * 2 + (entry.key.kind == RecordKind::kVRows);
    const uint64_t page = run * job.pages() + static_cast<uint64_t>(entry.key.token_begin / kPageTokens);
    std::memcpy(destination->data() + page * job.record_bytes, payload.data(), payload.size());
    return absl::OkStatus();
  });
}

absl::Status RawWrite(const Job& job, uint64_t bytes) {
  ASSIGN_OR_RETURN(auto writer, BlockWriter::Create(JoinPath(job.folder, "raw"), {}));
  for (uint64_t done = 0; done < bytes; done += limits::kIoBufferBytes) {
    RETURN_IF_ERROR(writer->Reserve(std::min<uint64_t>(limits::kIoBufferBytes, bytes - done)).status());
  }
  return writer->Finish();
}

absl::Status RawRead(const Job& job, uint64_t bytes) {
  ASSIGN_OR_RETURN(auto reader, BlockReader::Open(JoinPath(job.folder, "raw"), {}));
  std::vector<Extent> extents;
  for (uint64_t done = 0; done < bytes; done += limits::kIoBufferBytes) {
    extents.push_back({done, std::min<uint64_t>(limits::kIoBufferBytes, bytes - done)});
  }
  return reader->Read(extents, [](size_t, std::span<const std::byte>) { return absl::OkStatus(); });
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Run(const Job& job) {
  std::vector<double> save, restore, raw_write, raw_read;
  HugeMemory image(job.pages() * 2 * kLayers * job.record_bytes);
  for (size_t i = 0; i < image.size(); ++i) image.data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  HugeMemory destination(image.size());
  uint64_t bytes = 0;
  for (int round = -1; round < job.rounds; ++round) {  // the first is for warming up
    RemoveDurably(job.folder, "s00-g000001.seg").IgnoreError();
    const double saved = Seconds([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const SegmentSummary summary, Save(job, image));
      bytes = summary.bytes;
      return absl::OkStatus();
    });
    RemoveDurably(job.folder, "raw").IgnoreError();
    const double wrote = Seconds([&] { return RawWrite(job, bytes); });
    const double restored = Seconds([&] { return Restore(job, &destination); });
    const double read = Seconds([&] { return RawRead(job, bytes); });
    LAYOVER_CHECK(std::memcmp(destination.data(), image.data(), image.size()) == 0);
    std::memset(destination.data(), 0, destination.size());
    if (round < 0) continue;
    save.push_back(saved);
    raw_write.push_back(wrote);
    restore.push_back(restored);
    raw_read.push_back(read);
  }
  RemoveDurably(job.folder, "s00-g000001.seg").IgnoreError();
  RemoveDurably(job.folder, "raw").IgnoreError();
  const auto speed = [&](const std::vector<double>& seconds) { return static_cast<double>(bytes) / Median(seconds); };
  std::cout << fmt::format(
      "{{\"bytes\": {}, \"record_bytes\": {}, \"threads\": {}, \"rounds\": {}, \"save_bytes_s\": {:.0f}, "
      "\"raw_write_bytes_s\": {:.0f}, "
      "\"restore_bytes_s\": {:.0f}, \"raw_read_bytes_s\": {:.0f}, \"save_ratio\": {:.3f}, \"restore_ratio\": "
      "{:.3f}}}\n",
      bytes, job.record_bytes, job.threads, job.rounds, speed(save), speed(raw_write), speed(restore), speed(raw_read),
      speed(save) / speed(raw_write), speed(restore) / speed(raw_read));
}

}  // namespace
}  // namespace layover

int main(int argc, char** argv) {
  layover::Job job;
  CLI::App app("Save and restore against raw sequential I/O");
  app.add_option("folder", job.folder)->required();
  app.add_option("--bytes", job.bytes);
  app.add_option("--record", job.record_bytes)->check(CLI::Range(64, 1 << 26));
  app.add_option("--threads", job.threads)->check(CLI::Range(1, 64));
  app.add_option("--rounds", job.rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  job.record_bytes = job.record_bytes / 64 * 64;
  layover::Run(job);
  return 0;
}
