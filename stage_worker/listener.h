// `layover-stage --listen`: a machine that lends its devices to a coordinator on another one. It starts a worker when a
// coordinator attaches, passes messages both ways, and goes back to listening when the coordinator is gone.
//
// What must stay true:
//  - One coordinator at a time. Every Attach gets a fresh worker process, so nothing of a coordinator outlives it.
//  - The worker never outlives the listener, and a coordinator that is silent for limits::kRemoteSilentMs, or that can
//  no
//    longer be reached, loses its worker.
//  - Only whole messages of the protocol are passed on; with keys only the one coordinator that holds its key gets in.
#ifndef LAYOVER_STAGE_WORKER_LISTENER_H_
#define LAYOVER_STAGE_WORKER_LISTENER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/child_process.h"
#include "common/storage/durable_file.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"

namespace layover {

struct ListenOptions {
  std::string endpoint;         // "tcp://0.0.0.0:7001"
  std::string secret_key_file;  // own; both or none
  std::string public_key_file;  // the coordinator's
  std::string model;            // opened instead of the path that the coordinator names; empty: that one
  std::string store;            // where this machine keeps its segments; empty: it keeps none
};

class StageListener {
 public:
  static absl::StatusOr<std::unique_ptr<StageListener>> Open(const ListenOptions& options);
  ~StageListener();

  absl::Status Run();  // until a failure: a signal ends the process

 private:
  using Clock = std::chrono::steady_clock;

  explicit StageListener(const ListenOptions& options) : options_(options) {}
  absl::Status TakeFromCoordinator();
  void TakeMessage(const std::string& peer, std::string_view bytes);
  void TakeAttach(const std::string& peer, uint32_t epoch, const wire::Attach& attach);
  absl::Status TakeFromWorker();
  void LookAtWorker();
  void LookAtOwner();
  void StartWorker(uint32_t epoch);
  void Release(std::string_view why);
  bool Reachable(const std::string& peer);
  absl::Status Tell(const std::string& peer, const wire::FromStage& message);

  const ListenOptions options_;
  std::unique_ptr<StoreLock> lock_;  // of the store
  std::string directory_;            // private, 0700: the worker's control socket
  wire::SocketContext context_;
  std::unique_ptr<wire::Socket> outside_;  // ROUTER, to coordinators
  std::unique_ptr<wire::Socket> inside_;   // ROUTER, to the worker
  ChildProcess worker_;
  std::string owner_;  // routing id of the coordinator that has this machine; empty: nobody
  uint64_t coordinator_ = 0;
  int stage_ = 0;
  Clock::time_point last_heard_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_LISTENER_H_
