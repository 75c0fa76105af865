#include "coordinator/conversation/conversation.h"

#include <algorithm>

namespace layover {

SavedImage SavedImageOf(const Manifest& manifest) {
  SavedImage saved{.generation = manifest.generation, .n_tokens = manifest.n_tokens, .prefix = manifest.prefix,
                   .bytes = static_cast<int64_t>(manifest.TotalBytes())};
  for (const ManifestSegment& segment : manifest.segments) {
    saved.segments.push_back({segment.Path(), segment.stage, segment.generation, segment.layer_begin, segment.layer_end,
                              static_cast<int64_t>(segment.bytes), static_cast<int64_t>(segment.live_bytes)});
  }
  return saved;
}

bool Conversation::Active() const {
  return waiting_turns > 0 ||
         std::any_of(branches.begin(), branches.end(), [](const auto& branch) { return branch->running != nullptr; });
}

int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin();
}

ReusePlan PlanReuse(const Conversation& conversation, std::span<const int32_t> prompt,
                    const std::function<std::span<const int32_t>(const Branch&)>& live_tokens) {
  const auto most = static_cast<int64_t>(prompt.size()) - 1;
  ReusePlan plan;
  for (const auto& branch : conversation.branches) {
    const int64_t common = CommonPrefix(branch->path, prompt);
    // Among equals the trunk, which comes first.
    if (plan.branch != nullptr && common <= plan.common) continue;
    plan.branch = branch.get();
    plan.common = common;
  }
  if (plan.branch == nullptr) return plan;
  Branch& branch = *plan.branch;
  if (branch.session != 0) plan.live_n = std::min(most, CommonPrefix(live_tokens(branch), prompt));
  const auto left = static_cast<int64_t>(branch.path.size()) - plan.common;
  // An edit near the end replaces what it changes; a prompt that keeps less than half of the path is another line.
  const bool another_line = left > plan.common;
  plan.fork = branch.running != nullptr || another_line;
  if (&branch == &conversation.trunk() && conversation.saved.generation > 0 && !conversation.saved.refused) {
    const int64_t saved = std::min(most, std::min(conversation.saved.n_tokens, plan.common));
    if (saved > plan.live_n) plan.saved_n = saved;
  }
  return plan;
}

}  // namespace layover
