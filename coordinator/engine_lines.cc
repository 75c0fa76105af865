// Which line of tokens a rendered prompt continues; forks and rewinds: what a conversation's line is, in the journal
// first, then in memory.
#include <algorithm>
#include <span>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"
#include "coordinator/text/held_ids.h"

namespace layover {
namespace {

// Ids around a divergence that `show` and the log give.
constexpr int64_t kDivergenceContext = 10;

// A fork's journal and, if the source's image serves, its manifest; on the store thread.
struct ForkFiles {
  std::string store;
  Journal::NewJournal fresh;
  std::vector<int32_t> path;
  int32_t fed = 0;
  std::optional<Manifest> manifest;
};

}  // namespace

int64_t Engine::HeldOf(const Branch& branch, const GenerationRequest& request) const {
  if (!request.is_rendered) return CommonPrefix(branch.path, request.prompt);
  return CommonTextOf(*parts_.tokenizer, branch.path, request.prompt).held_n;
}

void Engine::UseHeldIds(Turn& turn) const {
  GenerationRequest& request = turn.request;
  if (!request.is_rendered) return;
  CommonText most;
  const Branch* line = nullptr;
  for (const auto& branch : turn.conversation->branches) {
    const CommonText common = CommonTextOf(*parts_.tokenizer, branch->path, request.prompt);
    if (common.fresh_n <= most.fresh_n) continue;
    most = common;
    line = branch.get();
  }
  if (line == nullptr || CommonPrefix(line->path, request.prompt) == most.fresh_n) return;
  std::vector<int32_t> ids(line->path.begin(), line->path.begin() + most.held_n);
  ids.insert(ids.end(), request.prompt.begin() + most.fresh_n, request.prompt.end());
  // What was drawn may be longer than what a tokenizer makes of it.
  if (static_cast<int64_t>(ids.size()) >= parts_.plan->context) return;
  LogInfo("request {}: {} held ids say what {} of the prompt's say, and are used", turn.id, most.held_n, most.fresh_n);
  if (request.history_n >= most.fresh_n) {
    request.history_n += most.held_n - most.fresh_n;
  } else if (request.history_n > 0) {
    const auto history = std::span(std::as_const(request.prompt)).first(static_cast<size_t>(request.history_n));
    request.history_n = CommonTextOf(*parts_.tokenizer, line->path, history).held_n;
  }
  request.prompt = std::move(ids);
}

void Engine::NoteDivergence(Turn& turn, const ReusePlan& plan, const std::vector<int32_t>& target) {
  if (plan.branch == nullptr || plan.branch != turn.branch) return;
  const std::vector<int32_t>& had = plan.branch->path;
  const int64_t at = plan.common;
  if (at >= static_cast<int64_t>(had.size()) || at >= static_cast<int64_t>(target.size())) return;
  const auto around = [at](const std::vector<int32_t>& ids) {
    const int64_t begin = std::max<int64_t>(0, at - kDivergenceContext);
    const int64_t end = std::min(static_cast<int64_t>(ids.size()), at + kDivergenceContext);
    return std::vector<int32_t>(ids.begin() + begin, ids.begin() + end);
  };
  turn.conversation->divergence = Divergence{at, around(had), around(target)};
  LogInfo("request {}: the prompt diverges at {} of {} held tokens: had {}, got {}", turn.id, at, had.size(),
          had[static_cast<size_t>(at)], target[static_cast<size_t>(at)]);
}

void Engine::Rewind(std::string owner, std::string id, int64_t to, Callback<RewindResult> done) {
  inbox_.Put([this, owner, id, to, done = std::move(done)] {
    WithLoaded(owner, id, done, [this, to, done](const ConversationPtr& conversation) {
      if (const absl::Status rest = CheckAtRest(*conversation); !rest.ok()) {
        done(rest);
        return;
      }
      Branch& trunk = conversation->trunk();
      const auto length = static_cast<int64_t>(trunk.path.size());
      if (to < 0 || to > length) {
        done(WithPart(InvalidArgument("to: {} is not in [0, {}], the tokens of conversation {}", to, length, conversation->id), {.param = "to"}));
        return;
      }
      if (to == length) {
        done(RewindResult{conversation->id, to});
        return;
      }
      if (trunk.session != 0) CutOrClose(*conversation, trunk, to);
      trunk.path.resize(static_cast<size_t>(to));
      trunk.fed = std::min(trunk.fed, to);
      conversation->journalled_n = to;
      if (store_ == nullptr || conversation->files == nullptr || conversation->files->journal == nullptr || trunk.turn == kNoTurn) {
        done(RewindResult{conversation->id, to});
        return;
      }
      conversation->switching = true;
      store_thread_->Do(
          [files = conversation->files, turn = trunk.turn, to] { return files->journal->AppendRewind(turn, static_cast<int32_t>(to)); },
          [this, conversation, to, done](absl::Status status) {
            conversation->switching = false;
            if (!status.ok()) {
              parts_.metrics->JournalError();
              LogError("conversation {}: journal: {}", conversation->folder, ToStd(status.message()));
            }
            done(RewindResult{conversation->id, to});
            AdmitQueued();
            ContinueShutdown();
          });
    });
  });
}

// The deepest state at or before `length` stays live.
void Engine::CutOrClose(Conversation& conversation, Branch& branch, int64_t length) {
  const auto held = static_cast<int64_t>(pipeline_->tokens(branch.session).size());
  const int64_t n = DeepestState(cut_, length, held, PositionsOf(branch.checkpoints));
  if (n > 0) {
    CutBranch(conversation, branch, n);
  } else {
    CloseBranch(conversation, branch);
  }
}

void Engine::Fork(std::string owner, std::string id, std::string new_id, Callback<ConversationInfo> done) {
  inbox_.Put([this, owner, id, new_id, done = std::move(done)] {
    if (draining_) {
      done(Unavailable("the server is shutting down"));
      return;
    }
    WithLoaded(owner, id, done, [this, new_id, done](const ConversationPtr& source) { ForkInto(source, new_id, done); });
  });
}

// The image of the source, named by another manifest: nothing is copied.
Manifest Engine::ForkManifest(const Conversation& source, const Conversation& target) const {
  Manifest manifest = *source.manifest;
  const Branch& trunk = source.trunk();
  const auto saved = std::find_if(manifest.branches.begin(), manifest.branches.end(), [&](const ManifestBranch& branch) {
    return branch.n_tokens == trunk.saved.n_tokens && branch.chain == trunk.saved.chain;
  });
  ManifestBranch branch = saved == manifest.branches.end() ? manifest.branches.front() : *saved;
  branch.branch = 0;
  branch.parent = -1;
  branch.fork_position = 0;
  if (saved != manifest.branches.begin()) manifest.proof.reset();  // it is of the source's first branch
  for (ChainLink& link : branch.chain) {
    if (link.folder.empty()) link.folder = source.folder;
  }
  manifest.id = target.id;
  manifest.owner = target.owner;
  manifest.generation = 1;
  manifest.n_tokens = branch.n_tokens;
  manifest.prefix = branch.prefix;
  manifest.created_at = target.created_at;
  manifest.saved_at = UnixSeconds();
  for (ManifestSegment& segment : manifest.segments) {
    if (segment.folder.empty()) segment.folder = source.folder;
  }
  std::erase_if(manifest.segments, [&](const ManifestSegment& segment) {
    return std::none_of(branch.chain.begin(), branch.chain.end(), [&](const ChainLink& link) {
      return link.folder == segment.folder && link.generation == segment.generation;
    });
  });
  manifest.branches = {std::move(branch)};
  CountLive(&manifest, BytesOfLayers());
  return manifest;
}

void Engine::ForkInto(const ConversationPtr& source, const std::string& new_id, Callback<ConversationInfo> done) {
  if (Find(source->owner, new_id) != nullptr) {
    done(absl::AlreadyExistsError(ToAbsl(fmt::format("there is a conversation {} already", new_id))));
    return;
  }
  if (source->deleting || source->switching) {
    done(Aborted("conversation {} is in use", source->id));
    return;
  }
  const Branch& trunk = source->trunk();
  if (trunk.path.empty()) {
    done(NoState(*source, "tokens"));
    return;
  }
  const ConversationPtr fork = NewConversation(source->owner, new_id);
  fork->files = std::make_shared<ConversationFiles>();
  fork->created_at = source->created_at;  // their first turn is one
  Branch& line = fork->trunk();
  // What runs right now belongs to the source alone: the fork takes what is fed and known.
  line.path = trunk.path;
  line.fed = std::min(trunk.fed, static_cast<int64_t>(trunk.path.size()));
  line.last_used_ms = SteadyMs();
  line.shared_with = source->folder;
  line.shared_n = line.fed;
  fork->journalled_n = static_cast<int64_t>(line.path.size());
  if (trunk.session != 0 && stages_->up() && FreePlaces() > 0) {
    const int64_t n = std::min(CommonPrefix(pipeline_->tokens(trunk.session), line.path), fork->journalled_n);
    const auto held = static_cast<int64_t>(pipeline_->tokens(trunk.session).size());
    if (const int64_t at = DeepestState(cut_, n, held, PositionsOf(trunk.checkpoints)); at > 0) {
      if (const auto session = ForkBranch(trunk, at); session.ok()) HoldSlot(line.session = *session);
    }
  }
  Enlist(fork);
  if (store_ == nullptr) {
    done(InfoOf(*fork, true));
    return;
  }
  ForkFiles files{.store = store_->dir, .fresh = {.owner = fork->owner, .id = new_id, .time_ms = fork->created_at * 1000}, .path = line.path,
                  .fed = static_cast<int32_t>(line.fed)};
  if (source->HasImage() && trunk.saved.n_tokens > 0 && CommonPrefix(trunk.saved.path, line.path) == trunk.saved.n_tokens) {
    files.manifest = ForkManifest(*source, *fork);
    fork->next_generation = 2;
  }
  fork->switching = true;
  struct Written {
    absl::Status status;
    Published published;
  };
  store_thread_->Do(
      [this, files = std::move(files), keep = fork->files, folder = fork->folder]() -> Written {
        const PromptFrame prompt{.time_ms = UnixMs(), .ids = files.path};
        Written written{.status = keep->AppendHeld(files.store, files.fresh, prompt, files.fed).status};
        if (written.status.ok() && files.manifest.has_value()) {
          written.published = PublishManifest(files.store, folder, *files.manifest, *keep->journal);
        }
        return written;
      },
      [this, fork, source, done](Written written) { TakeFork(fork, source, written.status, written.published, done); });
}

void Engine::TakeFork(const ConversationPtr& fork, const ConversationPtr& source, const absl::Status& status,
                      const Published& published, const Callback<ConversationInfo>& done) {
  fork->switching = false;
  Branch& line = fork->trunk();
  if (!status.ok()) {
    CloseBranch(*fork, line);
    DropParked(line);
    ForgetConversation(fork);
    done(status);
    AdmitQueued();
    ContinueShutdown();
    return;
  }
  line.turn = 0;
  if (published.manifest != nullptr && published.outcome.status.ok()) {
    const ManifestBranch& branch = published.manifest->branches.front();
    line.saved.n_tokens = branch.n_tokens;
    line.saved.path.assign(line.path.begin(), line.path.begin() + branch.n_tokens);
    line.saved.chain = branch.chain;
    line.saved.checkpoints = branch.checkpoints;
    fork->manifest_bytes = published.manifest_bytes;
    fork->TakeManifest(published.manifest, line.saved.path);
  } else if (!published.outcome.status.ok()) {
    // The journal holds every token; only the image is not shared.
    fork->last_error = std::string(published.outcome.status.message());
  }
  LogInfo("conversation {}: a fork of {}, {} tokens", fork->folder, source->folder, fork->journalled_n);
  SaveCatalogRow(*fork);
  done(InfoOf(*fork, true));
  AdmitQueued();
  ContinueShutdown();
}

}  // namespace layover
