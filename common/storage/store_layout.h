// A store as a whole: which conversations are there, which generation of each is valid, what is left over from a crash,
// whether everything is sound.
//
// What must stay true: while any manifest is unreadable, nothing that it might name is removed.
#ifndef LAYOVER_COMMON_STORAGE_STORE_LAYOUT_H_
#define LAYOVER_COMMON_STORAGE_STORE_LAYOUT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/journal.h"
#include "common/storage/manifest.h"
#include "common/storage/segment_reader.h"

namespace layover {

// Folder names under STORE/c, sorted. Empty if there is no such folder.
absl::StatusOr<std::vector<std::string>> ListConversationFolders(const std::string& store);

// One conversation's folder, read without changing anything.
struct ConversationImage {
  std::string folder;  // 64 hex digits
  std::string owner;   // from the journal, or from the manifest if the journal is damaged
  std::string id;
  absl::Status journal_status;  // NotFound: there is none (a folder that only keeps segments for others)
  Journal::Inspection journal;
  // Ok: `manifest` is the valid generation. NotFound: never saved. DataLoss: unreadable, missing though it was saved,
  // an older copy, another conversation's.
  absl::Status manifest_status;
  std::optional<Manifest> manifest;  // also when it was parsed but is not accepted
  Digest manifest_digest;
  bool missing_saved = false;      // accepted by a `saving`: the crash came before `saved`
  std::vector<std::string> files;  // all names in the folder
  int64_t next_generation = 1;     // above every number that was ever used here
};
absl::StatusOr<ConversationImage> LoadConversation(const std::string& store, const std::string& folder);
// The same for one that is to be appended to: Journal::Open reads the journal, once, and mends its torn tail.
struct OpenConversation {
  ConversationImage image;
  std::unique_ptr<Journal> journal;  // null unless image.journal_status is ok
};
absl::StatusOr<OpenConversation> LoadAndOpen(const std::string& store, const std::string& folder);
// The same while its journal is open: what that holds is not read again, only the manifest.
absl::StatusOr<ConversationImage> LoadBeside(const std::string& store, const std::string& folder, const Journal& journal);

// How a segment that a manifest names is opened: path and all that is expected of it.
struct SegmentPlace {
  std::string path;
  SegmentExpectations expected;
};
absl::StatusOr<SegmentPlace> PlaceOfSegment(const std::string& store, const std::string& folder,
                                            const Manifest& manifest, const ManifestSegment& segment);

// Which segments the manifests of a store name. Collected once, at the start, and then kept up by whoever commits and
// deletes, so that a save does not read every other conversation again.
class SegmentNames {
 public:
  // Reads every conversation.
  static absl::StatusOr<SegmentNames> Collect(const std::string& store);

  // `folder` has this valid manifest now, or none (nullptr): after a commit, a fork, a deletion.
  void Set(const std::string& folder, const Manifest* manifest);
  // The folder's manifest cannot be read: it may name anything.
  void SetUnreadable(const std::string& folder, absl::Status why);

  // False while some manifest is unreadable: nothing may be removed then.
  bool MayRemove() const { return unreadable_.empty(); }
  bool Names(const std::string& folder, const std::string& file) const;
  const std::map<std::string, absl::Status>& unreadable() const { return unreadable_; }

 private:
  std::map<std::string, std::vector<std::string>> by_folder_;  // naming folder -> FOLDER/FILE
  std::map<std::string, int> counts_;                          // FOLDER/FILE -> how many folders name it
  std::map<std::string, absl::Status> unreadable_;             // folder -> why
};

// What a start (under the store's lock) does before anything else: finishes interrupted deletions, appends missing
// `saved` frames, mends torn journals, removes temporary files, and segments that no manifest names unless some
// manifest is unreadable.
struct StartReport {
  std::vector<std::string> removed;    // FOLDER/FILE
  std::vector<std::string> completed;  // folders whose `saved` was appended
  std::vector<std::string> mended;     // folders whose journal's torn tail was cut
  std::vector<std::string> deleted;    // folders whose deletion was finished
  SegmentNames names;                  // with what is unreadable, and why
};
absl::StatusOr<StartReport> CleanStore(const std::string& store);

// Removes the conversation: its journal gets a synced `deleted` frame, then the files go, except segments that others
// name. A crash in between is finished by CleanStore. `journal` may be null: it is opened then, and damage of it does
// not stop the removal.
absl::Status DeleteConversation(const std::string& store, const std::string& folder, Journal* journal,
                                SegmentNames* names);

// Removes segments of `folder` that nothing names, after a save or compaction (names->Set first). Returns their names.
absl::StatusOr<std::vector<std::string>> RemoveDeadSegments(const std::string& store, const std::string& folder,
                                                            const SegmentNames& names);

// The end of a save, when every stage's receipt agrees: binds the journal, journals `saving`, publishes the manifest,
// journals `saved`. `manifest` has everything but `journal`, which is filled in.
struct CommitOutcome {
  absl::Status status;
  // Whether the new generation is what a reader finds. Not ok and not visible: nothing happened, the new segments may
  // be unlinked. Not ok and visible: in doubt or `saved` is missing; no segment of either generation may be removed.
  bool visible = false;
  Digest manifest;  // self-digest
};
CommitOutcome CommitSave(const std::string& store, const std::string& folder, Manifest* manifest, Journal* journal);

struct VerifyProblem {
  std::string file;
  int stage = -1;  // -1: not a stage's
  int layer = -1;  // -1: not a layer's
  std::string what;
};
struct VerifyReport {
  std::string id;
  std::string owner;
  int64_t generation = 0;
  uint64_t n_records = 0;
  uint64_t bytes = 0;
  std::vector<VerifyProblem> problems;
  bool ok() const { return problems.empty(); }
};
// Reads every byte of journal, manifest and segments; checks digests, padding, and that the records cover every layer
// up to each branch's length with digests that the journal's ids prove. Problems are in the report; an error is only
// for a folder that cannot be read at all.
absl::StatusOr<VerifyReport> VerifyConversation(const std::string& store, const std::string& folder,
                                                const std::function<void(uint64_t bytes)>& progress);

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_STORE_LAYOUT_H_
