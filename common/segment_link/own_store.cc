#include "common/segment_link/own_store.h"

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/store_layout.h"

namespace layover {
namespace {

bool IsStoreId(std::string_view id) {
  return id.size() == 32 && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnStore>> OwnStore::Open(const std::string& dir, const std::string& store_id) {
  if (!IsStoreId(store_id)) return InvalidArgument("'{}' is no store's number", store_id.substr(0, 64));
  const std::string root = JoinPath(dir, store_id);
  RETURN_IF_ERROR(EnsureFolder(root));
  RETURN_IF_ERROR(EnsureFolder(JoinPath(root, kConversationsName)));
  return std::unique_ptr<OwnStore>(new OwnStore(root));
}

absl::StatusOr<std::string> OwnStore::FolderOf(const std::string& folder) const {
  if (!ParseFolderName(folder).has_value())
    return InvalidArgument("'{}' is no conversation's folder", folder.substr(0, 64));
  return ConversationPath(root_, folder);
}

absl::StatusOr<std::string> OwnStore::FolderForWriting(const std::string& folder, const std::string& file) {
  ASSIGN_OR_RETURN(std::string path, FolderOf(folder));
  RETURN_IF_ERROR(EnsureFolder(path));
  written_.insert(JoinPath(folder, file));
  return path;
}

absl::Status OwnStore::RemoveOne(std::string_view path) {
  const std::string folder(DirName(path)), file(BaseName(path));
  if (!ParseSegmentFileName(file).has_value()) return InvalidArgument("'{}' is no segment", file.substr(0, 64));
  ASSIGN_OR_RETURN(const std::string here, FolderOf(folder));
  written_.erase(JoinPath(folder, file));
  const absl::Status removed = RemoveDurably(here, file);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  const absl::Status gone = RemoveEmptyFolder(here);
  return absl::IsFailedPrecondition(gone) ? absl::OkStatus() : gone;  // it holds other segments
}

absl::Status OwnStore::Remove(const std::vector<std::string>& files) {
  absl::Status status;
  for (const std::string& file : files) status.Update(RemoveOne(file));
  return status;
}

absl::StatusOr<std::vector<std::string>> OwnStore::Sweep(const std::vector<std::string>& keep) {
  std::set<std::string> needed(keep.begin(), keep.end());
  needed.insert(written_.begin(), written_.end());
  std::vector<std::string> removed;
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(root_));
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, ListFolder(ConversationPath(root_, folder)));
    for (const std::string& file : files) {
      const std::string path = JoinPath(folder, file);
      if (!ParseSegmentFileName(file).has_value() || needed.contains(path)) continue;
      RETURN_IF_ERROR(RemoveOne(path));
      removed.push_back(path);
    }
  }
  return removed;
}

}  // namespace layover
