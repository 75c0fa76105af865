// Segments that remote stages keep: how their blocks become a verified segment, and which of them manifests name.
#ifndef LAYOVER_COMMON_STORAGE_REMOTE_SEGMENT_H_
#define LAYOVER_COMMON_STORAGE_REMOTE_SEGMENT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/storage/block_io.h"
#include "common/storage/segment_reader.h"
#include "common/storage/store_layout.h"

namespace layover {

// SegmentReader::Open of a file whose blocks come from elsewhere; `path` names it in messages.
absl::StatusOr<std::unique_ptr<SegmentReader>> OpenSegmentBlocks(std::unique_ptr<BlockReader> in,
                                                                 const std::string& path,
                                                                 const SegmentExpectations& expected,
                                                                 SegmentReader::Options options);

using RemoteOpener = std::function<absl::StatusOr<std::unique_ptr<BlockReader>>(
    const std::string& host, const std::string& folder, const std::string& file)>;
// VerifyConversation (store_layout.h) that reads what remote stages keep as well.
absl::StatusOr<VerifyReport> VerifyConversation(const std::string& store, const std::string& folder,
                                                const std::function<void(uint64_t bytes)>& progress,
                                                const RemoteOpener& open_remote);

// Which segments of remote stages the manifests of a store name, FOLDER/FILE by host. Kept up by whoever commits and
// deletes, beside SegmentNames.
class RemoteNames {
 public:
  // `folder` has this valid manifest now, or none (nullptr).
  void Set(const std::string& folder, const Manifest* manifest);
  using ByHost = std::map<std::string, std::vector<std::string>>;
  ByHost Named() const;
  // Those that have lost their last name since the last call.
  ByHost TakeDropped();

 private:
  std::map<std::string, std::vector<std::string>> by_folder_;  // naming folder -> FOLDER/FILE
  std::map<std::string, int> counts_;                          // FOLDER/FILE -> how many folders name it
  std::map<std::string, std::string> hosts_;                   // of counts_
  ByHost dropped_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_REMOTE_SEGMENT_H_
