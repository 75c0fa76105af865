// How activations travel from a stage to the next: [n_rows, n_embd] float32 with the number of the step they belong to.
// One direction; each end belongs to the worker's main thread. Which link a hop has is common/link_choice.h's.
//
// Rows are device memory on both ends; a link takes them from there and brings them there in its own way. What waits
// for the other end ends with Aborted when the epoch does: then nothing is wrong with this worker, and a Reset is on
// its way.
#ifndef LAYOVER_STAGE_WORKER_LINKS_DATA_LINK_H_
#define LAYOVER_STAGE_WORKER_LINKS_DATA_LINK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "common/wire/socket.h"
#include "kernels/ops.h"

namespace layover {

class DataSender {
 public:
  virtual ~DataSender() = default;
  // A new epoch, and the hop's ring in it if the link has one. What was under way is forgotten. The epoch that it has
  // already changes nothing.
  virtual void Renew(uint32_t epoch, const wire::RingAddress& ring) = 0;
  // Rows [header.n_rows, header.dim], once what the stream has been given has run; the stream is synchronised then.
  virtual absl::Status Send(const wire::FrameHeader& header, const float* rows, Stream& stream) = 0;
};

class DataReceiver {
 public:
  virtual ~DataReceiver() = default;
  virtual void Renew(uint32_t epoch, const wire::RingAddress& ring) = 0;
  // Before a wait: adds what becomes readable when a frame comes. False: do not wait, one is there.
  virtual bool BeginWait(std::vector<wire::PollItem>* items) = 0;
  // After it: takes in what has come.
  virtual absl::Status Drain() = 0;
  // The step's frame is there, or taking it says why it will not come.
  virtual bool Has(uint64_t seq) const = 0;
  // Brings the frame's rows to the device, in order with what follows on the stream. DataLoss if it is another step's
  // or not [n_rows, dim]. The stream is synchronised before the next call of Take, Drain or Renew.
  struct Wanted {
    uint64_t seq = 0;
    int n_rows = 0;
    int dim = 0;
  };
  virtual absl::Status Take(const Wanted& wanted, float* rows, Stream& stream) = 0;
};

// DataLoss, saying what differs.
absl::Status CheckFrame(const wire::FrameHeader& header, const DataReceiver::Wanted& wanted);

// ZeroMQ PUSH/PULL, over ipc:// or tcp://, with CURVE where the end has keys.
absl::StatusOr<std::unique_ptr<DataSender>> OpenZmqSender(wire::SocketContext& context, const wire::DataEnd& end);
absl::StatusOr<std::unique_ptr<DataReceiver>> OpenZmqReceiver(wire::SocketContext& context, const wire::DataEnd& end);

// A ring in shared memory (common/wire/hop_ring.h), pinned for the device where that helps. `hop`: the stage it leads
// to.
std::unique_ptr<DataSender> MakeShmSender(Device& device, uint32_t hop);
std::unique_ptr<DataReceiver> MakeShmReceiver(Device& device, uint32_t hop);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_LINKS_DATA_LINK_H_
