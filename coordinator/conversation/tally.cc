#include "coordinator/conversation/tally.h"

#include "common/storage/file_names.h"

namespace layover {
namespace {

std::string PlaceOf(const std::string& folder, const ManifestSegment& segment) {
  return JoinPath(segment.folder.empty() ? folder : segment.folder, segment.file);
}

}  // namespace

void SegmentCount::Add(const std::string& folder, const Manifest* manifest) {
  if (manifest == nullptr) return;
  for (const ManifestSegment& segment : manifest->segments) {
    if (++counts_[PlaceOf(folder, segment)] == 1) bytes_ += static_cast<int64_t>(segment.bytes);
  }
}

void SegmentCount::Remove(const std::string& folder, const Manifest* manifest) {
  if (manifest == nullptr) return;
  for (const ManifestSegment& segment : manifest->segments) {
    const auto found = counts_.find(PlaceOf(folder, segment));
    if (--found->second > 0) continue;
    counts_.erase(found);
    bytes_ -= static_cast<int64_t>(segment.bytes);
  }
}

void Tally::TakeOut(const std::string& folder, const Counted& counted) {
  --states_[counted.entry.state];
  device_bytes_ -= counted.entry.device_bytes;
  meta_bytes_ -= counted.meta_bytes;
  segments_.Remove(folder, counted.manifest.get());
}

void Tally::Forget(const Conversation& conversation) {
  touched_.erase(conversation.folder);
  const auto found = counted_.find(conversation.folder);
  if (found == counted_.end()) return;
  TakeOut(conversation.folder, found->second);
  counted_.erase(found);
}

void Tally::Settle(const Look& look) {
  for (auto next = touched_.begin(); next != touched_.end();) {
    const auto place = next++;
    const auto& [folder, conversation] = *place;
    if (const auto before = counted_.find(folder); before != counted_.end()) TakeOut(folder, before->second);
    Counted now{look(*conversation), conversation->manifest, conversation->MetaBytes()};
    ++states_[now.entry.state];
    device_bytes_ += now.entry.device_bytes;
    meta_bytes_ += now.meta_bytes;
    segments_.Add(folder, now.manifest.get());
    const bool warm = now.entry.warm;
    counted_[folder] = std::move(now);
    if (!warm) touched_.erase(place);
  }
}

int64_t Tally::Count(ConversationState state) const {
  const auto found = states_.find(state);
  return found == states_.end() ? 0 : found->second;
}

}  // namespace layover
