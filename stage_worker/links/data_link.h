// How activations travel from a stage to the next: [n_rows, n_embd] float32 with the number of the step they belong to.
// One direction; each end belongs to the worker's main thread.
#ifndef LAYOVER_STAGE_WORKER_LINKS_DATA_LINK_H_
#define LAYOVER_STAGE_WORKER_LINKS_DATA_LINK_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"

namespace layover {

class DataSender {
 public:
  virtual ~DataSender() = default;
  virtual absl::Status Send(const wire::FrameHeader& header, const float* rows) = 0;  // [header.n_rows, header.dim]
};

class DataReceiver {
 public:
  virtual ~DataReceiver() = default;
  virtual wire::Socket* socket() = 0;  // readable when a frame may have come
  // Takes in what has come; frames of another epoch than `epoch` are dropped.
  virtual absl::Status Drain(uint32_t epoch) = 0;
  virtual bool Has(uint64_t seq) const = 0;
  // Removes the frame and copies its rows to the host buffer. DataLoss if it is not [n_rows, dim].
  virtual absl::Status Take(uint64_t seq, int n_rows, int dim, float* rows) = 0;
  virtual void Clear() = 0;
};

// ZeroMQ PUSH/PULL, over ipc:// or tcp://, with CURVE where the end has keys.
absl::StatusOr<std::unique_ptr<DataSender>> OpenZmqSender(wire::SocketContext& context, const wire::DataEnd& end);
absl::StatusOr<std::unique_ptr<DataReceiver>> OpenZmqReceiver(wire::SocketContext& context, const wire::DataEnd& end);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_LINKS_DATA_LINK_H_
