#include "common/storage/garbage.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "common/status.h"
#include "common/storage/durable_file.h"
#include "common/storage/file_names.h"
#include "common/storage/staging.h"
#include "common/storage/store_layout.h"

namespace layover {
namespace {

uint64_t BytesOf(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

// All files of all conversations and of the staging folder, by the names of GarbageFile.
absl::StatusOr<std::map<std::string, uint64_t>> AllFiles(const std::string& store) {
  std::map<std::string, uint64_t> files;
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(store));
  for (const std::string& folder : folders) {
    const std::string path = ConversationPath(store, folder);
    ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
    for (const std::string& name : names) files[JoinPath(folder, name)] = BytesOf(JoinPath(path, name));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> staged, ListStaging(store));
  for (const std::string& file : staged) files[file] = BytesOf(JoinPath(store, file));
  return files;
}

// The same judgement as CleanStore's.
bool IsGarbage(const ConversationImage& image, const std::string& file, const SegmentNames& names) {
  if (file.ends_with(kTemporarySuffix)) return true;
  if (ParseSegmentFileName(file).has_value()) return !names.Names(image.folder, file);
  const bool own = file == kManifestName || file == kJournalName;
  return own && image.journal_status.ok() && image.journal.state.deleted;
}

absl::Status CheckReadable(const SegmentNames& names, const std::string& store) {
  if (names.MayRemove()) return absl::OkStatus();
  const auto& [folder, why] = *names.unreadable().begin();
  const absl::StatusOr<ConversationImage> image = LoadConversation(store, folder);
  const std::string id = image.ok() && !image->id.empty() ? image->id : "unknown";
  return WithPart(DataLoss("nothing is removed: the conversation in {} (id {}) cannot be read, and might need what "
                           "looks unused: {}",
                           folder, id, ToStd(why.message())),
                  PartOf(why).value_or(StatusPart{}));
}

}  // namespace

absl::StatusOr<std::vector<GarbageFile>> FindGarbage(const std::string& store) {
  ASSIGN_OR_RETURN(const SegmentNames names, SegmentNames::Collect(store));
  RETURN_IF_ERROR(CheckReadable(names, store));
  std::vector<GarbageFile> garbage;
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListConversationFolders(store));
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(const ConversationImage image, LoadConversation(store, folder));
    const std::string path = ConversationPath(store, folder);
    for (const std::string& file : image.files) {
      if (IsGarbage(image, file, names)) garbage.push_back({JoinPath(folder, file), BytesOf(JoinPath(path, file))});
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> staged, ListStaging(store));
  for (const std::string& file : staged) garbage.push_back({file, BytesOf(JoinPath(store, file))});
  std::sort(garbage.begin(), garbage.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
  return garbage;
}

absl::StatusOr<std::vector<GarbageFile>> CollectGarbage(const std::string& store) {
  ASSIGN_OR_RETURN(const SegmentNames names, SegmentNames::Collect(store));
  RETURN_IF_ERROR(CheckReadable(names, store));
  ASSIGN_OR_RETURN(auto gone, AllFiles(store));
  RETURN_IF_ERROR(CleanStore(store).status());
  ASSIGN_OR_RETURN(const auto left, AllFiles(store));
  for (const auto& [file, bytes] : left) gone.erase(file);
  std::vector<GarbageFile> removed;
  for (const auto& [file, bytes] : gone) removed.push_back({file, bytes});
  return removed;
}

}  // namespace layover
