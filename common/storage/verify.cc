// VerifyConversation: every byte of a conversation's files, and whether together they are a state.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/limits.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/record_plan.h"
#include "common/storage/remote_segment.h"
#include "common/storage/store_layout.h"
#include "fmt/format.h"

namespace layover {
namespace {

class Verifier {
 public:
  Verifier(const std::string& store, ConversationImage image, const std::function<void(uint64_t)>& progress,
           const RemoteOpener& open_remote)
      : store_(store), image_(std::move(image)), progress_(progress), open_remote_(open_remote) {}

  VerifyReport Run() {
    report_.id = image_.id;
    report_.owner = image_.owner;
    AddFileBytes(kJournalName);
    AddFileBytes(kManifestName);
    if (!image_.journal_status.ok()) Problem(image_.journal_status, kJournalName);
    const bool saved = !absl::IsNotFound(image_.manifest_status);
    if (saved && !image_.manifest_status.ok() && image_.manifest_status != image_.journal_status) {
      Problem(image_.manifest_status, kManifestName);
    }
    if (image_.manifest_status.ok()) {
      report_.generation = image_.manifest->generation;
      for (const ManifestSegment& segment : image_.manifest->segments) ReadSegment(segment);
      // What the records make up together can only be judged if each of them is sound.
      if (report_.problems.empty()) CheckState();
    }
    return std::move(report_);
  }

 private:
  void Problem(const absl::Status& status, std::string_view file, int layer = -1) {
    const StatusPart part = PartOf(status).value_or(StatusPart{});
    report_.problems.push_back(
        {part.file.empty() ? std::string(file) : part.file, part.stage, layer, std::string(ToStd(status.message()))});
  }

  void Problem(const ManifestSegment& segment, int layer, std::string what) {
    report_.problems.push_back({segment.Path(), segment.stage, layer, std::move(what)});
  }

  void AddFileBytes(std::string_view name) {
    const std::string path = JoinPath(ConversationPath(store_, image_.folder), name);
    const absl::StatusOr<UniqueFd> fd = OpenFile(path, OpenMode::kRead);
    if (!fd.ok()) return;
    report_.bytes += FileBytes(fd->get(), path).value_or(0);
  }

  absl::StatusOr<std::unique_ptr<SegmentReader>> Open(const ManifestSegment& segment, const SegmentPlace& place,
                                                      const SegmentReader::Options& options) const {
    if (segment.host.empty()) return SegmentReader::Open(place.path, place.expected, options);
    ASSIGN_OR_RETURN(std::unique_ptr<BlockReader> blocks,
                     open_remote_(segment.host, std::string(BaseName(DirName(place.path))), segment.file));
    return OpenSegmentBlocks(std::move(blocks), place.path, place.expected, options);
  }

  void ReadSegment(const ManifestSegment& segment) {
    if (!segment.host.empty() && !open_remote_)
      return Problem(segment, -1, fmt::format("is kept by {}, it cannot be read here", segment.host));
    absl::StatusOr<SegmentPlace> place = PlaceOfSegment(store_, image_.folder, *image_.manifest, segment);
    if (!place.ok()) return Problem(place.status(), segment.file);
    SegmentReader::Options options;
    const uint64_t before = report_.bytes;
    if (progress_) options.progress = [this, before](uint64_t bytes) { progress_(before + bytes); };
    absl::StatusOr<std::unique_ptr<SegmentReader>> reader = Open(segment, *place, options);
    if (!reader.ok()) return Problem(reader.status(), segment.file);
    std::vector<size_t> all((*reader)->index().size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    const absl::Status status =
        (*reader)->ReadRecords(all, [&](const IndexEntry& entry, std::span<const std::byte> payload) {
          LookInto(segment, entry, payload);
          return absl::OkStatus();
        });
    if (!status.ok()) Problem(status, segment.file, (*reader)->damaged_layer());
    report_.n_records += all.size();
    report_.bytes += (*reader)->file_bytes();
    indexes_.push_back((*reader)->index());
  }

  // Payloads whose meaning is known here.
  void LookInto(const ManifestSegment& segment, const IndexEntry& entry, std::span<const std::byte> payload) {
    if (entry.key.kind == RecordKind::kTokenIds) CheckIds(segment, entry, payload);
    if (entry.key.kind != RecordKind::kCheckpoint) return;
    absl::StatusOr<Checkpoint> checkpoint = DecodeCheckpoint(payload);
    if (!checkpoint.ok()) return Problem(segment, -1, std::string(ToStd(checkpoint.status().message())));
    if (checkpoint->position != entry.key.token_end) {
      return Problem(segment, -1, fmt::format("a checkpoint at {} says {}", entry.key.token_end, checkpoint->position));
    }
    checkpoints_.emplace_back(&segment, *std::move(checkpoint));
  }

  // Digests find, token ids prove: both must be those of a path in the journal.
  void CheckIds(const ManifestSegment& segment, const IndexEntry& entry, std::span<const std::byte> payload) {
    const JournalState& journal = image_.journal.state;
    const int64_t turn = journal.FindTurn(entry.key.token_end, entry.key.prefix);
    if (turn == kNoTurn) return Problem(segment, -1, "holds token ids that the journal does not have");
    const std::vector<int32_t> ids = journal.PathIds(turn, entry.key.token_end);
    if (std::memcmp(ids.data() + entry.key.token_begin, payload.data(), payload.size()) != 0) {
      Problem(segment, -1, "holds other token ids than the journal");
    }
  }

  void CheckState() {
    CheckCheckpoints();
    const auto n_layers = static_cast<int32_t>(image_.manifest->identity.weights.size()) - 2;
    for (const IndexView index : indexes_) {
      for (const IndexEntry& entry : index) kinds_[entry.key.layer].insert(entry.key.kind);
    }
    views_.assign(indexes_.begin(), indexes_.end());
    for (const ManifestBranch& branch : image_.manifest->branches) {
      const int64_t turn = image_.journal.state.FindTurn(branch.n_tokens, branch.prefix);
      if (turn == kNoTurn && branch.n_tokens > 0) {
        report_.problems.push_back(
            {std::string(kManifestName), -1, -1,
             fmt::format("branch {} has {} tokens that the journal does not have", branch.branch, branch.n_tokens)});
        continue;
      }
      const PrefixDigests path(image_.journal.state.PathIds(turn, branch.n_tokens));
      for (int32_t layer = 0; layer < n_layers && branch.n_tokens > 0; ++layer)
        CheckLayer(layer, path, branch.n_tokens);
    }
  }

  void CheckLayer(int32_t layer, const PrefixDigests& path, int32_t n) {
    const std::set<RecordKind>& kinds = kinds_[layer];
    const auto missing = [&](const absl::Status& status) {
      if (!status.ok())
        report_.problems.push_back({std::string(kManifestName), -1, layer, std::string(ToStd(status.message()))});
    };
    if (kinds.empty()) missing(DataLoss("no segment holds anything of layer {}", layer));
    for (const auto& [k, v] : {std::pair(RecordKind::kKRows, RecordKind::kVRows),
                               std::pair(RecordKind::kWindowKRows, RecordKind::kWindowVRows)}) {
      if (!kinds.contains(k) && !kinds.contains(v)) continue;
      // A sliding window needs at least the last row; how many more is the model's to know.
      const int32_t begin = k == RecordKind::kKRows ? 0 : n - 1;
      missing(PlanRows(views_, {layer, k}, path, begin, n).status());
      missing(PlanRows(views_, {layer, v}, path, begin, n).status());
    }
    if (kinds.contains(RecordKind::kRecurrent) || kinds.contains(RecordKind::kConv)) {
      missing(PlanState(views_, {layer, RecordKind::kRecurrent}, path, n).status());
      missing(PlanState(views_, {layer, RecordKind::kConv}, path, n).status());
    }
  }

  void CheckCheckpoints() {
    std::set<std::pair<Digest, std::pair<int32_t, int32_t>>> held;  // payload, layer, end
    for (const std::vector<IndexEntry>& index : indexes_) {
      for (const IndexEntry& entry : index) held.insert({entry.payload, {entry.key.layer, entry.key.token_end}});
    }
    for (const auto& [segment, checkpoint] : checkpoints_) {
      for (const CheckpointReference& reference : checkpoint.references) {
        if (held.contains({reference.payload, {reference.layer, reference.token_end}})) continue;
        Problem(*segment, reference.layer,
                fmt::format("the checkpoint at {} needs a {} of layer {} that no segment holds", checkpoint.position,
                            RecordKindName(reference.kind), reference.layer));
      }
    }
  }

  const std::string& store_;
  const ConversationImage image_;
  const std::function<void(uint64_t)>& progress_;
  const RemoteOpener& open_remote_;
  VerifyReport report_;
  std::vector<std::vector<IndexEntry>> indexes_;  // of the segments read
  std::vector<IndexView> views_;                  // of indexes_
  std::vector<std::pair<const ManifestSegment*, Checkpoint>> checkpoints_;
  std::map<int32_t, std::set<RecordKind>> kinds_;  // layer -> what some segment holds of it
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyConversation(const std::string& store, const std::string& folder,
                                                const std::function<void(uint64_t bytes)>& progress) {
  return VerifyConversation(store, folder, progress, nullptr);
}

absl::StatusOr<VerifyReport> VerifyConversation(const std::string& store, const std::string& folder,
                                                const std::function<void(uint64_t bytes)>& progress,
                                                const RemoteOpener& open_remote) {
  ASSIGN_OR_RETURN(ConversationImage image, LoadConversation(store, folder));
  if (absl::IsNotFound(image.journal_status) && !image.manifest.has_value() &&
      absl::IsNotFound(image.manifest_status)) {
    return NotFound("there is no conversation in {}", folder);
  }
  return Verifier(store, std::move(image), progress, open_remote).Run();
}

}  // namespace layover
