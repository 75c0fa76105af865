// The engine: one thread that owns the conversations, the pipeline and the order of everything. HTTP threads put tasks
// into its inbox; the stages' messages, the store thread's results and the clock are the other things that move it.
//
// Files: engine.cc the loop and the stages; engine_admit.cc how a request gets its place; engine_turns.cc what follows
// until its end; engine_checkpoints.cc where a session can go back to; engine_policy.cc who leaves the memory when room
// is short, engine_budget.cc who leaves the store; engine_save.cc and engine_restore.cc the transfers; engine_admin.cc
// lists, deletion, verification and shutdown; engine_lines.cc lines, forks, rewinds; engine_slots.cc llama-server's slots.
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
#include "coordinator/conversation/save_plan.h"
#include "coordinator/conversation/tally.h"
#include "coordinator/metrics.h"
#include "coordinator/pipeline.h"
#include "coordinator/remote_segments.h"
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
  int64_t BeganAt(const std::string& owner, const std::string& id) const override;
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
  using Clock = std::chrono::steady_clock;
  using ConversationPtr = std::shared_ptr<Conversation>;

  using RestoredCallback = std::function<void(absl::StatusOr<RestoreResult>, SessionId)>;  // whoever asked gives it to a branch
  enum class TransferKind { kSave, kRestore, kPark, kUnpark };

  // Which state of `conversation` is wanted back.
  struct RestoreWish {
    ConversationPtr conversation;
    std::vector<int32_t> ids;                  // as much of these as the image holds, and the rest of a page; empty: the trunk
    bool prove = false;
    GenerationId turn = 0;                     // whose reserved place it takes; 0: none
  };
  // What became of a manifest; on the store thread.
  struct Published {
    CommitOutcome outcome;
    std::shared_ptr<const Manifest> manifest;
    int64_t manifest_bytes = 0;
  };

  // A save, restore, park or unpark in flight: what the stages have said so far.
  struct Transfer {
    TransferKind kind = TransferKind::kSave;
    ConversationPtr conversation;
    Clock::time_point started = Clock::now();
    Clock::time_point last_sign = Clock::now();
    ProgressCallback progress;
    TransferProgress done_so_far;
    int receipts = 0;                          // of the stages
    absl::Status status;                       // the first failure
    int64_t generation = 0;
    int64_t n_tokens = 0;
    Digest prefix;
    // save
    SavePlan plan;
    bool compaction = false;
    bool committing = false;                   // its segments are complete: the rest does not need the stages
    bool awaits_probe = false;
    std::optional<Digest> proof;               // save: measured; restore: of the manifest
    std::vector<PageLedger::PinId> pins;
    std::vector<std::string> paths;            // [stage]
    std::vector<wire::SaveReceipt> saved;
    Callback<SaveResult> save_done;
    // restore, unpark
    uint64_t session = 0;
    std::string numerics;                      // of the manifest
    bool proves_exact = false;
    std::vector<std::string> warnings;
    std::vector<wire::RestoreReceipt> restored;
    RestoredCallback restore_done;
    // park
    Branch* branch = nullptr;                  // also of an unpark
    std::vector<int32_t> parked_tokens;
    std::vector<int32_t> parked_checkpoints;
    int64_t bytes = 0;
    Callback<ParkResult> park_done;
  };

  explicit Engine(EngineParts parts);
  absl::Status OpenStore();
  void AddStored(const ConversationImage& image);

  // --- engine.cc
  void Loop();
  int PollTimeoutMs() const;
  void OnTimer();
  void AbortSilentSaves();
  void UpdateHealth();
  void UpdateGauges();
  void OnStagesUp() override;
  void OnStageLost(int stage, const absl::Status& why) override;
  void OnStageDown(int stage, const absl::Status& why) override;
  void OnStageMessage(int stage, uint64_t seq, const wire::FromStage& message) override;
  void CompleteIdentity();

  // --- engine_admit.cc
  void Enqueue(std::unique_ptr<Turn> turn);
  void AdmitQueued();
  bool TryAdmit(Turn& turn);                   // true: no longer queued
  ConversationPtr ConversationFor(const GenerationRequest& request);
  bool LoadIfNeeded(const ConversationPtr& conversation);  // true: it is loaded
  void TakeLoaded(Conversation& conversation, const ConversationImage& image);
  void TakeUnsaved(Conversation& conversation, const JournalState& state,
                   const std::function<void(Branch&, int64_t)>& take_turn);
  // State of other conversations of the same owner that begins like the target, if it is more than `plan` offers.
  bool OfferSharedHeads(const Turn& turn, const std::vector<int32_t>& target, ReusePlan* plan, ConversationPtr* from);
  bool TakeSession(Turn& turn, const ReusePlan& plan, const ConversationPtr& from);
  Branch* TakeBranch(Conversation& conversation, const ReusePlan& plan);
  void MakeTrunk(Conversation& conversation, const Branch* branch);
  void GiveSession(Turn& turn, SessionId session);
  void CutBranch(Conversation& conversation, Branch& branch, int64_t length);
  void CountReuse(Turn& turn, const ReusePlan& plan);

  // --- engine_turns.cc
  void JournalPrompt(Turn& turn, const ReusePlan& plan);
  void AfterJournal(Turn& turn);
  void LookAgain(Turn& turn);
  void BringBack(Turn& turn);
  void AfterRestore(GenerationId id, Clock::time_point started, const absl::StatusOr<RestoreResult>& result, SessionId session);
  void RunTurn(Turn& turn);
  void JournalOutput(Turn& turn);
  void OnFed(SessionId session, int64_t length) override;
  void OnSampled(SessionId session, const wire::RowReport& row) override;
  void OnProbed(uint64_t probe, const Digest& row) override;
  void OnCheckpoint(SessionId session, int64_t position, PageLedger::PinId pin) override;
  // The logits row after the session's tokens and one more, which proves the state.
  void Probe(SessionId session, std::function<void(const Digest&)> then);
  void OnStopped(SessionId session) override;
  bool OnStarved(SessionId session) override;
  void OnRunFailed(SessionId session, const absl::Status& why) override;
  void StopTurn(Turn& turn, absl::Status why);
  void EndTurn(Turn& turn, TurnEnd end);       // its session is at rest
  void ForgetTurn(GenerationId id);
  void SaveTurn(const ConversationPtr& conversation);  // `save: turn`
  Turn* TurnOf(SessionId session);

  // --- engine_policy.cc
  // A branch and the conversation that it belongs to.
  struct Held {
    ConversationPtr conversation;
    Branch* branch = nullptr;
  };
  int FreePlaces() const;                      // sessions, less those that requests on their way back will need
  // Makes the least recently used idle session leave: true if a place came free; false if none can, or one will (the
  // queue is looked at again then). `at_once`: never waits, even if state is lost to the journal.
  bool EvictIdle(SessionId keep, bool at_once);
  bool Evict(const Held& held, bool at_once);
  Held OldestIdle(SessionId keep) const;
  Held OldestParked() const;
  bool SaveThen(const Held& held, std::function<void()> then);
  void CloseBranch(Conversation& conversation, Branch& branch);
  void DropParked(Branch& branch);
  void DropOldestSideBranch(Conversation& conversation, const ReusePlan& plan);
  bool HoldsState(const Conversation& conversation) const;  // live or parked
  void ForgetAnonymous();                      // those whose state has gone
  bool InUse(const Branch& branch) const;      // a turn works on it or waits for its state
  bool IsUnsaved(const Branch& branch) const;  // it holds state that the store does not
  bool SavesOnEviction(const Conversation& conversation) const;
  int64_t ParkBytes(const Branch& branch) const;
  absl::Status BeginPark(const ConversationPtr& conversation, Branch& branch, Callback<ParkResult> done);
  bool MakeRoomToPark(int64_t bytes);          // true: it is there; false: it cannot be, or it will (see EvictIdle)
  void OnParkReceipt(const wire::ParkReceipt& receipt);
  void EndPark(uint64_t number);

  // --- engine_checkpoints.cc
  std::vector<int64_t> StopsOf(const Turn& turn) const;
  void KeepCheckpoint(Conversation& conversation, Branch& branch, const PinnedCheckpoint& checkpoint);
  void DropCheckpoint(Conversation& conversation, Branch& branch, size_t index);
  void DropCheckpointsFrom(Conversation& conversation, Branch& branch, int64_t position);
  bool DropLeastCheckpoint();                  // of all; false: there is none
  std::vector<wire::StateAt> StatesAt(const std::vector<PinnedCheckpoint>& checkpoints) const;
  absl::StatusOr<SessionId> ForkBranch(const Branch& branch, int64_t length);
  int64_t StateBytes() const;                  // of one checkpoint, over all stages

  // --- engine_budget.cc
  static int64_t BytesOfFile(const std::string& path);  // 0: there is none
  int64_t CatalogBytes() const;
  // Which images go so that `bytes` more fit into the budget; nothing if they cannot.
  std::optional<std::vector<ConversationPtr>> ImagesToGiveUp(int64_t bytes, const Conversation* except) const;
  void GiveUpImage(const ConversationPtr& conversation, std::string_view why);
  void GiveUpLoaded(const ConversationPtr& conversation, const std::string& why);
  void ExpireImages();

  // --- engine_save.cc
  void BeginSave(const ConversationPtr& conversation, ProgressCallback progress, Callback<SaveResult> done, bool whole = false);
  void SendSave(const ConversationPtr& conversation, SavePlan plan, ProgressCallback progress, Callback<SaveResult> done, bool whole);
  void ProbeForProof(uint64_t number);
  std::optional<SharedImage> SharedImageFor(const Conversation& conversation, std::vector<const SavedBranch*>* branches) const;
  std::vector<BranchState> StatesOf(const Conversation& conversation) const;
  SavePlan PlanSaveOf(const Conversation& conversation, int64_t generation, bool whole) const;
  absl::Status CheckSpace(const SavePlan& plan) const;
  int64_t SaveBytes(const SavePlan& plan) const;
  SaveResult UnchangedResult(const Conversation& conversation) const;
  void CountKept(const Manifest& manifest, int64_t generation, SaveResult* result) const;
  void OnSaveReceipt(const wire::SaveReceipt& receipt);
  void CommitIfComplete(uint64_t number);
  void CommitSave(uint64_t number);
  Published PublishManifest(const std::string& store, const std::string& folder, Manifest manifest, Journal& journal);
  Manifest MakeManifest(const Transfer& save) const;
  LayerBytes BytesOfLayers() const;
  void TakeCommitted(Transfer& save, std::shared_ptr<const Manifest> manifest);
  void EndSave(uint64_t number, absl::StatusOr<SaveResult> result);
  void AbortSave(Transfer& save, uint64_t number, absl::Status why);

  // --- engine_restore.cc
  void BeginRestore(const RestoreWish& wish, ProgressCallback progress, RestoredCallback done);
  absl::Status RestoreFromImage(const RestoreWish& wish, const std::shared_ptr<ConversationImage>& image,
                                const ProgressCallback& progress, const RestoredCallback& done);
  absl::StatusOr<Pipeline::Shadow> PlaceForRestore(const RestoreWish& wish, const std::vector<int32_t>& tokens);
  void TakeRestored(Conversation& conversation, SessionId session);
  void FailRestore(const RestoreWish& wish, const absl::Status& why, const RestoredCallback& done);
  absl::Status CheckIdentity(const Manifest& manifest, std::vector<std::string>* warnings) const;
  absl::Status BeginUnpark(const ConversationPtr& conversation, Branch& branch, int64_t n, RestoredCallback done);
  void OnRestoreReceipt(const wire::RestoreReceipt& receipt);
  void OnRestored(uint64_t number);            // all receipts are there
  void EndRestore(uint64_t number);
  void FailTransfers(const absl::Status& why); // a stage was lost
  void OnTransferTick(const wire::TransferTick& tick);
  void TellProgress(uint64_t number, Transfer& transfer);

  // --- engine_lines.cc
  // How many of the ids a branch holds the request begins with, or says again in ids of its own.
  int64_t HeldOf(const Branch& branch, const GenerationRequest& request) const;
  void UseHeldIds(Turn& turn) const;           // a rendered prompt keeps the ids of the branch that says most of it
  void NoteDivergence(Turn& turn, const ReusePlan& plan, const std::vector<int32_t>& target);
  void ForkInto(const ConversationPtr& source, const std::string& new_id, Callback<ConversationInfo> done);
  void TakeFork(const ConversationPtr& fork, const ConversationPtr& source, const absl::Status& status,
                const Published& published, const Callback<ConversationInfo>& done);
  void CutOrClose(Conversation& conversation, Branch& branch, int64_t length);
  Manifest ForkManifest(const Conversation& source, const Conversation& target) const;

  // --- engine_slots.cc
  struct Slot {
    SessionId session = 0;
    int64_t task = -1;                         // the turn that runs or ran last in it
  };
  // use(conversation, branch): those with an id first.
  template <typename Use>
  void ForEachBranch(Use use) const {
    const auto each = [&](const ConversationPtr& conversation) {
      for (const auto& branch : conversation->branches) use(conversation, *branch);
    };
    for (const auto& [key, conversation] : conversations_) each(conversation);
    for (const ConversationPtr& conversation : anonymous_) each(conversation);
  }
  // The session's place: the one it has, else `wish` if that is free, else the lowest; null: there is none.
  Slot* HoldSlot(SessionId session, int wish = -1);
  std::vector<SlotInfo> DescribeSlots() const;
  Held InSlot(const std::string& owner, int slot) const;
  void SaveAs(const ConversationPtr& target, SessionId session, bool fresh, const Callback<SaveResult>& done);
  void PutInSlot(const std::string& owner, int slot, SessionId session);

  // --- engine_admin.cc
  ConversationPtr NewConversation(const std::string& owner, const std::string& id) const;
  ConversationPtr Find(const std::string& owner, const std::string& id);
  void Enlist(const ConversationPtr& conversation);  // from here on requests find it
  void ForgetConversation(const ConversationPtr& conversation);
  void WithLoaded(const std::string& owner, const std::string& id, std::function<void(absl::Status)> failed,
                  std::function<void(const ConversationPtr&)> then);
  absl::Status CheckStoreReady() const;
  absl::Status CheckAtRest(const Conversation& conversation) const;
  static absl::Status NoState(const Conversation& conversation, std::string_view what);
  ConversationInfo InfoOf(const Conversation& conversation, bool everything) const;
  BranchInfo InfoOf(const Conversation& conversation, const Branch& branch) const;
  Tally::Entry TallyOf(const Conversation& conversation) const;
  void SaveCatalogRow(const Conversation& conversation);
  void BeginShutdown(std::function<void(absl::Status)> done);
  void ContinueShutdown();
  StoredIdentity OwnIdentity() const;
  LayerRange AllLayers() const { return {0, parts_.shape->n_layers}; }
  int64_t RowBytes(LayerRange layers) const;
  uint64_t TokenBytes(int layer) const;        // of K and V in one layer

  // Constant after Start.
  const EngineParts parts_;
  const StoreSettings* const store_;           // null: no store
  const CutAt cut_;                            // where a session can go back to

  // Any thread.
  Mailbox<Task> inbox_;
  std::atomic<GenerationId> next_generation_id_{1};
  mutable std::mutex health_mutex_;
  HealthReport health_;                        // guarded by health_mutex_
  std::vector<SlotInfo> slots_;                // guarded by health_mutex_
  mutable std::mutex began_mutex_;
  std::map<std::pair<std::string, std::string>, int64_t> began_;  // of conversations_; guarded by began_mutex_
  std::mutex up_mutex_;
  std::condition_variable up_changed_;
  bool up_once_ = false;                       // guarded by up_mutex_
  absl::Status start_failure_;                 // guarded by up_mutex_

  // The engine's thread.
  std::unique_ptr<StoreLock> lock_;
  std::unique_ptr<Catalog> catalog_;           // the store thread's after the start, as the next
  SegmentNames segment_names_;
  std::unique_ptr<StageGroup> stages_;
  std::unique_ptr<RemoteSegments> remote_segments_;
  std::unique_ptr<Pipeline> pipeline_;
  ModelIdentity identity_;
  bool identity_known_ = false;
  std::map<std::pair<std::string, std::string>, ConversationPtr> conversations_;  // (owner, id)
  Tally tally_;                                // of conversations_
  std::list<ConversationPtr> anonymous_;       // live only; most recently used first
  std::map<GenerationId, std::unique_ptr<Turn>> turns_;
  std::list<GenerationId> queue_;
  std::map<SessionId, GenerationId> turn_of_session_;
  std::map<uint64_t, Transfer> transfers_;     // by number
  uint64_t next_transfer_ = 1;
  std::map<std::pair<std::string, std::string>, std::vector<Task>> waiting_for_load_;  // (owner, id)
  std::map<uint64_t, std::function<void(const Digest&)>> probes_;  // what waits for its logits row
  uint64_t next_probe_ = 1;
  std::vector<Task> waiting_for_place_;        // restores
  int64_t parked_bytes_ = 0;
  int evictions_in_flight_ = 0, give_ups_in_flight_ = 0;
  std::vector<std::pair<int, std::string>> stray_paths_;  // stage, segment: of saves that a lost stage ended
  Clock::time_point next_timer_, next_expiry_;
  absl::Status stages_down_;                   // why they will not all be up again
  bool draining_ = false;
  bool stop_ = false;
  std::function<void(absl::Status)> shutdown_done_;
  absl::Status shutdown_status_;
  std::vector<Slot> slots_held_;               // [sessions]
  std::set<std::string> shutdown_saved_;       // folders done
  bool shutdown_saving_ = false;

  std::unique_ptr<StoreThread> store_thread_;  // journals, manifests: short
  std::unique_ptr<StoreThread> reader_thread_; // verification: long
  std::thread thread_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_ENGINE_H_
