#include "stage_worker/transfers.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/record_plan.h"
#include "common/storage/segment_reader.h"
#include "common/storage/segment_writer.h"

namespace layover {
namespace {

using Clock = std::chrono::steady_clock;

int64_t MsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

ElementType ElementOf(KvType type) { return static_cast<ElementType>(type); }

// Rows [begin, end) cut at the grid of 64, as K/V records are.
template <typename F>
absl::Status ForEachPage(int64_t begin, int64_t end, F&& use) {
  for (int64_t at = begin; at < end;) {
    const int64_t stop = std::min(end, (at / kPageTokens + 1) * kPageTokens);
    RETURN_IF_ERROR(use(static_cast<int32_t>(at), static_cast<int32_t>(stop)));
    at = stop;
  }
  return absl::OkStatus();
}

const std::vector<int32_t>& TokensOf(const Transfers::BranchSource& source) {
  return source.image != nullptr ? source.image->tokens : source.session.tokens;
}

// Digests find records, token ids prove them: where a file's own id list claims to be this path, it must be it.
absl::Status ProveTokens(SegmentReader& reader, const std::vector<int32_t>& tokens, const PrefixDigests& prefixes) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < reader.index().size(); ++i) {
    const RecordKey& key = reader.index()[i].key;
    if (key.kind == RecordKind::kTokenIds && key.token_end <= prefixes.size() && key.prefix == prefixes.At(key.token_end)) {
      positions.push_back(i);
    }
  }
  return reader.ReadRecords(positions, [&](const IndexEntry& entry, std::span<const std::byte> payload) -> absl::Status {
    const size_t bytes = static_cast<size_t>(entry.key.tokens()) * sizeof(int32_t);
    if (payload.size() != bytes || std::memcmp(payload.data(), tokens.data() + entry.key.token_begin, bytes) != 0) {
      return DataLoss("the token ids in the file are not the conversation's");
    }
    return absl::OkStatus();
  });
}

}  // namespace

Transfers::Lane::Lane() : thread_([this] { Loop(); }) {}

Transfers::Lane::~Lane() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Transfers::Lane::Run(std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void Transfers::Lane::WaitIdle() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
}

void Transfers::Lane::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    job();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

Transfers::Transfers(Device& device, const KvPages& pages, int stage, Mailbox<TransferResult>* results)
    : device_(device), pages_(pages), stage_(stage), results_(results) {}

Transfers::~Transfers() { CancelAll(); }

void Transfers::CancelAll() {
  cancel_all_ = true;
  save_lane_.WaitIdle();
  restore_lane_.WaitIdle();
  cancel_all_ = false;
  parked_.Clear();
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_saves_.clear();
}

bool Transfers::Cancelled(uint64_t save) const {
  if (cancel_all_) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_saves_.contains(save);
}

void Transfers::Save(const wire::SaveSession& save, std::vector<BranchSource> sources) {
  save_lane_.Run([this, save, sources = std::move(sources)] {
    results_->Put({.message = DoSave(save, sources)});
  });
}

void Transfers::AbortSave(const wire::AbortSave& abort) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_saves_.insert(abort.save);
  }
  // Behind the save itself: if it had finished already, its file is removed here.
  save_lane_.Run([this, abort] {
    const absl::Status removed = RemoveDurably(std::string(DirName(abort.path)), BaseName(abort.path));
    if (!removed.ok()) LogWarning("aborted save: {}", ToStd(removed.message()));
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_saves_.erase(abort.save);
  });
}

wire::SaveReceipt Transfers::DoSave(const wire::SaveSession& save, const std::vector<BranchSource>& sources) {
  const Clock::time_point start = Clock::now();
  wire::SaveReceipt receipt{.stage = stage_,
                            .save = save.save,
                            .layer_begin = pages_.layers().begin,
                            .layer_end = pages_.layers().end,
                            .n_tokens = save.branches.front().n_tokens,
                            .prefix = DigestOfTokens(TokensOf(sources.front()))};
  receipt.status = wire::ToWire(WriteSegment(save, sources, &receipt));
  receipt.ms = MsSince(start);
  return receipt;
}

absl::Status Transfers::WriteSegment(const wire::SaveSession& save, const std::vector<BranchSource>& sources,
                                     wire::SaveReceipt* receipt) {
  const auto folder = ParseFolderName(save.folder);
  if (!folder.has_value()) return Internal("save {}: bad folder name", save.save);
  const SegmentHeader header{.identity = save.identity,
                             .conversation = *folder,
                             .stage = stage_,
                             .layer_begin = pages_.layers().begin,
                             .layer_end = pages_.layers().end,
                             .generation = save.generation,
                             .n_tokens = static_cast<int32_t>(save.branches.front().n_tokens)};
  int64_t rows = 0;
  for (const wire::BranchCut& cut : save.branches) rows += cut.n_tokens - cut.base;
  const int64_t rows_bytes = rows * static_cast<int64_t>(pages_.row_bytes()) * 2 * pages_.layers().size();
  SegmentWriter::Options options;
  options.progress = [&](uint64_t bytes) {
    results_->Put({.message = wire::TransferTick{stage_, save.save, false, static_cast<int64_t>(bytes), rows_bytes}});
  };
  const std::string path = JoinPath(save.directory, SegmentFileName(stage_, save.generation));
  ASSIGN_OR_RETURN(const std::unique_ptr<SegmentWriter> writer, SegmentWriter::Create(path, header, options));
  for (size_t i = 0; i < save.branches.size(); ++i) {
    RETURN_IF_ERROR(WriteBranch(save, save.branches[i], sources[i], *writer));
  }
  ASSIGN_OR_RETURN(const SegmentSummary summary, writer->Finish());
  receipt->bytes = static_cast<int64_t>(summary.bytes);
  receipt->payload_bytes = static_cast<int64_t>(summary.payload_bytes);
  receipt->n_records = static_cast<int64_t>(summary.n_records);
  receipt->index_digest = summary.index_digest;
  return absl::OkStatus();
}

absl::Status Transfers::WriteBranch(const wire::SaveSession& save, const wire::BranchCut& cut, const BranchSource& source,
                                    SegmentWriter& writer) {
  if (cut.base == cut.n_tokens) return absl::OkStatus();
  const std::vector<int32_t>& tokens = TokensOf(source);
  const PrefixDigests prefixes(std::span<const int32_t>(tokens).first(static_cast<size_t>(cut.n_tokens)));
  const auto key = [&](RecordKind kind, ElementType element, int32_t layer, int32_t begin, int32_t end) {
    return RecordKey{.kind = kind, .element = element, .layer = layer, .token_begin = begin, .token_end = end,
                     .branch = cut.branch, .prefix = prefixes.At(end)};
  };
  const std::unique_ptr<Stream> stream = device_.NewCopyStream();
  for (int layer = pages_.layers().begin; layer < pages_.layers().end; ++layer) {
    for (RecordKind kind : {RecordKind::kKRows, RecordKind::kVRows}) {
      if (Cancelled(save.save)) return layover::Cancelled("save {} was aborted", save.save);
      RETURN_IF_ERROR(writer.BeginRun());
      RETURN_IF_ERROR(ForEachPage(cut.base, cut.n_tokens, [&](int32_t begin, int32_t end) -> absl::Status {
        ASSIGN_OR_RETURN(const std::span<std::byte> room,
                         writer.AppendRecord(key(kind, ElementOf(pages_.type()), layer, begin, end),
                                             static_cast<size_t>(end - begin) * pages_.row_bytes()));
        const bool is_k = kind == RecordKind::kKRows;
        if (source.image != nullptr) {
          const auto index = static_cast<size_t>(layer - pages_.layers().begin);
          const std::vector<std::byte>& rows = is_k ? source.image->k_rows[index] : source.image->v_rows[index];
          std::memcpy(room.data(), rows.data() + static_cast<size_t>(begin) * pages_.row_bytes(), room.size());
          return absl::OkStatus();
        }
        const int32_t page = source.session.pages[static_cast<size_t>(begin / kPageTokens)];
        const int32_t row = begin % kPageTokens;
        stream->ReadKvRows(pages_.layer(layer), page, row, row + end - begin, is_k ? room.data() : nullptr,
                           is_k ? nullptr : room.data());
        return stream->Synchronize();
      }));
    }
  }
  // The ids are in every stage's files, so that each stage's files prove themselves.
  RETURN_IF_ERROR(writer.BeginRun());
  const auto begin = static_cast<int32_t>(cut.base), end = static_cast<int32_t>(cut.n_tokens);
  const size_t bytes = static_cast<size_t>(end - begin) * sizeof(int32_t);
  ASSIGN_OR_RETURN(const std::span<std::byte> room,
                   writer.AppendRecord(key(RecordKind::kTokenIds, ElementType::kInt32, kNoLayer, begin, end), bytes));
  std::memcpy(room.data(), tokens.data() + begin, bytes);
  return absl::OkStatus();
}

void Transfers::Park(const wire::ParkSession& park, StageSession session) {
  restore_lane_.Run([this, park, session = std::move(session)] {
    const Clock::time_point start = Clock::now();
    std::shared_ptr<const ParkImage> image = ParkStore::Copy(device_, pages_, session);
    wire::ParkReceipt receipt{.stage = stage_, .park = park.park, .bytes = image->bytes()};
    parked_.Put(park.park, std::move(image));
    receipt.ms = MsSince(start);
    results_->Put({.message = receipt});
  });
}

void Transfers::Unpark(const wire::UnparkSession& unpark) {
  restore_lane_.Run([this, unpark] {
    const Clock::time_point start = Clock::now();
    wire::RestoreReceipt receipt{.stage = stage_, .restore = unpark.restore, .n_tokens = unpark.n_tokens};
    TransferResult result{.restored_session = unpark.session};
    const std::shared_ptr<const ParkImage> image = parked_.Get(unpark.park);
    if (image == nullptr || static_cast<int64_t>(image->tokens.size()) < unpark.n_tokens) {
      receipt.status = wire::ToWire(Internal("image {} is not parked here", unpark.park));
    } else {
      ParkStore::Fill(device_, pages_, *image, unpark.n_tokens, unpark.pages);
      result.session.tokens.assign(image->tokens.begin(), image->tokens.begin() + unpark.n_tokens);
      result.session.pages = unpark.pages;
      receipt.prefix = DigestOfTokens(result.session.tokens);
    }
    receipt.ms = MsSince(start);
    result.message = receipt;
    results_->Put(std::move(result));
  });
}

void Transfers::DropPark(const wire::DropPark& drop) {
  // Behind an unpark that may still read it.
  restore_lane_.Run([this, drop] { parked_.Drop(drop.park); });
}

void Transfers::Restore(const wire::RestoreSession& restore) {
  restore_lane_.Run([this, restore] { results_->Put(DoRestore(restore)); });
}

TransferResult Transfers::DoRestore(const wire::RestoreSession& restore) {
  const Clock::time_point start = Clock::now();
  wire::RestoreReceipt receipt{.stage = stage_, .restore = restore.restore,
                               .n_tokens = static_cast<int64_t>(restore.tokens.size()),
                               .prefix = DigestOfTokens(restore.tokens)};
  const absl::Status status = ReadSegments(restore, &receipt);
  receipt.status = wire::ToWire(status);
  receipt.ms = MsSince(start);
  // A session that could not be filled exists too, empty, until the coordinator closes it: so all stages agree.
  TransferResult result{.message = receipt, .restored_session = restore.session};
  if (status.ok()) result.session = StageSession{restore.tokens, restore.pages};
  return result;
}

absl::Status Transfers::ReadSegments(const wire::RestoreSession& restore, wire::RestoreReceipt* receipt) {
  const auto n_tokens = static_cast<int32_t>(restore.tokens.size());
  const LayerRange layers = pages_.layers();
  int64_t bytes_done = 0;
  const int64_t bytes_total = static_cast<int64_t>(n_tokens) * static_cast<int64_t>(pages_.row_bytes()) * 2 * layers.size();

  // Only files that hold layers of this stage are opened.
  std::vector<std::unique_ptr<SegmentReader>> readers;
  std::vector<IndexView> indexes;
  for (const wire::SegmentRef& ref : restore.segments) {
    if (ref.layer_end <= layers.begin || ref.layer_begin >= layers.end) continue;
    const auto folder = ParseFolderName(ref.folder);
    if (!folder.has_value()) return Internal("restore {}: bad folder name", restore.restore);
    const SegmentExpectations expected{.identity = restore.identity, .conversation = *folder, .generation = ref.generation,
                                       .layer_begin = ref.layer_begin, .layer_end = ref.layer_end,
                                       .index_digest = ref.index_digest, .bytes = static_cast<uint64_t>(ref.bytes)};
    ASSIGN_OR_RETURN(std::unique_ptr<SegmentReader> reader, SegmentReader::Open(ref.path, expected, {}));
    indexes.push_back(reader->index());
    readers.push_back(std::move(reader));
  }

  const PrefixDigests prefixes(restore.tokens);
  for (const auto& reader : readers) RETURN_IF_ERROR(ProveTokens(*reader, restore.tokens, prefixes));
  std::vector<PlannedRecord> plan;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (RecordKind kind : {RecordKind::kKRows, RecordKind::kVRows}) {
      ASSIGN_OR_RETURN(std::vector<PlannedRecord> rows, PlanRows(indexes, {layer, kind}, prefixes, 0, n_tokens));
      plan.insert(plan.end(), rows.begin(), rows.end());
    }
  }

  const std::unique_ptr<Stream> stream = device_.NewCopyStream();
  pages_.Zero(*stream, restore.pages);
  const auto use = [&](const IndexEntry& entry, std::span<const std::byte> payload) -> absl::Status {
    if (cancel_all_) return layover::Cancelled("restore {} was cancelled", restore.restore);
    const RecordKey& key = entry.key;
    if (key.element != ElementOf(pages_.type()) || payload.size() != static_cast<size_t>(key.tokens()) * pages_.row_bytes()) {
      return DataLoss("a record of layer {} does not have this model's rows", key.layer);
    }
    const int32_t end = std::min(key.token_end, n_tokens);
    const int32_t page = restore.pages[static_cast<size_t>(key.token_begin / kPageTokens)];
    const int32_t row = key.token_begin % kPageTokens;
    const bool is_k = key.kind == RecordKind::kKRows;
    stream->WriteKvRows(pages_.layer(key.layer), page, row, row + end - key.token_begin, is_k ? payload.data() : nullptr,
                        is_k ? nullptr : payload.data());
    bytes_done += static_cast<int64_t>(payload.size());
    return absl::OkStatus();
  };
  for (const SegmentReads& reads : GroupBySegment(plan)) {
    RETURN_IF_ERROR(readers[reads.segment]->ReadRecords(reads.positions, use));
    results_->Put({.message = wire::TransferTick{stage_, restore.restore, true, bytes_done, bytes_total}});
  }
  for (const auto& reader : readers) receipt->bytes_read += static_cast<int64_t>(reader->bytes_read());
  return stream->Synchronize();
}

}  // namespace layover
