#include "common/storage/portable_import.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/rebind.h"
#include "common/storage/staging.h"
#include "common/storage/store_layout.h"
#include "fmt/format.h"

namespace layover {
namespace {

// A damaged part of a portable file, with the part's own name.
absl::Status PartDamage(std::string_view name, const absl::Status& status) {
  StatusPart part;
  part.file = std::string(name);
  return WithPart(DataLoss("{}: {}", name, ToStd(status.message())), part);
}

absl::Status CheckId(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (printable && !id.empty() && id.size() <= limits::kMaxConversationIdBytes) return absl::OkStatus();
  return InvalidArgument("an id has 1 to {} printable ASCII characters", limits::kMaxConversationIdBytes);
}

absl::Status CheckOwner(const std::string& owner) {
  const bool control = std::any_of(owner.begin(), owner.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  if (!control && owner.size() <= limits::kMaxStoredNameBytes) return absl::OkStatus();
  return InvalidArgument("an owner's name has at most {} bytes and no control characters", limits::kMaxStoredNameBytes);
}

// One segment of the file: what it is, and what it becomes.
struct IncomingSegment {
  ManifestSegment was;
  std::string home;        // folder for which it was written
  int64_t generation = 0;  // here
};

class Importer {
 public:
  Importer(const std::string& store, PortableReader* reader, const std::string& owner, const std::string& id)
      : store_(store),
        reader_(reader),
        owner_(owner),
        id_(id),
        was_folder_(ConversationFolder(reader->head().owner, reader->head().id)),
        folder_(ConversationFolder(owner, id)),
        staging_(StagingPath(store)),
        staged_(ConversationPath(staging_, folder_)) {}

  absl::StatusOr<PortableSummary> Run() {
    RETURN_IF_ERROR(ReadManifestText());
    RETURN_IF_ERROR(FindPlace());
    RETURN_IF_ERROR(CheckSpace());
    absl::Status status = Build();
    if (status.ok()) status = PublishStaged(store_, folder_, kept_);
    const absl::Status removed = RemoveStaging(store_);
    RETURN_IF_ERROR(status);
    // The conversation is there; a start or a later import removes what is left.
    if (!removed.ok()) LogWarning("removing {}: {}", staging_, ToStd(removed.message()));
    return summary_;
  }

 private:
  // What the file must hold, before anything is written.
  absl::Status ReadManifestText() {
    const PortableHead& head = reader_->head();
    uint64_t body_bytes = head.journal_bytes;
    if (!head.manifest.empty()) {
      absl::StatusOr<ParsedManifest> parsed = ParseManifest(head.manifest);
      RETURN_IF_ERROR(parsed.status());
      manifest_ = std::move(parsed->manifest);
      manifest_digest_ = parsed->digest;
      if (manifest_->owner != head.owner || manifest_->id != head.id) {
        return PartDamage(kManifestName, DataLoss("it belongs to another conversation"));
      }
      for (const ManifestSegment& segment : manifest_->segments) {
        if (!segment.host.empty() || segment.bytes % limits::kBlockBytes != 0) {
          return PartDamage(segment.Path(), DataLoss("{} bytes of it, kept by '{}'", segment.bytes, segment.host));
        }
        body_bytes += segment.bytes;  // no overflow: 2^16 segments of at most 2^42 bytes
      }
    }
    body_bytes_ = body_bytes;
    return reader_->ExpectBody(body_bytes);
  }

  absl::Status Exists(std::string_view how) const {
    return absl::AlreadyExistsError(
        ToAbsl(fmt::format("{}: conversation {} exists{}; choose another id with --as", store_, id_, how)));
  }

  // Whether the folder is free. Segments that it keeps for others stay.
  absl::Status FindPlace() {
    absl::StatusOr<ConversationImage> image = LoadConversation(store_, folder_);
    if (absl::IsNotFound(image.status())) return absl::OkStatus();
    RETURN_IF_ERROR(image.status());
    const bool gone = absl::IsNotFound(image->journal_status) || image->journal.state.deleted;
    const bool unsaved = absl::IsNotFound(image->manifest_status) || image->journal.state.deleted;
    if (!gone || !unsaved) return Exists(image->journal_status.ok() ? "" : " and is damaged");
    ASSIGN_OR_RETURN(const StartReport cleaned, CleanStore(store_));
    if (!cleaned.names.MayRemove()) {
      const auto& [folder, why] = *cleaned.names.unreadable().begin();
      return Exists(
          fmt::format(" in parts, which cannot be judged while {} is unreadable ({})", folder, ToStd(why.message())));
    }
    absl::StatusOr<std::vector<std::string>> files = ListFolder(ConversationPath(store_, folder_));
    if (absl::IsNotFound(files.status())) return absl::OkStatus();
    RETURN_IF_ERROR(files.status());
    for (const std::string& file : *files) {
      if (!ParseSegmentFileName(file).has_value()) return Exists(fmt::format(" in parts ({})", file));
    }
    kept_ = *std::move(files);
    return kept_.empty() ? RemoveEmptyFolder(ConversationPath(store_, folder_)) : absl::OkStatus();
  }

  absl::Status CheckSpace() const {
    ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(store_));
    if (free >= body_bytes_) return absl::OkStatus();
    return ResourceExhausted("{}: {} bytes are free, the conversation has {}", store_, free, body_bytes_);
  }

  // Everything in the staging folder, synced and verified.
  absl::Status Build() {
    RETURN_IF_ERROR(PrepareStaging(store_, folder_));
    RETURN_IF_ERROR(TakeJournal());
    if (manifest_.has_value()) {
      RETURN_IF_ERROR(PlanNames());
      for (IncomingSegment& segment : incoming_) RETURN_IF_ERROR(TakeSegment(segment));
      RETURN_IF_ERROR(PutManifest());
    }
    RETURN_IF_ERROR(Verify());
    summary_.owner = owner_;
    summary_.id = id_;
    summary_.bytes = reader_->file_bytes();
    if (manifest_.has_value()) {
      summary_.generation = manifest_->generation;
      summary_.n_tokens = manifest_->n_tokens;
      summary_.n_segments = static_cast<int32_t>(manifest_->segments.size());
    }
    return absl::OkStatus();
  }

  // Into the folder of the id that it was written for, where it can be judged; then, if need be, to the other id.
  absl::Status TakeJournal() {
    const std::string was = ConversationPath(staging_, was_folder_);
    RETURN_IF_ERROR(EnsureFolder(was));
    RETURN_IF_ERROR(CopyJournal(JoinPath(was, kJournalName)));
    const std::optional<JournalBound> bound = manifest_.has_value() ? std::optional(manifest_->journal) : std::nullopt;
    ASSIGN_OR_RETURN(const Journal::Inspection journal, Journal::Inspect(was, bound));
    if (journal.torn_bytes > 0) return PartDamage(kJournalName, DataLoss("its last frame is cut"));
    if (journal.state.deleted) return PartDamage(kJournalName, DataLoss("the conversation was deleted"));
    if (manifest_.has_value() && !journal.state.Accepts(manifest_->generation, manifest_digest_)) {
      return PartDamage(kManifestName, DataLoss("the journal says that another generation was saved"));
    }
    if (!manifest_.has_value() && journal.state.saved.has_value()) {
      return PartDamage(kManifestName, DataLoss("it is missing, though the journal says that it was saved"));
    }
    highest_generation_ = journal.state.highest_generation;
    if (folder_ == was_folder_) return absl::OkStatus();
    RETURN_IF_ERROR(RebindJournal(was, staged_, owner_, id_));
    RETURN_IF_ERROR(RemoveFile(was, kJournalName));
    return RemoveEmptyFolder(was);
  }

  absl::Status CopyJournal(const std::string& path) {
    ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, OpenMode::kCreate));
    std::string buffer;
    for (uint64_t at = 0; at < reader_->head().journal_bytes; at += buffer.size()) {
      buffer.resize(std::min<uint64_t>(limits::kIoBufferBytes, reader_->head().journal_bytes - at));
      RETURN_IF_ERROR(reader_->Read(std::as_writable_bytes(std::span(buffer))));
      RETURN_IF_ERROR(WriteAt(fd.get(), path, at, buffer));
    }
    return SyncFile(fd.get(), path);
  }

  // Which generation each segment gets here. Own segments keep theirs unless the name is taken; every other folder and
  // generation gets a new one.
  absl::Status PlanNames() {
    highest_generation_ = std::max(highest_generation_, manifest_->generation);
    const std::set<std::string> taken(kept_.begin(), kept_.end());
    for (const std::string& file : kept_) {
      highest_generation_ = std::max(highest_generation_, ParseSegmentFileName(file)->generation);
    }
    std::set<int64_t> moved;  // own generations, any file of which is taken
    for (const ManifestSegment& segment : manifest_->segments) {
      if (segment.folder.empty() && taken.contains(segment.file)) moved.insert(segment.generation);
    }
    for (const ManifestSegment& segment : manifest_->segments) {
      if (segment.folder.empty() && !moved.contains(segment.generation)) {
        generations_[{segment.folder, segment.generation}] = segment.generation;
      }
      const auto [place, fresh] = generations_.try_emplace({segment.folder, segment.generation}, 0);
      if (fresh) place->second = ++highest_generation_;
      incoming_.push_back({segment, segment.folder.empty() ? was_folder_ : segment.folder, place->second});
    }
    if (highest_generation_ < limits::kMaxGeneration) return absl::OkStatus();
    return PartDamage(kManifestName, DataLoss("its generations leave no number for another save"));
  }

  bool IsBoundAnew(const IncomingSegment& segment) const {
    return segment.home != folder_ || segment.generation != segment.was.generation;
  }

  absl::Status TakeSegment(IncomingSegment& segment) {
    const std::string path = JoinPath(staged_, SegmentFileName(segment.was.stage, segment.generation));
    RETURN_IF_ERROR(CopySegment(path, segment.was.bytes));
    if (!IsBoundAnew(segment)) return absl::OkStatus();
    SegmentHeader was;
    was.identity = manifest_->identity.combined;
    was.conversation = *ParseFolderName(segment.home);
    was.stage = segment.was.stage;
    was.layer_begin = segment.was.layer_begin;
    was.layer_end = segment.was.layer_end;
    was.generation = segment.was.generation;
    const absl::StatusOr<Digest> index =
        RebindSegment(path, was, segment.was.index_digest, *ParseFolderName(folder_), segment.generation);
    if (absl::IsDataLoss(index.status())) return PartDamage(segment.was.Path(), index.status());
    RETURN_IF_ERROR(index.status());
    ManifestSegment& now = manifest_->segments[static_cast<size_t>(&segment - incoming_.data())];
    now.folder.clear();
    now.file = SegmentFileName(segment.was.stage, segment.generation);
    now.generation = segment.generation;
    now.index_digest = *index;
    return absl::OkStatus();
  }

  absl::Status CopySegment(const std::string& path, uint64_t bytes) {
    ASSIGN_OR_RETURN(const std::unique_ptr<BlockWriter> out, BlockWriter::Create(path, {}));
    for (uint64_t left = bytes; left > 0;) {
      const size_t piece = std::min<uint64_t>(left, limits::kMaxPortableChunkBytes);
      ASSIGN_OR_RETURN(const std::span<std::byte> room, out->Reserve(piece));
      RETURN_IF_ERROR(reader_->Read(room));
      left -= piece;
    }
    return out->Finish();
  }

  absl::Status PutManifest() {
    const bool anew = folder_ != was_folder_ ||
                      std::any_of(incoming_.begin(), incoming_.end(), [&](const auto& s) { return IsBoundAnew(s); });
    if (!anew) return WriteFileDurably(staged_, kManifestName, reader_->head().manifest);
    manifest_->owner = owner_;
    manifest_->id = id_;
    manifest_->generation = highest_generation_ + 1;
    for (ManifestBranch& branch : manifest_->branches) {
      for (ChainLink& link : branch.chain) {
        link.generation = generations_.at({link.folder, link.generation});
        link.folder.clear();
      }
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<Journal> journal, Journal::Open(staged_, std::nullopt));
    return CommitSave(staging_, folder_, &*manifest_, journal.get()).status;
  }

  absl::Status Verify() const {
    ASSIGN_OR_RETURN(const VerifyReport report, VerifyConversation(staging_, folder_, nullptr));
    if (report.ok()) return absl::OkStatus();
    const VerifyProblem& problem = report.problems.front();
    StatusPart part;
    part.file = problem.file;
    part.stage = problem.stage;
    return WithPart(DataLoss("{}", problem.what), part);
  }

  const std::string& store_;
  PortableReader* const reader_;
  const std::string& owner_;  // here, as id_
  const std::string& id_;
  const std::string was_folder_;
  const std::string folder_;
  const std::string staging_;
  const std::string staged_;
  std::optional<Manifest> manifest_;  // becomes the one that is put down
  Digest manifest_digest_;            // as it came
  uint64_t body_bytes_ = 0;
  std::vector<std::string> kept_;  // segments of others in the final folder
  int64_t highest_generation_ = 0;
  std::map<std::pair<std::string, int64_t>, int64_t> generations_;  // (folder, generation) as it came -> here
  std::vector<IncomingSegment> incoming_;                           // in the manifest's order
  PortableSummary summary_;
};

}  // namespace

absl::StatusOr<PortableSummary> ImportConversation(const std::string& store, PortableReader* reader,
                                                   const ImportTarget& target) {
  const std::string owner = target.owner.value_or(reader->head().owner);
  const std::string id = target.id.value_or(reader->head().id);
  RETURN_IF_ERROR(CheckOwner(owner));
  RETURN_IF_ERROR(CheckId(id));
  return Importer(store, reader, owner, id).Run();
}

}  // namespace layover
