#include "common/storage/staging.h"

#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"

namespace layover {
namespace {

// Entries of a folder that may not be there.
absl::StatusOr<std::vector<std::string>> ListIfThere(const std::string& path) {
  absl::StatusOr<std::vector<std::string>> names = ListFolder(path);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

absl::Status RemoveFolderWithFiles(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListIfThere(path));
  for (const std::string& file : files) RETURN_IF_ERROR(RemoveFile(path, file));
  return RemoveEmptyFolder(path);
}

// Undoes a publication whose last sync failed. Nothing more can be done if this fails too: the conversation is whole.
void TakeBack(const std::string& store, const std::string& folder, bool exchanged) {
  const std::string staged = ConversationPath(StagingPath(store), folder);
  const std::string final_path = ConversationPath(store, folder);
  const absl::Status back = exchanged ? ExchangeDurably(final_path, staged) : PublishDurably(final_path, staged);
  if (!back.ok()) LogWarning("taking back {}: {}", final_path, ToStd(back.message()));
}

}  // namespace

std::string StagingPath(const std::string& store) {
  return JoinPath(store, kStagingName);
}

absl::StatusOr<std::vector<std::string>> ListStaging(const std::string& store) {
  std::vector<std::string> files;
  const std::string top(kStagingName);
  const std::string conversations = JoinPath(top, kConversationsName);
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListIfThere(JoinPath(store, conversations)));
  for (const std::string& folder : folders) {
    const std::string relative = JoinPath(conversations, folder);
    ASSIGN_OR_RETURN(const std::vector<std::string> names, ListIfThere(JoinPath(store, relative)));
    for (const std::string& name : names) files.push_back(JoinPath(relative, name));
  }
  return files;
}

absl::Status RemoveStaging(const std::string& store) {
  const std::string top = StagingPath(store);
  const absl::StatusOr<std::vector<std::string>> inside = ListFolder(top);
  if (absl::IsNotFound(inside.status())) return absl::OkStatus();
  RETURN_IF_ERROR(inside.status());
  const std::string conversations = JoinPath(top, kConversationsName);
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListIfThere(conversations));
  for (const std::string& folder : folders) RETURN_IF_ERROR(RemoveFolderWithFiles(JoinPath(conversations, folder)));
  if (!inside->empty()) RETURN_IF_ERROR(RemoveEmptyFolder(conversations));
  return RemoveEmptyFolder(top);
}

absl::Status PrepareStaging(const std::string& store, const std::string& folder) {
  RETURN_IF_ERROR(RemoveStaging(store));
  const std::string top = StagingPath(store);
  RETURN_IF_ERROR(EnsureFolder(top));
  RETURN_IF_ERROR(EnsureFolder(JoinPath(top, kConversationsName)));
  return EnsureFolder(ConversationPath(top, folder));
}

absl::Status PublishStaged(const std::string& store, const std::string& folder, std::span<const std::string> kept) {
  const std::string staged = ConversationPath(StagingPath(store), folder);
  const std::string final_path = ConversationPath(store, folder);
  for (const std::string& file : kept) {
    RETURN_IF_ERROR(LinkFile(JoinPath(final_path, file), JoinPath(staged, file)));
  }
  RETURN_IF_ERROR(SyncFolder(staged));
  const absl::Status status = kept.empty() ? PublishDurably(staged, final_path) : ExchangeDurably(staged, final_path);
  if (status.ok()) return absl::OkStatus();
  // If the rename happened and only the sync failed, the staged folder has gone, or is the old one now.
  const bool moved = kept.empty() ? absl::IsNotFound(ListFolder(staged).status())
                                  : ListFolder(staged).value_or(std::vector<std::string>()).size() == kept.size();
  if (moved) TakeBack(store, folder, /*exchanged=*/!kept.empty());
  return status;
}

}  // namespace layover
