// The segments that this machine keeps for a coordinator on another one: DIR/ID/c/FOLDER/FILE, where ID is the number
// of the coordinator's store, so that the conversations of two coordinators never meet. Folders are 0700, files 0600.
//
// What must stay true: a segment goes only when the coordinator says that nothing needs it, and a sweep never takes one
// that this worker wrote. The save thread uses it; FolderOf is for any thread.
#ifndef LAYOVER_COMMON_SEGMENT_LINK_OWN_STORE_H_
#define LAYOVER_COMMON_SEGMENT_LINK_OWN_STORE_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layover {

class OwnStore {
 public:
  // `dir` is there and locked by whoever started this worker. Makes what is missing below it.
  static absl::StatusOr<std::unique_ptr<OwnStore>> Open(const std::string& dir, const std::string& store_id);

  const std::string& root() const { return root_; }
  // Where the conversation's segments lie. InvalidArgument if `folder` is no conversation's.
  absl::StatusOr<std::string> FolderOf(const std::string& folder) const;
  // The same, made if it is missing, for a file that is going to be written.
  absl::StatusOr<std::string> FolderForWriting(const std::string& folder, const std::string& file);

  // FOLDER/FILE each; what is gone already is well. The first failure, after all were tried.
  absl::Status Remove(const std::vector<std::string>& files);
  // Removes every segment that is not in `keep` and that this worker did not write. Returns what went, FOLDER/FILE.
  absl::StatusOr<std::vector<std::string>> Sweep(const std::vector<std::string>& keep);

 private:
  explicit OwnStore(std::string root) : root_(std::move(root)) {}
  absl::Status RemoveOne(std::string_view path);

  const std::string root_;         // DIR/ID
  std::set<std::string> written_;  // FOLDER/FILE, by this worker
};

}  // namespace layover

#endif  // LAYOVER_COMMON_SEGMENT_LINK_OWN_STORE_H_
