// A Service whose every answer the test decides. Generations are driven by the test through the observer it is handed.
#ifndef LAYOVER_TESTS_HTTP_FAKE_SERVICE_H_
#define LAYOVER_TESTS_HTTP_FAKE_SERVICE_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/service.h"

namespace layover::testing {

class FakeService : public Service {
 public:
  FakeService();

  // What a test sets.
  ServedModel served;
  HealthReport health{"ok", {}};
  std::vector<SlotInfo> slots;
  std::map<std::string, int64_t> began;  // "owner|id" to when it did
  // Runs in Generate on the HTTP worker's thread; empty: the generation waits for the test (WaitForGeneration).
  std::function<void(const GenerationRequest&, GenerationObserver&)> script;
  std::function<void(const std::string& id, ProgressCallback, Callback<SaveResult>)> on_save;
  std::function<void(const std::string& id, bool prove, ProgressCallback, Callback<RestoreResult>)> on_restore;
  absl::StatusOr<ConversationPage> page = ConversationPage{};
  absl::StatusOr<ConversationInfo> info = ConversationInfo{};
  absl::StatusOr<VerifyResult> verify = VerifyResult{};
  absl::StatusOr<ParkResult> parked = ParkResult{};
  absl::StatusOr<RewindResult> rewound = RewindResult{};
  absl::StatusOr<SaveResult> slot_saved = SaveResult{};
  absl::StatusOr<RestoreResult> slot_restored = RestoreResult{};
  absl::StatusOr<int64_t> slot_erased = int64_t{0};
  absl::Status deleted;

  // What a test asks. Each waits until it has happened (the test program's own time limit is the deadline).
  struct Generation {
    GenerationId id = 0;
    GenerationRequest request;
    std::shared_ptr<GenerationObserver> observer;
  };
  Generation WaitForGeneration();
  GenerationId WaitForCancel();
  int cancels() const;
  // The last management call: "owner|id", and what else its verb takes: "owner|id|new_id", "owner|id|to",
  // "owner|slot|id".
  std::string last_call() const;
  std::string last_list_after() const;
  int last_list_limit() const;

  // Service
  const ServedModel& model() const override { return served; }
  HealthReport Health() const override { return health; }
  std::vector<SlotInfo> Slots() const override { return slots; }
  int64_t BeganAt(const std::string& owner, const std::string& id) const override {
    const auto found = began.find(owner + "|" + id);
    return found == began.end() ? 0 : found->second;
  }
  GenerationId Generate(GenerationRequest request, std::shared_ptr<GenerationObserver> observer) override;
  void CancelGeneration(GenerationId id) override;
  void List(std::string owner, std::string after, int limit, Callback<ConversationPage> done) override;
  void Show(std::string owner, std::string id, Callback<ConversationInfo> done) override;
  void Delete(std::string owner, std::string id, DoneCallback done) override;
  void Save(std::string owner, std::string id, ProgressCallback progress, Callback<SaveResult> done) override;
  void Restore(std::string owner, std::string id, bool prove, ProgressCallback progress,
               Callback<RestoreResult> done) override;
  void Verify(std::string owner, std::string id, Callback<VerifyResult> done) override;
  void Park(std::string owner, std::string id, Callback<ParkResult> done) override;
  void Fork(std::string owner, std::string id, std::string new_id, Callback<ConversationInfo> done) override;
  void Rewind(std::string owner, std::string id, int64_t to, Callback<RewindResult> done) override;
  void SaveSlot(std::string owner, int slot, std::string id, Callback<SaveResult> done) override;
  void RestoreSlot(std::string owner, int slot, std::string id, Callback<RestoreResult> done) override;
  void EraseSlot(std::string owner, int slot, Callback<int64_t> done) override;

 private:
  void Note(const std::string& owner, const std::string& id);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Generation> waiting_;
  std::vector<GenerationId> cancelled_;
  GenerationId next_id_ = 1;
  int cancels_ = 0;
  std::string last_call_;
  std::string last_after_;
  int last_limit_ = 0;
};

// Feeds ids to the observer as the engine would: started, tokens until one is refused, finished.
void Play(const std::vector<int32_t>& ids, FinishReason reason, const Timings& timings, GenerationObserver& observer);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_HTTP_FAKE_SERVICE_H_
