#include "tests/http/fake_service.h"

#include <utility>

namespace layover::testing {

FakeService::FakeService() {
  served.id = "tiny";
  served.path_leaf = "tiny.gguf";
  served.context = 64;
  served.context_train = 2048;
  served.n_vocab = 258;
  served.n_params = 1000;
  served.bytes = 4096;
  served.sessions = 4;
  served.stages = 2;
  served.kv_type = "f16";
  served.created_at = 1700000000;
}

FakeService::Generation FakeService::WaitForGeneration() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !waiting_.empty(); });
  Generation generation = std::move(waiting_.front());
  waiting_.erase(waiting_.begin());
  return generation;
}

GenerationId FakeService::WaitForCancel() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !cancelled_.empty(); });
  const GenerationId id = cancelled_.front();
  cancelled_.erase(cancelled_.begin());
  return id;
}

int FakeService::cancels() const {
  std::lock_guard lock(mutex_);
  return cancels_;
}

std::string FakeService::last_call() const {
  std::lock_guard lock(mutex_);
  return last_call_;
}

std::string FakeService::last_list_after() const {
  std::lock_guard lock(mutex_);
  return last_after_;
}

int FakeService::last_list_limit() const {
  std::lock_guard lock(mutex_);
  return last_limit_;
}

void FakeService::Note(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  last_call_ = owner + "|" + id;
}

GenerationId FakeService::Generate(GenerationRequest request, std::shared_ptr<GenerationObserver> observer) {
  GenerationId id = 0;
  {
    std::lock_guard lock(mutex_);
    id = next_id_++;
    last_call_ = request.owner + "|" + request.conversation_id;
    if (!script) waiting_.push_back({id, std::move(request), std::move(observer)});
  }
  changed_.notify_all();
  if (script) script(request, *observer);
  return id;
}

void FakeService::CancelGeneration(GenerationId id) {
  {
    std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
    ++cancels_;
  }
  changed_.notify_all();
}

void FakeService::List(std::string owner, std::string after, int limit, Callback<ConversationPage> done) {
  Note(owner, "");
  {
    std::lock_guard lock(mutex_);
    last_after_ = after;
    last_limit_ = limit;
  }
  done(page);
}

void FakeService::Show(std::string owner, std::string id, Callback<ConversationInfo> done) {
  Note(owner, id);
  done(info);
}

void FakeService::Delete(std::string owner, std::string id, DoneCallback done) {
  Note(owner, id);
  done(deleted);
}

void FakeService::Save(std::string owner, std::string id, ProgressCallback progress, Callback<SaveResult> done) {
  Note(owner, id);
  on_save(id, std::move(progress), std::move(done));
}

void FakeService::Restore(std::string owner, std::string id, bool prove, ProgressCallback progress,
                          Callback<RestoreResult> done) {
  Note(owner, id);
  on_restore(id, prove, std::move(progress), std::move(done));
}

void FakeService::Verify(std::string owner, std::string id, Callback<VerifyResult> done) {
  Note(owner, id);
  done(verify);
}

void FakeService::Park(std::string owner, std::string id, Callback<ParkResult> done) {
  Note(owner, id);
  done(parked);
}

void FakeService::Fork(std::string owner, std::string id, std::string new_id, Callback<ConversationInfo> done) {
  Note(owner, id + "|" + new_id);
  done(info);
}

void FakeService::Rewind(std::string owner, std::string id, int64_t to, Callback<RewindResult> done) {
  Note(owner, id + "|" + std::to_string(to));
  done(rewound);
}

void FakeService::SaveSlot(std::string owner, int slot, std::string id, Callback<SaveResult> done) {
  Note(owner, std::to_string(slot) + "|" + id);
  done(slot_saved);
}

void FakeService::RestoreSlot(std::string owner, int slot, std::string id, Callback<RestoreResult> done) {
  Note(owner, std::to_string(slot) + "|" + id);
  done(slot_restored);
}

void FakeService::EraseSlot(std::string owner, int slot, Callback<int64_t> done) {
  Note(owner, std::to_string(slot));
  done(slot_erased);
}

void Play(const std::vector<int32_t>& ids, FinishReason reason, const Timings& timings, GenerationObserver& observer) {
  observer.OnStarted(timings);
  for (const int32_t id : ids) {
    GeneratedToken token;
    token.id = id;
    if (!observer.OnToken(token)) return observer.OnFinished(FinishReason::kStop, timings);
  }
  observer.OnFinished(reason, timings);
}

}  // namespace layover::testing
