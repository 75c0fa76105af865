// The coordinator's end of the stage workers: spawns them, loads them, watches them, restarts the one that dies, and
// numbers what they are told. One thread uses it.
//
// What must stay true:
//  - One sequence of ordered messages goes to all stages; `epoch` rises when any stage is lost, and everything of the
//    old epoch (messages, frames, results) is dropped on both sides; hops get new rings.
//  - A lost stage is restarted alone; the others only forget their sessions (Reset).
//  - A worker is known dead by its pidfd, or on another machine by its connection (RemoteStage); known hung by a progress
//    counter that stands still while work is due, or by heartbeats that do not come any more.
#ifndef LAYOVER_COORDINATOR_STAGE_GROUP_H_
#define LAYOVER_COORDINATOR_STAGE_GROUP_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/child_process.h"
#include "common/plan/stage_plan.h"
#include "common/topology.h"
#include "common/wire/hop_ring.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"
#include "coordinator/model_check.h"
#include "coordinator/remote_stage.h"

namespace layover {

enum class StageState { kLoading, kUp, kRestarting, kDown };

struct StageStatus {
  int stage = 0;
  int pid = 0;
  std::string device;
  LayerRange layers;
  StageState state = StageState::kLoading;
  uint64_t last_seq = 0;   // of the last step it finished
};

class StageGroup {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // Every stage is up in a fresh epoch: no sessions exist.
    virtual void OnStagesUp() = 0;
    // From now until OnStagesUp nothing can be sent; all sessions are gone.
    virtual void OnStageLost(int stage, const absl::Status& why) = 0;
    // A stage cannot be brought up (again).
    virtual void OnStageDown(int stage, const absl::Status& why) = 0;
    virtual void OnStageMessage(int stage, uint64_t seq, const wire::FromStage& message) = 0;
  };

  // `store_id`: under which number remote stages keep segments; empty: nothing is saved.
  static absl::StatusOr<std::unique_ptr<StageGroup>> Create(const Topology& topology, const Plan& plan, Listener* listener,
                                                            const std::string& store_id = "");
  ~StageGroup();  // ends the workers

  absl::Status Start();

  bool up() const;
  // Sends to every stage, numbered; returns the number. Only while up.
  uint64_t SendOrdered(const wire::ToStage& message);
  void SendTo(int stage, const wire::ToStage& message);  // not ordered
  void SendToAll(const wire::ToStage& message);

  // What to wait for, and what to do when some of it is ready or time has passed. `work_due`: steps are in flight.
  std::vector<wire::PollItem> PollItems();
  void HandleEvents(bool work_due);

  // The asking ends of links to what each remote stage keeps, for the coordinator itself.
  std::vector<wire::FileEnd> SegmentEnds() const;

  int n_stages() const { return static_cast<int>(stages_.size()); }
  std::vector<StageStatus> Status() const;
  // From the workers' Ready, complete once all have been up: [n_layers + 2] layers, embedding, head; and the fingerprint.
  const std::vector<Digest>& weight_digests() const { return weight_digests_; }
  const std::string& numerics() const { return numerics_; }

  // Tells the workers to end and waits for them.
  void Shutdown();

 private:
  using Clock = std::chrono::steady_clock;
  struct Stage {
    StageStatus status;
    ChildProcess process;
    std::unique_ptr<RemoteStage> remote;    // instead of a process: on another machine
    bool configured = false;
    uint64_t progress = 0;
    Clock::time_point last_sign;            // of progress, or of anything while no work is due
    Clock::time_point last_heard;           // of any message
    std::deque<Clock::time_point> restarts; // within the last hour
    std::string fault;                      // what it said before it died
    std::optional<wire::Ready> ready;       // of a remote stage: not compared with this machine's model yet
    bool there() const { return remote != nullptr ? remote->attached() : process.running(); }
  };
  // The keys of a link's two ends; empty where the network is trusted.
  struct LinkKeys {
    wire::CurvePair bound, connecting;
  };

  StageGroup(const Topology& topology, const Plan& plan, Listener* listener);
  absl::Status Spawn(Stage& stage);
  wire::Configure ConfigureFor(const Stage& stage) const;
  absl::Status MakeLinkKeys();
  static wire::DataEnd EndOf(const LinkKeys& keys, const std::string& endpoint, bool binds);
  wire::FileEnd SegmentEnd(const Stage& remote, bool of_coordinator, bool binds) const;
  std::vector<wire::FileEnd> SegmentEndsFor(const Stage& stage) const;
  wire::DataEnd EndOfHop(int hop, int stage) const;
  LinkKind LinkOf(int hop) const;  // kAuto: there is no such hop
  absl::Status RenewHops();
  void CloseRings();
  wire::Reset ResetFor(int stage) const;
  void TakeOffer(int stage, const wire::HopOffered& offer);
  void TakeJoined(int stage, const wire::HopJoined& joined);
  void HandOver(int hop);
  absl::Status SendRaw(const Stage& stage, std::string_view bytes);
  void ReceiveMessages();
  void ReceiveRemote(Stage& stage);
  void TakeBytes(std::string_view bytes);
  void TakeMessage(const wire::Envelope& envelope, const wire::FromStage& message);
  void TakeHello(Stage& stage, const wire::Hello& hello);
  void TakeRemoteEnd(Stage& stage, const wire::FromStage& message);
  void JudgeRemote(Stage& stage);
  void TakeReady(const wire::Ready& ready);
  void ReapDead();
  void KillHung(bool work_due);
  void Lose(Stage& stage, const absl::Status& why, bool permanent = false);

  const Topology& topology_;
  const Plan& plan_;
  Listener* const listener_;
  std::string directory_;                   // private, 0700: the sockets
  wire::SocketContext context_;
  std::unique_ptr<wire::Socket> control_;
  uint32_t epoch_ = 1;
  uint64_t next_seq_ = 1;
  std::vector<Stage> stages_;
  std::string store_id_;
  std::unique_ptr<ModelCheck> model_check_; // where there are remote stages
  std::vector<LinkKeys> hop_keys_;          // [stage that the hop leads to]
  std::vector<LinkKeys> segment_keys_;      // [remote stage]
  // What a hop has of its own in this epoch.
  struct Hop {
    std::unique_ptr<wire::HopRing> ring;    // null: zmq
    std::string peer_id;                    // nccl: offered by its sender
    bool sender_joined = false, receiver_joined = false;
  };
  std::vector<Hop> hops_;                   // [stage that the hop leads to]
  std::vector<Digest> weight_digests_;
  std::string numerics_;
  Clock::time_point last_look_ = Clock::now();  // of KillHung
  bool shutting_down_ = false;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_STAGE_GROUP_H_
