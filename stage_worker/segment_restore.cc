#include "stage_worker/segment_restore.h"

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/record_plan.h"
#include "stage_worker/copy_buffers.h"

namespace layover {
namespace {

// Where rows or a state of one record go: the tables of the session or of one of its checkpoints.
struct Destination {
  size_t tables = 0;  // index
  int32_t begin = 0;  // which of the record's tokens
  int32_t end = 0;
};

class Restore {
 public:
  Restore(Stream& stream, const StatePieces& pieces, const wire::RestoreSession& restore, const RestoreHooks& hooks)
      : pieces_(pieces),
        restore_(restore),
        hooks_(hooks),
        stream_(stream),
        prefixes_(restore.tokens),
        n_tokens_(static_cast<int32_t>(restore.tokens.size())) {
    tables_.push_back({restore.pages, restore.state.window_pages, restore.state.slot});
    for (const wire::StateAt& checkpoint : restore.checkpoints) {
      tables_.push_back({restore.pages, checkpoint.window_pages, checkpoint.slot});
    }
  }

  absl::Status Run(int64_t* bytes_read) {
    RETURN_IF_ERROR(OpenFiles());
    for (const auto& reader : readers_) RETURN_IF_ERROR(ProveTokens(*reader));
    RETURN_IF_ERROR(PlanAll());
    pieces_.ZeroUnfilled(stream_, restore_.pages, static_cast<int64_t>(restore_.tokens.size()));
    for (const StateTables& tables : tables_) pieces_.ZeroWindow(stream_, tables.window_pages);
    RETURN_IF_ERROR(ReadAll());
    for (const auto& reader : readers_) *bytes_read += static_cast<int64_t>(reader->bytes_read());
    return absl::OkStatus();
  }

 private:
  // Only files that hold layers of this stage are opened.
  absl::Status OpenFiles() {
    const LayerRange layers = pieces_.pages().layers();
    for (const wire::SegmentRef& ref : restore_.segments) {
      if (ref.layer_end <= layers.begin || ref.layer_begin >= layers.end) continue;
      const auto folder = ParseFolderName(ref.folder);
      if (!folder.has_value()) return Internal("restore {}: bad folder name", restore_.restore);
      const SegmentExpectations expected{.identity = restore_.identity,
                                         .conversation = *folder,
                                         .generation = ref.generation,
                                         .layer_begin = ref.layer_begin,
                                         .layer_end = ref.layer_end,
                                         .index_digest = ref.index_digest,
                                         .bytes = static_cast<uint64_t>(ref.bytes)};
      ASSIGN_OR_RETURN(std::unique_ptr<SegmentReader> reader, hooks_.open(ref, expected));
      indexes_.push_back(reader->index());
      readers_.push_back(std::move(reader));
    }
    return absl::OkStatus();
  }

  // Digests find records, token ids prove them: where a file's own id list claims to be this path, it must be it.
  absl::Status ProveTokens(SegmentReader& reader) const {
    std::vector<size_t> positions;
    for (size_t i = 0; i < reader.index().size(); ++i) {
      const RecordKey& key = reader.index()[i].key;
      if (key.kind == RecordKind::kTokenIds && key.token_end <= n_tokens_ &&
          key.prefix == prefixes_.At(key.token_end)) {
        positions.push_back(i);
      }
    }
    return reader.ReadRecords(
        positions, [&](const IndexEntry& entry, std::span<const std::byte> payload) -> absl::Status {
          const size_t bytes = static_cast<size_t>(entry.key.tokens()) * sizeof(int32_t);
          if (payload.size() != bytes ||
              std::memcmp(payload.data(), restore_.tokens.data() + entry.key.token_begin, bytes) != 0) {
            return DataLoss("the token ids in the file are not the conversation's");
          }
          return absl::OkStatus();
        });
  }

  absl::Status PlanAll() {
    RETURN_IF_ERROR(Plan(pieces_.Rows(0, n_tokens_), 0));
    RETURN_IF_ERROR(PlanStateAt(restore_.state.position, 0));
    for (size_t i = 0; i < restore_.checkpoints.size(); ++i) {
      RETURN_IF_ERROR(PlanStateAt(restore_.checkpoints[i].position, i + 1));
    }
    return absl::OkStatus();
  }

  absl::Status PlanStateAt(int64_t position, size_t tables) {
    if (position < 0 || position > n_tokens_) return Internal("a state at {} of {}", position, n_tokens_);
    RETURN_IF_ERROR(pieces_.CheckTables(position, tables_[tables]));
    return Plan(pieces_.StateAt(position), tables);
  }

  absl::Status Plan(const std::vector<PieceRun>& runs, size_t tables) {
    for (const PieceRun& run : runs) {
      const StatePiece &first = run.front(), &last = run.back();
      const RecordsOf what{first.layer, first.kind};
      std::vector<PlannedRecord> records;
      if (first.kind == RecordKind::kRecurrent || first.kind == RecordKind::kConv) {
        ASSIGN_OR_RETURN(const PlannedRecord record, PlanState(indexes_, what, prefixes_, last.end));
        records = {record};
      } else {
        ASSIGN_OR_RETURN(records, PlanRows(indexes_, what, prefixes_, first.begin, last.end));
      }
      for (const PlannedRecord& record : records) {
        bytes_total_ += static_cast<int64_t>(indexes_[record.segment][record.entry].bytes);
        destinations_[{record.segment, record.entry}].push_back({tables, record.use_begin, record.use_end});
      }
      plan_.insert(plan_.end(), records.begin(), records.end());
    }
    return absl::OkStatus();
  }

  absl::Status ReadAll() {
    for (const SegmentReads& reads : GroupBySegment(plan_)) {
      SegmentReader& reader = *readers_[reads.segment];
      const size_t segment = reads.segment;
      const auto use = [&](const IndexEntry& entry, std::span<const std::byte> payload) -> absl::Status {
        if (hooks_.cancelled()) return layover::Cancelled("restore {} was cancelled", restore_.restore);
        const auto position = static_cast<size_t>(&entry - reader.index().data());
        return Use(destinations_.at({segment, position}), entry.key, payload);
      };
      // The device takes payloads from the reader's own buffers, beside what is read and verified meanwhile.
      std::deque<std::unique_ptr<Event>> copies;
      const ReadHold hold{.used = [&] { copies.push_back(stream_.Record()); },
                          .done = [&] { return copies.front()->Done(); },
                          .wait =
                              [&] {
                                WaitFor(*copies.front());
                                copies.pop_front();
                              }};
      RETURN_IF_ERROR(reader.ReadRecords(reads.positions, use, &hold));
      hooks_.tick(bytes_done_, bytes_total_);
    }
    return absl::OkStatus();
  }

  absl::Status Use(const std::vector<Destination>& destinations, const RecordKey& key,
                   std::span<const std::byte> payload) {
    const StatePiece whole{key.kind, key.layer, key.token_begin, key.token_end};
    if (key.element != pieces_.Element(whole) || payload.size() != pieces_.Bytes(whole)) {
      return DataLoss("a record of layer {} does not have this model's {}", key.layer, RecordKindName(key.kind));
    }
    for (const Destination& to : destinations) {
      const StatePiece piece{key.kind, key.layer, to.begin, to.end};
      const size_t row_bytes = payload.size() / static_cast<size_t>(key.tokens());
      const bool is_state = key.kind == RecordKind::kRecurrent || key.kind == RecordKind::kConv;
      const size_t offset = is_state ? 0 : static_cast<size_t>(to.begin - key.token_begin) * row_bytes;
      pieces_.Write(stream_, piece, tables_[to.tables], payload.data() + offset);
    }
    bytes_done_ += static_cast<int64_t>(payload.size());
    return absl::OkStatus();
  }

  const StatePieces& pieces_;
  const wire::RestoreSession& restore_;
  const RestoreHooks& hooks_;
  Stream& stream_;
  const PrefixDigests prefixes_;
  const int32_t n_tokens_;
  std::vector<StateTables> tables_;  // of the session, then of each checkpoint
  std::vector<std::unique_ptr<SegmentReader>> readers_;
  std::vector<IndexView> indexes_;
  std::vector<PlannedRecord> plan_;
  std::map<std::pair<size_t, size_t>, std::vector<Destination>> destinations_;  // by segment and entry
  int64_t bytes_done_ = 0;
  int64_t bytes_total_ = 0;
};

}  // namespace

absl::Status FillFromSegments(Stream& stream, const StatePieces& pieces, const wire::RestoreSession& restore,
                              const RestoreHooks& hooks, int64_t* bytes_read) {
  const absl::Status status = Restore(stream, pieces, restore, hooks).Run(bytes_read);
  // Also after an error: the pages may be somebody else's next.
  const absl::Status copied = stream.Synchronize();
  return status.ok() ? copied : status;
}

}  // namespace layover
