// The engine: one thread that owns the conversations, the pipeline and the order of everything. HTTP threads put tasks
// into its inbox; the stages' messages, the store thread's results and the clock are the other things that move it.
//
// Files: engine.cc the loop and the stages; engine_admit.cc how a request gets its place; engine_turns.cc what follows
// until its end; engine_save.cc and engine_restore.cc the two transfers; engine_admin.cc lists, deletion, verification
// and shutdown.
#ifndef LAYOVER_COORDINATOR_ENGINE_H_
#define LAYOVER_COORDINATOR_ENGINE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/gguf/model_identity.h"
#include "common/mailbox.h"
#include "common/storage/durable_file.h"
#include "common/storage/manifest.h"
#include "common/storage/store_layout.h"
#include "coordinator/catalog.h"
#include "coordinator/conversation/conversation.h"
#include "coordinator/metrics.h"
#include "coordinator/pipeline.h"
#include "coordinator/service.h"
#include "coordinator/stage_group.h"
#include "coordinator/store_thread.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/turn.h"

namespace layover {

// What an engine is built from; all of it outlives the engine.
struct EngineParts {
  const Topology* topology = nullptr;
  const Plan* plan = nullptr;
  const ModelShape* shape = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Metrics* metrics = nullptr;
  ModelIdentity identity;      // all but the weights, which the stages tell
  ServedModel served;
};

class Engine : public Service, private StageGroup::Listener, private Pipeline::Listener {
 public:
  // Takes the store's lock and cleans it up, starts the workers and the thread. The model is loaded when WaitUp returns.
  static absl::StatusOr<std::unique_ptr<Engine>> Start(EngineParts parts);
  ~Engine() override;

  // Ok once every stage is up; the first failure otherwise.
  absl::Status WaitUp();
  // Refuses new work, stops running turns, saves as the policy says, ends the workers. Ok if all was saved.
  absl::Status Shutdown();

  const ServedModel& model() const override { return parts_.served; }
  HealthReport Health() const override;
  std::vector<SlotInfo> Slots() const override;
  GenerationId Generate(GenerationRequest request, std::shared_ptr<GenerationObserver> observer) override;
  void CancelGeneration(GenerationId id) override;
  void List(std::string owner, std::string after, int limit, Callback<ConversationPage> done) override;
  void Show(std::string owner, std::string id, Callback<ConversationInfo> done) override;
  void Delete(std::string owner, std::string id, DoneCallback done) override;
  void Save(std::string owner, std::string id, ProgressCallback progress, Callback<SaveResult> done) override;
  void Restore(std::string owner, std::string id, bool prove, ProgressCallback progress,
               Callback<RestoreResult> done) override;
  void Verify(std::string owner, std::string id, Callback<VerifyResult> done) override;

 private:
  using Clock = std::chrono::steady_clock;
  using ConversationPtr = std::shared_ptr<Conversation>;

  // The session holds the state; 0 with an error. Whoever asked gives it to a branch.
  using RestoredCallback = std::function<void(absl::StatusOr<RestoreResult>, SessionId)>;

  // A save or restore in flight: what the stages have said so far.
  struct Transfer {
    bool is_restore = false;
    ConversationPtr conversation;
    Clock::time_point started = Clock::now();
    Clock::time_point last_sign = Clock::now();
    ProgressCallback progress;
    TransferProgress done_so_far;
    int receipts = 0;                          // of the stages
    absl::Status status;                       // the first failure
    // save
    int64_t generation = 0;
    PageLedger::PinId pin = 0;
    int64_t n_tokens = 0;
    Digest prefix;
    std::vector<std::string> paths;            // [stage]
    std::vector<wire::SaveReceipt> saved;
    Callback<SaveResult> save_done;
    // restore
    uint64_t session = 0;
    std::shared_ptr<ConversationImage> image;
    std::vector<std::string> warnings;
    std::vector<wire::RestoreReceipt> restored;
    RestoredCallback restore_done;
  };

  explicit Engine(EngineParts parts);
  absl::Status OpenStore();
  void AddStored(const ConversationImage& image);

  // --- engine.cc
  void Loop();
  int PollTimeoutMs() const;
  void OnTimer();
  void UpdateHealth();
  void UpdateGauges();
  void OnStagesUp() override;
  void OnStageLost(int stage, const absl::Status& why) override;
  void OnStageDown(int stage, const absl::Status& why) override;
  void OnStageMessage(int stage, uint64_t seq, const wire::FromStage& message) override;
  void CompleteIdentity();

  // --- engine_turns.cc
  void Enqueue(std::unique_ptr<Turn> turn);
  void AdmitQueued();
  bool TryAdmit(Turn& turn);                   // true: no longer queued
  bool TakeSession(Turn& turn, const ReusePlan& plan, const std::vector<int32_t>& target);
  void GiveSession(Turn& turn, SessionId session);
  void CutSession(SessionId session, int64_t length);
  uint64_t SharedHeadSource(const Turn& turn, const std::vector<int32_t>& target, int64_t* length) const;
  ConversationPtr ConversationFor(const GenerationRequest& request);
  void LoadConversationFiles(const ConversationPtr& conversation);
  void NoteDivergence(Turn& turn, const ReusePlan& plan, const std::vector<int32_t>& target);
  void CountReuse(Turn& turn, const ReusePlan& plan, int64_t reused);
  void JournalPrompt(Turn& turn, const ReusePlan& plan);
  void AfterJournal(Turn& turn);
  void AfterRestore(GenerationId id, Clock::time_point started, const absl::StatusOr<RestoreResult>& result, SessionId session);
  void RunTurn(Turn& turn);
  void JournalOutput(Turn& turn);
  void OnFed(SessionId session, int64_t length) override;
  void OnSampled(SessionId session, const wire::RowReport& row) override;
  void OnStopped(SessionId session) override;
  bool OnStarved(SessionId session) override;
  void OnRunFailed(SessionId session, const absl::Status& why) override;
  void StopTurn(Turn& turn, absl::Status why);
  void EndTurn(Turn& turn, TurnEnd end);       // its session is at rest
  void ForgetTurn(GenerationId id);
  bool EvictIdle(SessionId keep);              // true: a session came free at once
  void CloseBranch(Conversation& conversation, Branch& branch);
  Turn* TurnOf(SessionId session);

  // --- engine_save.cc
  void BeginSave(const ConversationPtr& conversation, ProgressCallback progress, Callback<SaveResult> done);
  absl::Status CheckSpace(const Conversation& conversation, int64_t n_tokens) const;
  void OnSaveReceipt(const wire::SaveReceipt& receipt);
  void CommitSave(uint64_t number);
  Manifest MakeManifest(const Transfer& save) const;
  void EndSave(uint64_t number, absl::StatusOr<SaveResult> result);
  void AbortSave(Transfer& save, uint64_t number, absl::Status why);

  // --- engine_restore.cc
  void BeginRestore(const ConversationPtr& conversation, ProgressCallback progress, RestoredCallback done);
  absl::Status RestoreFromImage(const ConversationPtr& conversation, const std::shared_ptr<ConversationImage>& image,
                                ProgressCallback progress, RestoredCallback* done);
  absl::Status CheckIdentity(const Manifest& manifest, std::vector<std::string>* warnings) const;
  void OnRestoreReceipt(const wire::RestoreReceipt& receipt);
  void EndRestore(uint64_t number);
  void FailTransfers(const absl::Status& why); // a stage was lost
  void OnTransferTick(const wire::TransferTick& tick);

  // --- engine_admin.cc
  ConversationPtr Find(const std::string& owner, const std::string& id) const;
  ConversationInfo InfoOf(const Conversation& conversation, bool everything) const;
  void SaveCatalogRow(const Conversation& conversation);
  void BeginShutdown(std::function<void(absl::Status)> done);
  void ContinueShutdown();
  StoredIdentity OwnIdentity() const;
  int64_t PageBytesAllLayers() const;

  // Constant after Start.
  const EngineParts parts_;
  const StoreSettings* const store_;           // null: no store
  const bool can_truncate_;                    // no recurrent state: a session can be cut anywhere

  // Any thread.
  Mailbox<Task> inbox_;
  std::atomic<GenerationId> next_generation_id_{1};
  mutable std::mutex health_mutex_;
  HealthReport health_;                        // guarded by health_mutex_
  std::vector<SlotInfo> slots_;                // guarded by health_mutex_
  std::mutex up_mutex_;
  std::condition_variable up_changed_;
  bool up_once_ = false;                       // guarded by up_mutex_
  absl::Status start_failure_;                 // guarded by up_mutex_

  // The engine's thread.
  std::unique_ptr<StoreLock> lock_;
  // These two belong to the store thread after the start.
  std::unique_ptr<Catalog> catalog_;
  SegmentNames segment_names_;
  std::unique_ptr<StageGroup> stages_;
  std::unique_ptr<Pipeline> pipeline_;
  ModelIdentity identity_;
  bool identity_known_ = false;
  std::map<std::pair<std::string, std::string>, ConversationPtr> conversations_;  // (owner, id)
  std::list<ConversationPtr> anonymous_;       // live only; most recently used first
  std::map<GenerationId, std::unique_ptr<Turn>> turns_;
  std::list<GenerationId> queue_;
  std::map<SessionId, GenerationId> turn_of_session_;
  std::map<uint64_t, Transfer> transfers_;     // by number
  uint64_t next_transfer_ = 1;
  std::vector<std::string> stray_paths_;       // segments of saves that a lost stage ended
  Clock::time_point next_timer_;
  bool draining_ = false;
  bool stop_ = false;
  std::function<void(absl::Status)> shutdown_done_;
  absl::Status shutdown_status_;
  std::set<std::string> shutdown_saved_;       // folders done
  bool shutdown_saving_ = false;

  std::unique_ptr<StoreThread> store_thread_;  // journals, manifests: short
  std::unique_ptr<StoreThread> reader_thread_; // verification: long
  std::thread thread_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_ENGINE_H_
