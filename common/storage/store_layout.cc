#include "common/storage/store_layout.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/staging.h"
#include "fmt/format.h"

namespace layover {
namespace {

absl::Status ManifestDamage(std::string_view what) {
  StatusPart part;
  part.file = std::string(kManifestName);
  return WithPart(DataLoss("{}: {}", kManifestName, what), part);
}

// Whether the parsed manifest is this conversation's valid generation.
absl::Status JudgeManifest(const ConversationImage& image) {
  const Manifest& manifest = *image.manifest;
  if (ConversationFolder(manifest.owner, manifest.id) != image.folder) {
    return ManifestDamage("it belongs to another conversation");
  }
  if (absl::IsNotFound(image.journal_status)) {
    StatusPart part;
    part.file = std::string(kJournalName);
    return WithPart(DataLoss("{}: missing, though generation {} was saved", kJournalName, manifest.generation), part);
  }
  RETURN_IF_ERROR(image.journal_status);
  if (image.journal.state.Accepts(manifest.generation, image.manifest_digest)) return absl::OkStatus();
  return ManifestDamage(
      fmt::format("generation {} is not the one that the journal says was saved", manifest.generation));
}

using JournalReader = std::function<absl::StatusOr<Journal::Inspection>(const std::optional<JournalBound>&)>;

// Reads the manifest, then the journal that it binds, then lets the journal judge the manifest.
void ReadBoth(const std::string& path, const JournalReader& read_journal, ConversationImage* image) {
  absl::StatusOr<ParsedManifest> parsed = ReadManifest(path);
  std::optional<JournalBound> bound;
  if (parsed.ok()) {
    image->manifest = std::move(parsed->manifest);
    image->manifest_digest = parsed->digest;
    const bool own = ConversationFolder(image->manifest->owner, image->manifest->id) == image->folder;
    if (own) bound = image->manifest->journal;
  }
  absl::StatusOr<Journal::Inspection> journal = read_journal(bound);
  if (!journal.ok() && bound.has_value()) {
    // A whole journal that knows this generation, but with another manifest, is not to blame for a foreign one's bound.
    absl::StatusOr<Journal::Inspection> alone = Journal::Inspect(path, std::nullopt);
    if (alone.ok() && alone->torn_bytes == 0 && image->manifest->generation <= alone->state.highest_generation &&
        !alone->state.Accepts(image->manifest->generation, image->manifest_digest)) {
      journal = read_journal(std::nullopt);
    }
  }
  image->journal_status = journal.status();
  if (journal.ok()) image->journal = *std::move(journal);
  image->manifest_status = parsed.ok() ? JudgeManifest(*image) : parsed.status();
  const std::optional<SavingFrame>& saved = image->journal.state.saved;
  if (absl::IsNotFound(image->manifest_status) && saved.has_value() && !image->journal.state.deleted) {
    image->manifest_status = ManifestDamage(fmt::format("missing, though generation {} was saved", saved->generation));
  }
  image->missing_saved =
      image->manifest_status.ok() && (!saved.has_value() || saved->generation != image->manifest->generation ||
                                      saved->manifest != image->manifest_digest);
}

absl::StatusOr<ConversationImage> Load(const std::string& path, const std::string& folder,
                                       const JournalReader& read_journal) {
  ConversationImage image;
  image.folder = folder;
  ASSIGN_OR_RETURN(image.files, ListFolder(path));
  ReadBoth(path, read_journal, &image);
  const bool from_journal = image.journal_status.ok();
  if (from_journal) {
    image.owner = image.journal.state.owner;
    image.id = image.journal.state.id;
    image.next_generation = image.journal.state.highest_generation + 1;
  } else if (image.manifest.has_value()) {
    image.owner = image.manifest->owner;
    image.id = image.manifest->id;
  }
  if (image.manifest.has_value())
    image.next_generation = std::max(image.next_generation, image.manifest->generation + 1);
  for (const std::string& file : image.files) {
    const std::optional<SegmentName> name = ParseSegmentFileName(file);
    if (name.has_value()) image.next_generation = std::max(image.next_generation, name->generation + 1);
  }
  return image;
}

// What one conversation contributes.
void NoteNames(const ConversationImage& image, SegmentNames* names) {
  if (image.journal.state.deleted) return names->Set(image.folder, nullptr);
  names->Set(image.folder, image.manifest.has_value() ? &*image.manifest : nullptr);
  for (const absl::Status& status : {image.manifest_status, image.journal_status}) {
    if (!status.ok() && !absl::IsNotFound(status)) return names->SetUnreadable(image.folder, status);
  }
}

// Segments of one folder that nothing names; none while something unreadable may name them.
absl::StatusOr<std::vector<std::string>> RemoveUnnamed(const std::string& store, const std::string& folder,
                                                       const SegmentNames& names) {
  std::vector<std::string> removed;
  if (!names.MayRemove()) return removed;
  const std::string path = ConversationPath(store, folder);
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListFolder(path));
  for (const std::string& file : files) {
    if (!ParseSegmentFileName(file).has_value() || names.Names(folder, file)) continue;
    RETURN_IF_ERROR(RemoveFile(path, file));
    removed.push_back(file);
  }
  if (!removed.empty()) RETURN_IF_ERROR(SyncFolder(path));
  return removed;
}

// Everything of a deleted conversation that nothing else needs. The journal goes last: until then it says `deleted`.
absl::Status RemoveRemains(const std::string& store, const std::string& folder, const SegmentNames& names) {
  const std::string path = ConversationPath(store, folder);
  RETURN_IF_ERROR(RemoveDurably(path, kManifestName));
  RETURN_IF_ERROR(RemoveUnnamed(store, folder, names).status());
  // Segments that could not be judged must be looked at again, so the folder must still say that it was deleted.
  if (!names.MayRemove()) return absl::OkStatus();
  RETURN_IF_ERROR(RemoveDurably(path, kJournalName));
  const absl::Status gone = RemoveEmptyFolder(path);
  return absl::IsFailedPrecondition(gone) ? absl::OkStatus() : gone;  // it keeps segments for others
}

absl::Status RemoveTemporaries(const std::string& store, const ConversationImage& image, StartReport* report) {
  const std::string path = ConversationPath(store, image.folder);
  for (const std::string& file : image.files) {
    if (!file.ends_with(kTemporarySuffix)) continue;
    RETURN_IF_ERROR(RemoveFile(path, file));
    report->removed.push_back(JoinPath(image.folder, file));
  }
  return absl::OkStatus();
}

// Opening a journal mends it; a missing `saved` is appended.
absl::Status MendJournal(const std::string& store, const ConversationImage& image, StartReport* report) {
  if (!image.journal_status.ok() || (image.journal.torn_bytes == 0 && !image.missing_saved)) return absl::OkStatus();
  const std::optional<JournalBound> bound =
      image.manifest_status.ok() ? std::optional<JournalBound>(image.manifest->journal) : std::nullopt;
  ASSIGN_OR_RETURN(const std::unique_ptr<Journal> journal, Journal::Open(ConversationPath(store, image.folder), bound));
  if (image.journal.torn_bytes > 0) report->mended.push_back(image.folder);
  if (!image.missing_saved) return absl::OkStatus();
  RETURN_IF_ERROR(journal->AppendSaved(image.manifest->generation, image.manifest_digest));
  report->completed.push_back(image.folder);
  return absl::OkStatus();
}

absl::Status CleanFolder(const std::string& store, const ConversationImage& image, const SegmentNames& names,
                         StartReport* report) {
  RETURN_IF_ERROR(RemoveTemporaries(store, image, report));
  if (image.journal_status.ok() && image.journal.state.deleted) {
    RETURN_IF_ERROR(RemoveRemains(store, image.folder, names));
    report->deleted.push_back(image.folder);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(MendJournal(store, image, report));
  ASSIGN_OR_RETURN(const std::vector<std::string> removed, RemoveUnnamed(store, image.folder, names));
  for (const std::string& file : removed) report->removed.push_back(JoinPath(image.folder, file));
  // A folder whose journal was never finished holds nothing.
  if (absl::IsNotFound(image.journal_status)) {
    const absl::Status gone = RemoveEmptyFolder(ConversationPath(store, image.folder));
    if (!absl::IsFailedPrecondition(gone)) return gone;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListConversationFolders(const std::string& store) {
  absl::StatusOr<std::vector<std::string>> names = ListFolder(JoinPath(store, kConversationsName));
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  RETURN_IF_ERROR(names.status());
  std::erase_if(*names, [](const std::string& name) { return !ParseFolderName(name).has_value(); });
  return names;
}

absl::StatusOr<ConversationImage> LoadConversation(const std::string& store, const std::string& folder) {
  const std::string path = ConversationPath(store, folder);
  return Load(path, folder, [&](const std::optional<JournalBound>& bound) { return Journal::Inspect(path, bound); });
}

absl::StatusOr<OpenConversation> LoadAndOpen(const std::string& store, const std::string& folder) {
  const std::string path = ConversationPath(store, folder);
  OpenConversation open;
  const auto read = [&](const std::optional<JournalBound>& bound) -> absl::StatusOr<Journal::Inspection> {
    ASSIGN_OR_RETURN(open.journal, Journal::Open(path, bound));
    return Journal::Inspection{open.journal->state(), open.journal->bound(), 0};
  };
  ASSIGN_OR_RETURN(open.image, Load(path, folder, read));
  return open;
}

absl::StatusOr<ConversationImage> LoadBeside(const std::string& store, const std::string& folder,
                                             const Journal& journal) {
  const auto held = [&](const std::optional<JournalBound>&) -> absl::StatusOr<Journal::Inspection> {
    return Journal::Inspection{journal.state(), journal.bound(), 0};
  };
  return Load(ConversationPath(store, folder), folder, held);
}

absl::StatusOr<SegmentPlace> PlaceOfSegment(const std::string& store, const std::string& folder,
                                            const Manifest& manifest, const ManifestSegment& segment) {
  const std::string& home = segment.folder.empty() ? folder : segment.folder;
  const std::optional<FolderDigest> conversation = ParseFolderName(home);
  if (!conversation.has_value()) return InvalidArgument("{} is no conversation's folder", home);
  SegmentPlace place;
  place.path = JoinPath(ConversationPath(store, home), segment.file);
  place.expected.identity = manifest.identity.combined;
  place.expected.conversation = conversation;
  place.expected.generation = segment.generation;
  place.expected.stage = segment.stage;
  place.expected.layer_begin = segment.layer_begin;
  place.expected.layer_end = segment.layer_end;
  place.expected.index_digest = segment.index_digest;
  place.expected.bytes = segment.bytes;
  return place;
}

absl::StatusOr<SegmentNames> SegmentNames::Collect(const std::string& store) {
  SegmentNames names;
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(store));
  for (const std::string& folder : folders) {
    const absl::StatusOr<ConversationImage> image = LoadConversation(store, folder);
    if (image.ok()) {
      NoteNames(*image, &names);
    } else {
      names.SetUnreadable(folder, image.status());
    }
  }
  return names;
}

void SegmentNames::Set(const std::string& folder, const Manifest* manifest) {
  unreadable_.erase(folder);
  for (const std::string& path : by_folder_[folder]) {
    if (--counts_[path] == 0) counts_.erase(path);
  }
  by_folder_.erase(folder);
  if (manifest == nullptr) return;
  std::vector<std::string>& paths = by_folder_[folder];
  for (const ManifestSegment& segment : manifest->segments) {
    paths.push_back(segment.folder.empty() ? JoinPath(folder, segment.file) : segment.Path());
    ++counts_[paths.back()];
  }
}

void SegmentNames::SetUnreadable(const std::string& folder, absl::Status why) {
  unreadable_[folder] = std::move(why);
}

bool SegmentNames::Names(const std::string& folder, const std::string& file) const {
  return counts_.contains(JoinPath(folder, file));
}

absl::StatusOr<StartReport> CleanStore(const std::string& store) {
  StartReport report;
  ASSIGN_OR_RETURN(report.removed, ListStaging(store));
  RETURN_IF_ERROR(RemoveStaging(store));
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(store));
  // All names first: a segment of one folder may be named by another's manifest.
  ASSIGN_OR_RETURN(report.names, SegmentNames::Collect(store));
  for (const std::string& folder : folders) {
    const absl::StatusOr<ConversationImage> image = LoadConversation(store, folder);
    if (image.ok()) RETURN_IF_ERROR(CleanFolder(store, *image, report.names, &report));
  }
  return report;
}

absl::Status DeleteConversation(const std::string& store, const std::string& folder, Journal* journal,
                                SegmentNames* names) {
  std::unique_ptr<Journal> opened;
  if (journal == nullptr) {
    // Without a bound: what the manifest says does not matter any more.
    absl::StatusOr<std::unique_ptr<Journal>> own = Journal::Open(ConversationPath(store, folder), std::nullopt);
    if (own.ok()) opened = *std::move(own);
    journal = opened.get();
  }
  if (journal != nullptr && !journal->state().deleted) RETURN_IF_ERROR(journal->AppendDeleted());
  names->Set(folder, nullptr);
  return RemoveRemains(store, folder, *names);
}

absl::StatusOr<std::vector<std::string>> RemoveDeadSegments(const std::string& store, const std::string& folder,
                                                            const SegmentNames& names) {
  return RemoveUnnamed(store, folder, names);
}

CommitOutcome CommitSave(const std::string& store, const std::string& folder, Manifest* manifest, Journal* journal) {
  CommitOutcome outcome;
  manifest->journal = journal->bound();
  const absl::StatusOr<SerializedManifest> text = SerializeManifest(*manifest);
  if (!text.ok()) {
    outcome.status = text.status();
    return outcome;
  }
  outcome.manifest = text->digest;
  outcome.status = journal->AppendSaving(manifest->generation, text->digest);
  if (!outcome.status.ok()) return outcome;
  outcome.status = PublishManifest(ConversationPath(store, folder), *text, &outcome.visible);
  if (!outcome.status.ok()) return outcome;
  // From here on the save is made. If this frame cannot be written, it waits in memory, and the next start appends it.
  const absl::Status saved = journal->AppendSaved(manifest->generation, text->digest);
  if (!saved.ok()) LogWarning("generation {} is saved, but {}", manifest->generation, ToStd(saved.message()));
  return outcome;
}

}  // namespace layover
