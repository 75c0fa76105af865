#include "coordinator/store/offline.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/store_layout.h"
#include "coordinator/conversation/conversation.h"

namespace layover {
namespace {

bool IsFolder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

ConversationInfo InfoOf(const ConversationImage& image) {
  ConversationInfo info;
  info.id = image.id;
  info.state = ConversationState::kIdle;
  if (image.journal_status.ok()) {
    const JournalState& state = image.journal.state;
    info.n_tokens = state.trunk_length;
    info.created_at = state.created_at_ms / 1000;
    info.last_used_at = state.turns.empty() ? info.created_at : state.turns.back().time_ms / 1000;
  } else {
    info.last_error = std::string(image.journal_status.message());
  }
  if (image.manifest_status.ok()) {
    const Manifest& manifest = *image.manifest;
    if (manifest.n_tokens > 0) info.state = ConversationState::kSaved;
    info.generation = manifest.generation;
    info.saved_n_tokens = manifest.n_tokens;
    info.bytes_disk = static_cast<int64_t>(manifest.OwnBytes());
    info.segments = SegmentsOf(manifest);
    for (const ManifestBranch& branch : manifest.branches) {
      info.branch_list.push_back({.n_tokens = branch.n_tokens, .fork_position = branch.fork_position,
                                  .saved_n_tokens = branch.n_tokens, .state = info.state,
                                  .checkpoints = {branch.checkpoints.begin(), branch.checkpoints.end()}});
    }
    info.branches = static_cast<int>(manifest.branches.size());
    info.identity = image.manifest->identity.combined.Hex();
    info.last_used_at = std::max(info.last_used_at, image.manifest->saved_at);
  } else if (!absl::IsNotFound(image.manifest_status)) {
    info.last_error = std::string(image.manifest_status.message());
  }
  return info;
}

absl::StatusOr<std::vector<ConversationImage>> LoadAll(const std::string& store) {
  if (!IsFolder(store)) return NotFound("{} is not a store: there is no such folder", store);
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(store));
  std::vector<ConversationImage> images;
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(ConversationImage image, LoadConversation(store, folder));
    // Without an id: a folder that only keeps segments for others, or one whose journal and manifest both say nothing.
    const bool broken = !image.journal_status.ok() && !absl::IsNotFound(image.journal_status);
    if (!image.id.empty() || broken) images.push_back(std::move(image));
  }
  std::sort(images.begin(), images.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return images;
}

absl::StatusOr<ConversationImage> Find(const std::string& store, const StoredId& wanted) {
  ASSIGN_OR_RETURN(std::vector<ConversationImage> images, LoadAll(store));
  std::erase_if(images, [&](const ConversationImage& image) {
    return image.id != wanted.id || (wanted.owner.has_value() && image.owner != *wanted.owner);
  });
  if (images.empty()) return NotFound("{}: there is no conversation {}", store, wanted.id);
  if (images.size() > 1) {
    return InvalidArgument("{}: {} owners have a conversation {}; --owner says whose", store, images.size(), wanted.id);
  }
  return std::move(images.front());
}

// Not in a folder that is no store: the lock would be the first file of one.
absl::StatusOr<std::unique_ptr<StoreLock>> LockStore(const std::string& store) {
  if (!IsFolder(JoinPath(store, kConversationsName))) {
    return NotFound("{} is not a store: it has no folder {}", store, kConversationsName);
  }
  return StoreLock::Acquire(store);
}

absl::StatusOr<VerifyResult> VerifyOne(const std::string& store, const ConversationImage& image) {
  ASSIGN_OR_RETURN(const VerifyReport report, VerifyConversation(store, image.folder, nullptr));
  return VerifyResult{.id = image.id,
                      .ok = report.ok(),
                      .generation = report.generation,
                      .n_records = static_cast<int64_t>(report.n_records),
                      .bytes = static_cast<int64_t>(report.bytes),
                      .problems = report.problems};
}

}  // namespace

absl::StatusOr<std::vector<ConversationInfo>> ListStore(const std::string& store) {
  ASSIGN_OR_RETURN(const std::vector<ConversationImage> images, LoadAll(store));
  std::vector<ConversationInfo> infos;
  for (const ConversationImage& image : images) infos.push_back(InfoOf(image));
  return infos;
}

absl::StatusOr<ConversationInfo> ShowStored(const std::string& store, const StoredId& wanted) {
  ASSIGN_OR_RETURN(const ConversationImage image, Find(store, wanted));
  return InfoOf(image);
}

absl::StatusOr<std::vector<VerifyResult>> VerifyStore(const std::string& store, const StoredId& wanted) {
  std::vector<ConversationImage> images;
  if (wanted.id.empty()) {
    ASSIGN_OR_RETURN(images, LoadAll(store));
  } else {
    ASSIGN_OR_RETURN(ConversationImage image, Find(store, wanted));
    images.push_back(std::move(image));
  }
  std::vector<VerifyResult> results;
  for (const ConversationImage& image : images) {
    ASSIGN_OR_RETURN(VerifyResult result, VerifyOne(store, image));
    results.push_back(std::move(result));
  }
  return results;
}

absl::Status RemoveStored(const std::string& store, const StoredId& wanted) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreLock> lock, LockStore(store));
  ASSIGN_OR_RETURN(const ConversationImage image, Find(store, wanted));
  ASSIGN_OR_RETURN(SegmentNames names, SegmentNames::Collect(store));
  return DeleteConversation(store, image.folder, nullptr, &names);
}

absl::StatusOr<PortableSummary> ExportStored(const std::string& store, const StoredId& wanted, const std::string& file,
                                             const PortableSecret& secret) {
  ASSIGN_OR_RETURN(const ConversationImage image, Find(store, wanted));
  return ExportConversation(store, image.folder, file, secret);
}

absl::StatusOr<PortableSummary> ImportStored(const std::string& store, const std::string& file,
                                             const PortableSecret& secret, const ImportTarget& target) {
  ASSIGN_OR_RETURN(const std::unique_ptr<PortableReader> reader, PortableReader::Open(file, secret));
  RETURN_IF_ERROR(PrepareStore(store));
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreLock> lock, LockStore(store));
  return ImportConversation(store, reader.get(), target);
}

absl::StatusOr<std::vector<GarbageFile>> CollectStored(const std::string& store, bool dry_run) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreLock> lock, LockStore(store));
  return dry_run ? FindGarbage(store) : CollectGarbage(store);
}

}  // namespace layover
