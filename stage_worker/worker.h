// A stage worker: one message in, one handler, one answer out.
//
// The main thread owns the control socket, the data links, the sessions and the compute stream. Ordered messages wait in
// a queue and are handled strictly one after the other; the head of the queue waits only for its activations. Transfers
// run on their own threads and come back through a mailbox; a third thread says "alive" with the progress counter.
#ifndef LAYOVER_STAGE_WORKER_WORKER_H_
#define LAYOVER_STAGE_WORKER_WORKER_H_

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/mailbox.h"
#include "common/segment_link/segment_server.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"
#include "stage_worker/links/data_link.h"
#include "stage_worker/links/nccl_link.h"
#include "stage_worker/step_runner.h"
#include "stage_worker/transfers.h"

namespace layover {

struct WorkerOptions {
  int stage = 0;
  std::string control;  // the coordinator's endpoint
  uint32_t epoch = 0;
  std::string model;      // on this machine; empty: the path that Configure names
  std::string bind_host;  // of data ends that are bound over TCP
  std::string store;      // this machine's own folder of segments; empty: it keeps none
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options);
  ~Worker();

  // Until Shutdown (Ok) or a failure, which has been reported as a Fault.
  absl::Status Run();

 private:
  struct Ordered {
    uint64_t seq;
    wire::ToStage message;
  };

  absl::Status Connect();
  absl::Status Load(const wire::Configure& configure);
  absl::StatusOr<SegmentHome> OpenHome(const wire::Configure& configure);
  wire::DataEnd HereEnd(wire::DataEnd end) const;
  absl::Status Loop();
  absl::Status ReceiveControl();
  absl::Status TakeMessage(const wire::Envelope& envelope, wire::ToStage message);
  absl::Status TakeTransferResults();
  absl::Status HandleReady();            // as many ordered messages as can be handled now
  bool CanHandle(const Ordered& ordered) const;
  absl::Status Handle(const Ordered& ordered);
  absl::Status HandleStep(uint64_t seq, const wire::Step& step);
  absl::Status HandleSave(const wire::SaveSession& save);
  absl::StatusOr<BranchSource> SourceOf(const wire::BranchCut& cut) const;
  absl::Status HandlePark(const wire::ParkSession& park);
  absl::Status Reset(uint32_t epoch, const wire::Reset& reset);
  absl::Status OpenHops();
  absl::Status RenewHops();
  absl::Status MeetPeers();              // of nccl hops, while they are not connected
  bool meeting() const;
  absl::Status GiveUp(const absl::Status& why);
  absl::Status Say(const wire::FromStage& message, uint64_t seq = 0);
  void BeatLoop();

  const WorkerOptions options_;
  wire::SocketContext context_;
  std::unique_ptr<wire::Socket> control_;
  uint32_t epoch_;
  bool shutdown_ = false;
  std::deque<Ordered> queue_;
  wire::Reset reset_;     // of this epoch
  bool given_up_ = false; // the epoch ended in the middle of a step: nothing more is done in it

  // Made by Load, in this order.
  wire::Configure configure_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvPages> pages_;
  std::unique_ptr<RecurrentState> states_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<DataReceiver> receiver_;  // null on the first stage
  std::unique_ptr<DataSender> sender_;      // null on the last
  NcclReceiver* nccl_in_ = nullptr;         // those two, where the hop is one of nccl
  NcclSender* nccl_out_ = nullptr;
  std::unique_ptr<SegmentServer> segment_server_;  // where other machines read this one's segments
  int n_embd_ = 0;
  Mailbox<TransferResult> results_;
  std::unique_ptr<Transfers> transfers_;    // after what it uses: destroyed first

  std::atomic<uint64_t> progress_{0};
  std::atomic<uint64_t> last_seq_{0};
  std::atomic<uint32_t> beat_epoch_{0};
  std::atomic<bool> stop_beat_{false};
  std::thread beat_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_WORKER_H_
