#include "common/storage/remote_segment.h"

#include <utility>

#include "common/storage/file_names.h"

namespace layover {

void RemoteNames::Set(const std::string& folder, const Manifest* manifest) {
  const std::vector<std::string> before = std::exchange(by_folder_[folder], {});
  for (const std::string& path : before) {
    if (--counts_[path] == 0) counts_.erase(path);
  }
  std::vector<std::string>& now = by_folder_[folder];
  for (const ManifestSegment& segment : manifest != nullptr ? manifest->segments : std::vector<ManifestSegment>()) {
    if (segment.host.empty()) continue;
    now.push_back(segment.folder.empty() ? JoinPath(folder, segment.file) : segment.Path());
    ++counts_[now.back()];
    hosts_[now.back()] = segment.host;
  }
  if (now.empty()) by_folder_.erase(folder);
  for (const std::string& path : before) {
    const auto host = hosts_.find(path);
    if (counts_.contains(path) || host == hosts_.end()) continue;
    dropped_[host->second].push_back(path);
    hosts_.erase(host);
  }
}

RemoteNames::ByHost RemoteNames::Named() const {
  ByHost named;
  for (const auto& [path, host] : hosts_) named[host].push_back(path);
  return named;
}

RemoteNames::ByHost RemoteNames::TakeDropped() {
  return std::exchange(dropped_, {});
}

}  // namespace layover
