// What a save has to write and what it can leave where it is: a pure function of what is live, parked and saved.
//
// With checkpoints, the state at a branch's end and those at its checkpoints are written beside the rows; what older
// segments hold of them is named as long as the rows up to there are.
//
// Rule: each branch's rows are written from the deepest position that segments already hold for its own history: its
// last save's end if it only grew, else the page border before the place where it left; the same for a head that it
// shares with another conversation's image. Everything below is named by the chain.
#ifndef LAYOVER_COORDINATOR_CONVERSATION_SAVE_PLAN_H_
#define LAYOVER_COORDINATOR_CONVERSATION_SAVE_PLAN_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/storage/manifest.h"
#include "common/wire/messages.h"
#include "coordinator/conversation/conversation.h"

namespace layover {

// A branch as it is to be saved: its tokens and where its state is. Without tokens, only the store holds it.
struct BranchState {
  const Branch* branch = nullptr;
  std::span<const int32_t> tokens;  // whose state is held
  uint64_t session = 0;
  uint64_t park = 0;
  std::vector<wire::StateAt> checkpoints;  // that are held with it, ascending
};

// An image of another conversation whose rows may be named: those that the ledger shared.
struct SharedImage {
  std::string folder;
  const Manifest* manifest = nullptr;
  std::span<const SavedBranch* const> branches;
  int64_t most = 0;                 // tokens that were shared
};

struct SavePlan {
  bool nothing_new = false;
  std::vector<wire::BranchCut> cuts;          // what the stages write; empty if nothing_new
  std::vector<ManifestBranch> branches;       // of the next manifest, trunk first
  std::vector<const Branch*> sources;         // [branches] whose state that is
  std::vector<std::vector<int32_t>> paths;    // [branches] their token ids
  std::vector<ManifestSegment> kept;          // segments of older generations or other folders that stay needed
  int64_t new_tokens = 0;                     // rows to write, over all cuts
};

// `whole`: write everything anew that is in memory, and name nothing old for it (compaction). `states`: the trunk first;
// branches that hold nothing and have nothing saved are left out by the caller.
SavePlan PlanSave(const Manifest* previous, int64_t generation, std::span<const BranchState> states,
                  const SharedImage* shared, CutAt cut, bool whole);

// What a layer keeps: K and V rows of every token, and what there is at a checkpoint only (states, rows of a window).
struct LayerBytes {
  std::function<uint64_t(int layer)> per_token;
  std::function<uint64_t(int layer)> per_checkpoint;
};

// What a segment serves, and how many of its payload bytes that is: fills `tokens` and `live_bytes` of every segment from
// the chains. A checkpoint is counted where the rows before it are, although it may have been written later.
void CountLive(Manifest* manifest, const LayerBytes& bytes);

// Whether so much of the image is dead, or it is in so many pieces, that it should be written anew. With checkpoints fewer
// pieces, as each holds states of its own; and a stage's segments are looked at together, see CountLive.
bool WantsCompaction(const Manifest& manifest, CutAt cut);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CONVERSATION_SAVE_PLAN_H_
