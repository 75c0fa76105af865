#include "coordinator/conversation/save_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/limits.h"

namespace layover {
namespace {

using SegmentKey = std::pair<std::string, int64_t>;  // folder ("" own), generation

struct Base {
  int64_t n = 0;
  std::vector<ChainLink> chain;  // of rows [0, n)
};

std::vector<ChainLink> CutChain(const std::vector<ChainLink>& chain, int64_t n) {
  std::vector<ChainLink> cut;
  for (ChainLink link : chain) {
    if (link.begin >= n) break;
    link.end = static_cast<int32_t>(std::min<int64_t>(link.end, n));
    cut.push_back(std::move(link));
  }
  return cut;
}

// Takes what a saved line offers for these tokens, if it is more than is found already.
void Offer(std::span<const int32_t> tokens, std::span<const int32_t> path, const std::vector<ChainLink>& chain, int64_t most,
           Base* base) {
  const auto saved = static_cast<int64_t>(path.size());
  int64_t common = std::min(CommonPrefix(tokens, path), most);
  // A record can be named whole only: up to the line's end, or to a page border.
  if (common != saved) common = common / limits::kPageTokens * limits::kPageTokens;
  if (common <= base->n) return;
  base->n = common;
  base->chain = CutChain(chain, common);
}

void OfferShared(std::span<const int32_t> tokens, const SharedImage& shared, Base* base) {
  for (const SavedBranch* saved : shared.branches) {
    Base offered = *base;
    Offer(tokens, saved->path, saved->chain, shared.most, &offered);
    if (offered.n == base->n) continue;
    for (ChainLink& link : offered.chain) {
      if (link.folder.empty()) link.folder = shared.folder;
    }
    *base = std::move(offered);
  }
}

void KeepSegments(const Manifest* manifest, const std::string& folder, const std::set<SegmentKey>& needed, SavePlan* plan) {
  if (manifest == nullptr) return;
  for (ManifestSegment segment : manifest->segments) {
    if (segment.folder.empty()) segment.folder = folder;
    const bool listed = std::any_of(plan->kept.begin(), plan->kept.end(),
                                    [&](const ManifestSegment& kept) { return kept.Path() == segment.Path(); });
    if (!listed && needed.contains({segment.folder, segment.generation})) plan->kept.push_back(std::move(segment));
  }
}

}  // namespace

SavePlan PlanSave(const Manifest* previous, int64_t generation, std::span<const BranchState> states, const SharedImage* shared,
                  bool whole) {
  SavePlan plan;
  std::set<SegmentKey> needed;
  bool changed = previous == nullptr || previous->n_tokens == 0 || whole || states.size() != previous->branches.size();
  for (const BranchState& state : states) {
    const auto number = static_cast<int32_t>(plan.branches.size());
    const SavedBranch& own = state.branch->saved;
    // What is saved beyond what is in memory stays as it is, as far as the branch still goes that way.
    const int64_t kept = RowsToName(own, state.branch->path);
    const bool stays = static_cast<int64_t>(state.tokens.size()) < kept;
    const auto tokens = stays ? std::span<const int32_t>(own.path).first(static_cast<size_t>(kept)) : state.tokens;
    if (tokens.empty()) continue;

    Base base;
    if (whole && stays) {
      // It is on disk only: nobody here can write it anew.
      base = {kept, CutChain(own.chain, kept)};
    } else if (!whole) {
      for (const BranchState& other : states) {
        if (other.branch->saved.n_tokens > 0) Offer(tokens, other.branch->saved.path, other.branch->saved.chain, limits::kMaxContextTokens, &base);
      }
      if (shared != nullptr) OfferShared(tokens, *shared, &base);
    }
    // Lines of this very save serve as well: a side branch begins with the trunk's rows.
    for (size_t i = 0; i < plan.branches.size(); ++i) {
      Offer(tokens, plan.paths[i], plan.branches[i].chain, limits::kMaxContextTokens, &base);
    }

    ManifestBranch branch{.branch = number, .parent = number == 0 ? -1 : 0, .n_tokens = static_cast<int32_t>(tokens.size()),
                          .prefix = DigestOfTokens(tokens), .chain = std::move(base.chain)};
    if (number > 0) branch.fork_position = static_cast<int32_t>(CommonPrefix(tokens, plan.paths[0]));
    if (base.n < branch.n_tokens) {
      branch.chain.push_back({"", generation, static_cast<int32_t>(base.n), branch.n_tokens});
      plan.cuts.push_back({.branch = number, .session = state.session, .park = state.park, .n_tokens = branch.n_tokens, .base = base.n});
      plan.new_tokens += branch.n_tokens - base.n;
    }
    changed = changed || branch.n_tokens != own.n_tokens || base.n < branch.n_tokens;
    for (const ChainLink& link : branch.chain) needed.insert({link.folder, link.generation});
    plan.sources.push_back(state.branch);
    plan.paths.emplace_back(tokens.begin(), tokens.end());
    plan.branches.push_back(std::move(branch));
  }
  plan.nothing_new = !changed || plan.branches.empty();
  KeepSegments(previous, "", needed, &plan);
  if (shared != nullptr) KeepSegments(shared->manifest, shared->folder, needed, &plan);
  return plan;
}

void CountLive(Manifest* manifest, const std::function<uint64_t(int layer)>& bytes_per_token) {
  // Rows that two branches share are named by both with the same beginning: counted once.
  std::map<SegmentKey, std::map<int32_t, int32_t>> rows;
  for (const ManifestBranch& branch : manifest->branches) {
    for (const ChainLink& link : branch.chain) {
      int32_t& end = rows[{link.folder, link.generation}][link.begin];
      end = std::max(end, link.end);
    }
  }
  for (ManifestSegment& segment : manifest->segments) {
    segment.tokens.clear();
    uint64_t tokens = 0;
    for (const auto& [begin, end] : rows[{segment.folder, segment.generation}]) {
      tokens += static_cast<uint64_t>(end - begin);
      if (!segment.tokens.empty() && begin <= segment.tokens.back().second) {
        segment.tokens.back().second = std::max(segment.tokens.back().second, end);
      } else {
        segment.tokens.emplace_back(begin, end);
      }
    }
    uint64_t per_token = sizeof(int32_t);  // its id
    for (int layer = segment.layer_begin; layer < segment.layer_end; ++layer) per_token += bytes_per_token(layer);
    segment.live_bytes = std::min(segment.bytes, tokens * per_token);
  }
}

bool WantsCompaction(const Manifest& manifest) {
  std::map<int32_t, int> pieces;  // by stage
  for (const ManifestSegment& segment : manifest.segments) {
    if (!segment.folder.empty()) continue;  // another conversation's
    if (++pieces[segment.stage] > limits::kMostSegmentsPerStage) return true;
    if (segment.bytes >= limits::kLeastCompactedBytes && segment.live_bytes * 2 < segment.bytes) return true;
  }
  return false;
}

}  // namespace layover
