#include "stage_worker/segment_save.h"

#include <cstring>
#include <span>

#include "common/status.h"
#include "common/storage/file_names.h"
#include "common/storage/record_plan.h"

namespace layover {
namespace {

class Save {
 public:
  Save(Stream& stream, const StatePieces& pieces, const wire::SaveSession& save, const SaveSettings& settings)
      : stream_(stream), pieces_(pieces), save_(save), settings_(settings) {}

  absl::StatusOr<SegmentSummary> Run(const std::vector<BranchSource>& sources) {
    const auto folder = ParseFolderName(save_.folder);
    if (!folder.has_value()) return Internal("save {}: bad folder name", save_.save);
    const LayerRange layers = pieces_.pages().layers();
    const SegmentHeader header{.identity = save_.identity,
                               .conversation = *folder,
                               .stage = settings_.stage,
                               .layer_begin = layers.begin,
                               .layer_end = layers.end,
                               .generation = save_.generation,
                               .n_tokens = static_cast<int32_t>(save_.branches.front().n_tokens)};
    int64_t bytes_total = 0;
    for (const wire::BranchCut& cut : save_.branches) {
      bytes_total += BytesOf(pieces_.Rows(cut.base, cut.n_tokens));
      bytes_total += BytesOf(pieces_.StateAt(cut.n_tokens, cut.window_base));
    }
    SegmentWriter::Options options{.io = settings_.io};
    options.progress = [&](uint64_t bytes) { settings_.progress(static_cast<int64_t>(bytes), bytes_total); };
    const std::string path = JoinPath(settings_.directory, SegmentFileName(settings_.stage, save_.generation));
    ASSIGN_OR_RETURN(writer_, SegmentWriter::Create(path, header, options));
    for (size_t i = 0; i < save_.branches.size(); ++i) {
      RETURN_IF_ERROR(WriteBranch(save_.branches[i], sources[i]));
    }
    return writer_->Finish();
  }

 private:
  // Of the branch that is being written.
  struct Branch {
    int32_t branch;
    const PrefixDigests& prefixes;
    const ParkImage* image;  // null: from the device
    RecordKey Key(RecordKind kind, ElementType element, int32_t layer, int32_t begin, int32_t end) const {
      return {.kind = kind,
              .element = element,
              .layer = layer,
              .token_begin = begin,
              .token_end = end,
              .branch = branch,
              .prefix = prefixes.At(end)};
    }
  };

  int64_t BytesOf(const std::vector<PieceRun>& runs) const {
    size_t bytes = 0;
    for (const PieceRun& run : runs) {
      for (const StatePiece& piece : run) bytes += pieces_.Bytes(piece);
    }
    return static_cast<int64_t>(bytes);
  }

  absl::Status Check() const {
    return settings_.cancelled() ? layover::Cancelled("save {} was aborted", save_.save) : absl::OkStatus();
  }

  absl::Status WriteBranch(const wire::BranchCut& cut, const BranchSource& source) {
    const std::vector<int32_t>& tokens = source.tokens();
    const PrefixDigests prefixes(std::span<const int32_t>(tokens).first(static_cast<size_t>(cut.n_tokens)));
    const Branch to{cut.branch, prefixes, source.image.get()};
    const StageSession& session = source.session;
    for (const wire::StateAt& checkpoint : cut.checkpoints) {
      RETURN_IF_ERROR(WriteRuns(to, pieces_.StateAt(checkpoint.position, cut.window_base),
                                {session.pages, checkpoint.window_pages, checkpoint.slot}));
    }
    if (cut.base == cut.n_tokens) return absl::OkStatus();
    const StateTables tables{session.pages, session.window_pages, session.state_slot};
    RETURN_IF_ERROR(WriteRuns(to, pieces_.StateAt(cut.n_tokens, cut.window_base), tables));
    RETURN_IF_ERROR(WriteRuns(to, pieces_.Rows(cut.base, cut.n_tokens), tables));
    // The ids are in every stage's files, so that each stage's files prove themselves.
    RETURN_IF_ERROR(writer_->BeginRun());
    const auto begin = static_cast<int32_t>(cut.base), end = static_cast<int32_t>(cut.n_tokens);
    const size_t bytes = static_cast<size_t>(end - begin) * sizeof(int32_t);
    ASSIGN_OR_RETURN(
        const std::span<std::byte> room,
        writer_->AppendRecord(to.Key(RecordKind::kTokenIds, ElementType::kInt32, kNoLayer, begin, end), bytes));
    std::memcpy(room.data(), tokens.data() + begin, bytes);
    return absl::OkStatus();
  }

  absl::Status WriteRuns(const Branch& to, const std::vector<PieceRun>& runs, const StateTables& from) {
    for (const PieceRun& run : runs) {
      RETURN_IF_ERROR(Check());
      RETURN_IF_ERROR(writer_->BeginRun());
      const bool together = to.image == nullptr && settings_.pieces_together;
      RETURN_IF_ERROR(together ? WriteTogether(to, run, from) : WriteOneByOne(to, run, from));
    }
    return absl::OkStatus();
  }

  RecordKey KeyOf(const Branch& to, const StatePiece& piece) const {
    return to.Key(piece.kind, pieces_.Element(piece), piece.layer, piece.begin, piece.end);
  }

  absl::Status WriteTogether(const Branch& to, const PieceRun& run, const StateTables& from) {
    std::vector<SegmentWriter::RecordSize> records;
    records.reserve(run.size());
    for (const StatePiece& piece : run) records.push_back({KeyOf(to, piece), pieces_.Bytes(piece)});
    const auto fill = [&](size_t i, std::span<std::byte> room) { pieces_.Read(stream_, run[i], from, room.data()); };
    return writer_->AppendRecords(records, fill, [&]() -> absl::Status {
      RETURN_IF_ERROR(stream_.Synchronize());
      return Check();
    });
  }

  absl::Status WriteOneByOne(const Branch& to, const PieceRun& run, const StateTables& from) {
    for (const StatePiece& piece : run) {
      ASSIGN_OR_RETURN(const std::span<std::byte> room, writer_->AppendRecord(KeyOf(to, piece), pieces_.Bytes(piece)));
      if (to.image == nullptr) {
        pieces_.Read(stream_, piece, from, room.data());
        RETURN_IF_ERROR(stream_.Synchronize());
        continue;
      }
      const std::byte* parked = to.image->Find(pieces_, piece);
      if (parked == nullptr)
        return Internal("the parked image lacks the {} at {}", RecordKindName(piece.kind), piece.end);
      std::memcpy(room.data(), parked, room.size());
    }
    return absl::OkStatus();
  }

  Stream& stream_;
  const StatePieces& pieces_;
  const wire::SaveSession& save_;
  const SaveSettings& settings_;
  std::unique_ptr<SegmentWriter> writer_;
};

}  // namespace

absl::StatusOr<SegmentSummary> SaveToSegment(Stream& stream, const StatePieces& pieces, const wire::SaveSession& save,
                                             const std::vector<BranchSource>& sources, const SaveSettings& settings) {
  return Save(stream, pieces, save, settings).Run(sources);
}

}  // namespace layover
