// Sums over all conversations that are asked for often: how many are in which state, what they hold on the devices and
// on disk. Kept up as conversations are touched, so that asking does not walk over thousands that nobody uses.
//
// What must stay true: whoever changes a conversation has touched it since the last Settle, or it was warm then.
#ifndef LAYOVER_COORDINATOR_CONVERSATION_TALLY_H_
#define LAYOVER_COORDINATOR_CONVERSATION_TALLY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/storage/manifest.h"
#include "coordinator/conversation/conversation.h"

namespace layover {

// Segments by their place in the store, each counted once however many conversations share it.
class SegmentCount {
 public:
  void Add(const std::string& folder, const Manifest* manifest);
  void Remove(const std::string& folder, const Manifest* manifest);
  int64_t bytes() const { return bytes_; }

 private:
  std::map<std::string, int> counts_;  // FOLDER/FILE -> by how many manifests it is needed
  int64_t bytes_ = 0;
};

class Tally {
 public:
  // What a conversation counts as now.
  struct Entry {
    ConversationState state = ConversationState::kIdle;
    int64_t device_bytes = 0;
    bool warm = false;  // it may change by itself: it is looked at again at the next Settle
  };
  using Look = std::function<Entry(const Conversation&)>;

  void Touch(const std::shared_ptr<Conversation>& conversation) { touched_[conversation->folder] = conversation; }
  void Forget(const Conversation& conversation);  // it is no more
  // Looks at all that were touched or are warm.
  void Settle(const Look& look);

  // As of the last Settle.
  int64_t Count(ConversationState state) const;
  int64_t device_bytes() const { return device_bytes_; }
  int64_t disk_bytes() const { return segments_.bytes() + meta_bytes_; }  // of all but the catalog
  size_t n_touched() const { return touched_.size(); }

 private:
  struct Counted {
    Entry entry;
    std::shared_ptr<const Manifest> manifest;
    int64_t meta_bytes = 0;
  };
  void TakeOut(const std::string& folder, const Counted& counted);

  std::map<std::string, std::shared_ptr<Conversation>> touched_;  // by folder
  std::map<std::string, Counted> counted_;                        // by folder
  std::map<ConversationState, int64_t> states_;
  int64_t device_bytes_ = 0;
  int64_t meta_bytes_ = 0;
  SegmentCount segments_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CONVERSATION_TALLY_H_
