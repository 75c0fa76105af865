#include "coordinator/store/offline.h"

#include <algorithm>
#include <sys/stat.h>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/store_layout.h"
#include "coordinator/conversation/conversation.h"

namespace layover {
namespace {

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
    for (const ManifestSegment& segment : manifest.segments) {
      if (segment.folder.empty()) info.bytes_disk += static_cast<int64_t>(segment.bytes);
    }
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
  struct stat status;
  if (stat(store.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return NotFound("{} is not a store: there is no such folder", store);
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

absl::StatusOr<ConversationImage> FindById(const std::string& store, const std::string& id) {
  ASSIGN_OR_RETURN(std::vector<ConversationImage> images, LoadAll(store));
  std::erase_if(images, [&](const ConversationImage& image) { return image.id != id; });
  if (images.empty()) return NotFound("{}: there is no conversation {}", store, id);
  if (images.size() > 1) return InvalidArgument("{}: {} owners have a conversation {}", store, images.size(), id);
  return std::move(images.front());
}

absl::StatusOr<VerifyResult> VerifyOne(const std::string& store, const ConversationImage& image) {
  ASSIGN_OR_RETURN(const VerifyReport report, VerifyConversation(store, image.folder, nullptr));
  return VerifyResult{.id = image.id, .ok = report.ok(), .generation = report.generation,
                      .n_records = static_cast<int64_t>(report.n_records), .bytes = static_cast<int64_t>(report.bytes),
                      .problems = report.problems};
}

}  // namespace

absl::StatusOr<std::vector<ConversationInfo>> ListStore(const std::string& store) {
  ASSIGN_OR_RETURN(const std::vector<ConversationImage> images, LoadAll(store));
  std::vector<ConversationInfo> infos;
  for (const ConversationImage& image : images) infos.push_back(InfoOf(image));
  return infos;
}

absl::StatusOr<ConversationInfo> ShowStored(const std::string& store, const std::string& id) {
  ASSIGN_OR_RETURN(const ConversationImage image, FindById(store, id));
  return InfoOf(image);
}

absl::StatusOr<std::vector<VerifyResult>> VerifyStore(const std::string& store, const std::string& id) {
  std::vector<VerifyResult> results;
  if (!id.empty()) {
    ASSIGN_OR_RETURN(const ConversationImage image, FindById(store, id));
    ASSIGN_OR_RETURN(VerifyResult result, VerifyOne(store, image));
    results.push_back(std::move(result));
    return results;
  }
  ASSIGN_OR_RETURN(const std::vector<ConversationImage> images, LoadAll(store));
  for (const ConversationImage& image : images) {
    ASSIGN_OR_RETURN(VerifyResult result, VerifyOne(store, image));
    results.push_back(std::move(result));
  }
  return results;
}

absl::Status RemoveStored(const std::string& store, const std::string& id) {
  ASSIGN_OR_RETURN(const ConversationImage image, FindById(store, id));
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreLock> lock, StoreLock::Acquire(store));
  ASSIGN_OR_RETURN(SegmentNames names, SegmentNames::Collect(store));
  return DeleteConversation(store, image.folder, nullptr, &names);
}

}  // namespace layover
