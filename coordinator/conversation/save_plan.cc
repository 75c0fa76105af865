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
  bool has_state = false;        // the state at n is saved too
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
void Offer(std::span<const int32_t> tokens, const SavedBranch& saved, int64_t most, Base* base) {
  const auto usable = std::min(most, static_cast<int64_t>(tokens.size()));
  const int64_t common = RowsToName(saved, tokens.first(static_cast<size_t>(usable)));
  if (common <= base->n) return;
  const auto is_here = [&](int32_t position) { return position == common; };
  *base = {common, CutChain(saved.chain, common),
           common == saved.n_tokens || std::any_of(saved.checkpoints.begin(), saved.checkpoints.end(), is_here)};
}

void OfferShared(std::span<const int32_t> tokens, const SharedImage& shared, Base* base) {
  for (const SavedBranch* saved : shared.branches) {
    Base offered = *base;
    Offer(tokens, *saved, shared.most, &offered);
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

// What a cut writes of the checkpoints, and which positions the branch can go back to then: those of the rows that are
// named stay; beside what is written anew they are written anew.
void PlanCheckpoints(const BranchState& state, const Base& base, bool stays, ManifestBranch* branch, wire::BranchCut* cut) {
  std::set<int32_t> positions;
  const SavedBranch& own = state.branch->saved;
  const int64_t common = CommonPrefix(own.path, stays ? std::span<const int32_t>(own.path) : state.tokens);
  const auto keep = [&](int64_t position) {
    if (position > 0 && position <= std::min(common, base.n) && position < branch->n_tokens) positions.insert(static_cast<int32_t>(position));
  };
  for (const int32_t position : own.checkpoints) keep(position);
  keep(own.n_tokens);
  for (const wire::StateAt& checkpoint : state.checkpoints) {
    if (stays || checkpoint.position >= branch->n_tokens || positions.contains(static_cast<int32_t>(checkpoint.position))) continue;
    if (base.n >= branch->n_tokens) continue;  // nothing is written
    positions.insert(static_cast<int32_t>(checkpoint.position));
    cut->checkpoints.push_back(checkpoint);
  }
  branch->checkpoints.assign(positions.begin(), positions.end());
}

}  // namespace

SavePlan PlanSave(const Manifest* previous, int64_t generation, std::span<const BranchState> states, const SharedImage* shared,
                  CutAt cut_at, bool whole) {
  SavePlan plan;
  std::set<SegmentKey> needed;
  bool changed = previous == nullptr || previous->n_tokens == 0 || whole || states.size() != previous->branches.size();
  for (const BranchState& state : states) {
    const auto number = static_cast<int32_t>(plan.branches.size());
    const SavedBranch& own = state.branch->saved;
    // What is saved beyond what is in memory stays as it is, as far as the branch still goes that way.
    int64_t kept = RowsToName(own, state.branch->path);
    if (kept > 0) kept = DeepestState(cut_at, kept, own.n_tokens, own.checkpoints);
    const bool stays = static_cast<int64_t>(state.tokens.size()) < kept;
    const auto tokens = stays ? std::span<const int32_t>(own.path).first(static_cast<size_t>(kept)) : state.tokens;
    if (tokens.empty()) continue;

    Base base;
    if (whole && stays) {
      // It is on disk only: nobody here can write it anew.
      base = {kept, CutChain(own.chain, kept), true};
    } else if (!whole) {
      for (const BranchState& other : states) {
        if (other.branch->saved.n_tokens > 0) Offer(tokens, other.branch->saved, limits::kMaxContextTokens, &base);
      }
      if (shared != nullptr) OfferShared(tokens, *shared, &base);
    }
    // Lines of this very save serve as well: a side branch begins with the trunk's rows.
    for (size_t i = 0; i < plan.branches.size(); ++i) {
      Offer(tokens, {plan.branches[i].n_tokens, plan.paths[i], plan.branches[i].chain, plan.branches[i].checkpoints},
            limits::kMaxContextTokens, &base);
    }
    const auto n_tokens = static_cast<int64_t>(tokens.size());
    if (cut_at == CutAt::kCheckpoints && !stays && base.n == n_tokens && !base.has_state) {
      // Only the state at the end is new: the last page's rows go with it.
      base.n = (n_tokens - 1) / limits::kPageTokens * limits::kPageTokens;
      base.chain = CutChain(base.chain, base.n);
    }

    ManifestBranch branch{.branch = number, .parent = number == 0 ? -1 : 0, .n_tokens = static_cast<int32_t>(tokens.size()),
                          .prefix = DigestOfTokens(tokens), .chain = base.chain};
    if (number > 0) branch.fork_position = static_cast<int32_t>(CommonPrefix(tokens, plan.paths[0]));
    wire::BranchCut cut{.branch = number, .session = state.session, .park = state.park, .n_tokens = branch.n_tokens, .base = base.n};
    if (cut_at == CutAt::kCheckpoints) PlanCheckpoints(state, base, stays, &branch, &cut);
    if (base.n < branch.n_tokens) {
      branch.chain.push_back({"", generation, static_cast<int32_t>(base.n), branch.n_tokens});
      plan.cuts.push_back(std::move(cut));
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

void CountLive(Manifest* manifest, const LayerBytes& bytes) {
  // Rows that two branches share are named by both with the same beginning: counted once.
  std::map<SegmentKey, std::map<int32_t, int32_t>> rows;
  std::map<SegmentKey, std::set<int32_t>> checkpoints;
  for (const ManifestBranch& branch : manifest->branches) {
    std::vector<int32_t> positions = branch.checkpoints;
    positions.push_back(branch.n_tokens);
    for (const ChainLink& link : branch.chain) {
      for (const int32_t position : positions) {
        if (link.begin < position && position <= link.end) checkpoints[{link.folder, link.generation}].insert(position);
      }
    }
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
    uint64_t per_checkpoint = 0;
    for (int layer = segment.layer_begin; layer < segment.layer_end; ++layer) {
      per_token += bytes.per_token(layer);
      per_checkpoint += bytes.per_checkpoint(layer);
    }
    const uint64_t n_checkpoints = checkpoints[{segment.folder, segment.generation}].size();
    segment.live_bytes = std::min(segment.bytes, tokens * per_token + n_checkpoints * per_checkpoint);
  }
}

bool WantsCompaction(const Manifest& manifest, CutAt cut) {
  const int most_pieces = cut == CutAt::kAnywhere ? limits::kMostSegmentsPerStage : limits::kMostPiecesWithStates;
  const auto mostly_dead = [](const ManifestSegment& segment) {
    return segment.bytes >= limits::kLeastCompactedBytes && segment.live_bytes * 2 < segment.bytes;
  };
  struct Stage {
    int pieces = 0;
    ManifestSegment sum;
  };
  std::map<int32_t, Stage> stages;
  for (const ManifestSegment& segment : manifest.segments) {
    if (!segment.folder.empty()) continue;  // another conversation's
    Stage& stage = stages[segment.stage];
    if (++stage.pieces > most_pieces) return true;
    stage.sum.bytes += segment.bytes;
    stage.sum.live_bytes += segment.live_bytes;
    if (cut == CutAt::kAnywhere && mostly_dead(segment)) return true;
  }
  return std::any_of(stages.begin(), stages.end(), [&](const auto& entry) { return mostly_dead(entry.second.sum); });
}

}  // namespace layover
