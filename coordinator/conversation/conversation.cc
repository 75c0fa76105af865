#include "coordinator/conversation/conversation.h"

#include <algorithm>

#include "common/limits.h"

namespace layover {

bool Conversation::Active() const {
  return waiting_turns > 0 ||
         std::any_of(branches.begin(), branches.end(), [](const auto& branch) { return branch->running != nullptr; });
}

void Conversation::TakeManifest(std::shared_ptr<const Manifest> newest, std::span<const int32_t> trunk_ids) {
  manifest = std::move(newest);
  const size_t page = limits::kPageTokens;
  head = trunk_ids.size() >= page ? DigestOfTokens(trunk_ids.first(page)) : Digest();
}

int64_t Conversation::MetaBytes() const {
  constexpr auto kBlock = static_cast<int64_t>(limits::kBlockBytes);
  const auto blocks = [](int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; };
  return journal_bytes + manifest_bytes == 0 ? 0 : blocks(journal_bytes) + blocks(manifest_bytes) + kBlock;
}

int64_t Conversation::OwnBytes() const { return manifest == nullptr ? 0 : static_cast<int64_t>(manifest->OwnBytes()); }

ConversationFiles::Written ConversationFiles::AppendPrompt(const std::string& store, const Journal::NewJournal& fresh,
                                                           const PromptFrame& prompt) {
  if (journal == nullptr) {
    auto made = Journal::Create(store, fresh);
    if (!made.ok()) return {made.status()};
    journal = std::move(*made);
  }
  const absl::Status status = journal->AppendPrompt(prompt);
  const auto& turns = journal->state().turns;
  return {status, turns.empty() ? kNoTurn : turns.back().number};
}

ConversationFiles::Written ConversationFiles::AppendHeld(const std::string& store, const Journal::NewJournal& fresh,
                                                         const PromptFrame& prompt, int32_t fed) {
  Written written = AppendPrompt(store, fresh, prompt);
  if (written.status.ok()) {
    written.status = journal->AppendTurnEnd({.turn = written.turn, .end = TurnEnd::kStop, .fed = fed});
  }
  return written;
}

std::vector<SegmentInfo> SegmentsOf(const Manifest& manifest) {
  std::vector<SegmentInfo> segments;
  for (const ManifestSegment& segment : manifest.segments) {
    segments.push_back({.file = segment.Path(), .stage = segment.stage, .generation = segment.generation,
                        .layer_begin = segment.layer_begin, .layer_end = segment.layer_end,
                        .bytes = static_cast<int64_t>(segment.bytes), .live_bytes = static_cast<int64_t>(segment.live_bytes)});
  }
  return segments;
}

int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin();
}

int64_t RowsToRead(const SavedBranch& saved, std::span<const int32_t> prompt) {
  constexpr int64_t kPage = limits::kPageTokens;
  return std::min(saved.n_tokens, (CommonPrefix(saved.path, prompt) + kPage - 1) / kPage * kPage);
}

int64_t RowsToName(const SavedBranch& saved, std::span<const int32_t> path) {
  const int64_t common = CommonPrefix(saved.path, path);
  return common == saved.n_tokens ? common : common / limits::kPageTokens * limits::kPageTokens;
}

int64_t DeepestState(CutAt cut, int64_t common, int64_t length, std::span<const int32_t> checkpoints) {
  if (cut == CutAt::kAnywhere || common >= length) return std::min(common, length);
  int64_t deepest = 0;
  for (const int32_t position : checkpoints) {
    if (position <= common) deepest = std::max<int64_t>(deepest, position);
  }
  return deepest;
}

std::vector<int32_t> PositionsOf(const std::vector<PinnedCheckpoint>& checkpoints) {
  std::vector<int32_t> positions;
  for (const PinnedCheckpoint& checkpoint : checkpoints) positions.push_back(static_cast<int32_t>(checkpoint.position));
  return positions;
}

ReusePlan PlanReuse(const Conversation& conversation, std::span<const int32_t> prompt, CutAt cut, bool live_only,
                    const std::function<std::span<const int32_t>(const Branch&)>& live_tokens) {
  const auto most = static_cast<int64_t>(prompt.size()) - 1;
  ReusePlan plan;
  const auto offer = [&](ReusePlan::Source source, Branch* from, std::span<const int32_t> path, std::span<const int32_t> checkpoints) {
    const int64_t common = std::min(CommonPrefix(path, prompt), most);
    const int64_t n = DeepestState(cut, common, static_cast<int64_t>(path.size()), checkpoints);
    // The token that a live session sampled last was never fed: for that one nothing is brought back from another tier.
    const int64_t least = plan.source == ReusePlan::Source::kLive && source != ReusePlan::Source::kLive ? 1 : 0;
    if (n <= plan.n + least) return;
    plan.source = source;
    plan.from = from;
    plan.n = n;
  };
  for (const auto& branch : conversation.branches) {
    const int64_t common = CommonPrefix(branch->path, prompt);
    // Among equals the trunk, which comes first.
    if (plan.branch == nullptr || common > plan.common) {
      plan.branch = branch.get();
      plan.common = common;
    }
  }
  using Source = ReusePlan::Source;
  for (const auto& branch : conversation.branches) {
    if (branch->session != 0) offer(Source::kLive, branch.get(), live_tokens(*branch), PositionsOf(branch->checkpoints));
  }
  for (const auto& branch : conversation.branches) {
    if (branch->parked != 0 && !live_only) offer(Source::kParked, branch.get(), branch->parked_path, branch->parked_checkpoints);
  }
  for (const auto& branch : conversation.branches) {
    if (live_only || conversation.refused || branch->saved.n_tokens == 0) continue;
    offer(Source::kSaved, branch.get(), branch->saved.path, branch->saved.checkpoints);
  }
  if (plan.branch == nullptr) return plan;
  // An edit near the end replaces what it changes; a prompt that keeps less than half of the path is another line.
  const auto left = static_cast<int64_t>(plan.branch->path.size()) - plan.common;
  plan.fork = plan.branch->running != nullptr || left > plan.common;
  return plan;
}

}  // namespace layover
