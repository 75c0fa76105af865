// Who leaves the store when its budget is short, or when nobody came back for long: images, never journals. A
// conversation whose image was given up goes on from its journal.
//
// Bytes are those of segments, each counted once however many conversations share it, and of every conversation's
// journal, manifest and folder, and of the catalog.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/file_names.h"
#include "coordinator/clocks.h"
#include "coordinator/engine.h"

namespace layover {

int64_t Engine::BytesOfFile(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

// Of the catalog and its journal; a few blocks for the folders and the lock.
int64_t Engine::CatalogBytes() const {
  int64_t bytes = 4 * static_cast<int64_t>(limits::kBlockBytes);
  for (const char* suffix : {"", "-journal", "-wal"}) {
    bytes += BytesOfFile(JoinPath(store_->dir, std::string(kCatalogName) + suffix));
  }
  return bytes;
}

std::optional<std::vector<Engine::ConversationPtr>> Engine::ImagesToGiveUp(int64_t bytes, const Conversation* except) const {
  SegmentCount segments;
  int64_t meta = CatalogBytes();
  std::vector<ConversationPtr> candidates;
  for (const auto& [key, conversation] : conversations_) {
    segments.Add(conversation->folder, conversation->manifest.get());
    meta += conversation->MetaBytes();
    const bool pinned = std::find(store_->pin.begin(), store_->pin.end(), conversation->id) != store_->pin.end();
    const bool wanted = std::any_of(conversation->branches.begin(), conversation->branches.end(),
                                    [&](const auto& branch) { return InUse(*branch); });
    if (conversation.get() == except || pinned || wanted || conversation->stuck || !conversation->HasImage() || conversation->Busy()) continue;
    candidates.push_back(conversation);
  }
  // Whoever is come back to often stays longer: an hour of rest counts less for them.
  const int64_t now = UnixSeconds();
  const auto rest = [now](const ConversationPtr& conversation) {
    return static_cast<double>(now - conversation->last_used_at + 1) / static_cast<double>(1 + conversation->hits);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const ConversationPtr& a, const ConversationPtr& b) { return rest(a) > rest(b); });
  const auto budget = static_cast<int64_t>(store_->budget_bytes);
  std::vector<ConversationPtr> leaving;
  for (const ConversationPtr& candidate : candidates) {
    if (segments.bytes() + meta + bytes <= budget) return leaving;
    segments.Remove(candidate->folder, candidate->manifest.get());
    leaving.push_back(candidate);
  }
  if (segments.bytes() + meta + bytes <= budget) return leaving;
  return std::nullopt;
}

void Engine::GiveUpImage(const ConversationPtr& conversation, std::string_view why) {
  ++give_ups_in_flight_;
  tally_.Touch(conversation);
  // Its journal must be open, to bind the generation that holds nothing.
  const Task go_on = [this, conversation, why = std::string(why)] { GiveUpLoaded(conversation, why); };
  if (LoadIfNeeded(conversation)) {
    go_on();
  } else {
    waiting_for_load_[{conversation->owner, conversation->id}].push_back(go_on);
  }
}

void Engine::GiveUpLoaded(const ConversationPtr& conversation, const std::string& why) {
  const bool damaged = conversation->files == nullptr || conversation->files->journal == nullptr;
  if (damaged || !conversation->HasImage() || conversation->Busy()) {
    conversation->stuck = damaged;  // it stays as it is
    --give_ups_in_flight_;
    // What waits for it is looked at again, but not from here: it may not have begun to wait yet.
    inbox_.Put([this] {
      AdmitQueued();
      ContinueShutdown();
    });
    return;
  }
  LogInfo("conversation {}: its image of {} bytes is given up: {}", conversation->folder, conversation->OwnBytes(), why);
  parts_.metrics->Evicted(StateTier::kDisk);
  conversation->saving = true;
  Manifest manifest = *conversation->manifest;
  manifest.generation = conversation->next_generation++;
  manifest.n_tokens = 0;
  manifest.prefix = DigestOfTokens({});
  manifest.saved_at = UnixSeconds();
  manifest.proof.reset();
  manifest.branches = {{.n_tokens = 0, .prefix = manifest.prefix}};
  manifest.segments.clear();
  store_thread_->Do(
      [this, files = conversation->files, manifest = std::move(manifest), store = store_->dir, folder = conversation->folder]() mutable {
        return PublishManifest(store, folder, std::move(manifest), *files->journal);
      },
      [this, conversation](Published published) {
        conversation->saving = false;
        --give_ups_in_flight_;
        if (published.outcome.status.ok()) {
          conversation->TakeManifest(std::move(published.manifest), {});
          conversation->manifest_bytes = published.manifest_bytes;
          for (auto& branch : conversation->branches) branch->saved = SavedBranch();
        } else {
          conversation->stuck = true;
          conversation->last_error = std::string(published.outcome.status.message());
          LogError("conversation {}: {}", conversation->folder, conversation->last_error);
        }
        SaveCatalogRow(*conversation);
        AdmitQueued();
        ContinueShutdown();
      });
}

void Engine::ExpireImages() {
  if (store_ == nullptr || store_->ttl_seconds <= 0 || stages_ == nullptr) return;
  const int64_t oldest = UnixSeconds() - store_->ttl_seconds;
  std::vector<ConversationPtr> expired;
  for (const auto& [key, conversation] : conversations_) {
    const bool pinned = std::find(store_->pin.begin(), store_->pin.end(), conversation->id) != store_->pin.end();
    if (conversation->last_used_at < oldest && conversation->HasImage() && !pinned && !conversation->Active() && !conversation->Busy()) {
      expired.push_back(conversation);
    }
  }
  for (const ConversationPtr& conversation : expired) GiveUpImage(conversation, "nobody came back within store.ttl");
}

}  // namespace layover
