// Activations through a ring in shared memory: one copy from the sender's device into a slot, one from there to the
// receiver's device. Between two CPU stages those are two memcpys; for a GPU the ring is page-locked.
#include <chrono>
#include <thread>

#include "common/limits.h"
#include "common/status.h"
#include "stage_worker/links/data_link.h"
#include "stage_worker/links/ring_end.h"

namespace layover {
namespace {

class ShmSender : public DataSender {
 public:
  ShmSender(Device& device, uint32_t hop) : ring_(device, hop) {}

  void Renew(uint32_t epoch, const wire::RingAddress& ring) override { ring_.Renew(epoch, ring); }

  absl::Status Send(const wire::FrameHeader& header, const float* rows, Stream& stream) override {
    wire::RingWriter* const writer = ring_.get();
    if (writer == nullptr) return ring_.status();
    const size_t bytes = sizeof(float) * size_t{header.n_rows} * size_t{header.dim};
    if (bytes > writer->slot_bytes())
      return Internal("a hop of {} bytes, {} were planned for", bytes, writer->slot_bytes());
    ASSIGN_OR_RETURN(std::byte* const payload, WaitForRoom(*writer));
    stream.CopyToHost(payload, rows, bytes);
    RETURN_IF_ERROR(stream.Synchronize());
    writer->Publish(header);
    return absl::OkStatus();
  }

 private:
  RingEnd<wire::RingWriter> ring_;
};

class ShmReceiver : public DataReceiver {
 public:
  ShmReceiver(Device& device, uint32_t hop) : ring_(device, hop) {}

  void Renew(uint32_t epoch, const wire::RingAddress& ring) override { ring_.Renew(epoch, ring); }

  bool BeginWait(std::vector<wire::PollItem>* items) override {
    if (ring_.get() == nullptr) return true;
    ring_.get()->FreePassed();
    return BeginRingWait(*ring_.get(), items);
  }

  absl::Status Drain() override {
    if (ring_.get() != nullptr) ring_.get()->EndWait();
    return absl::OkStatus();
  }

  bool Has(uint64_t) const override { return ring_.get() == nullptr || ring_.get()->HasFront(); }

  absl::Status Take(const Wanted& wanted, float* rows, Stream& stream) override {
    wire::RingReader* const reader = ring_.get();
    if (reader == nullptr) return ring_.status();
    reader->FreePassed();
    if (!reader->HasFront()) return Internal("the hop of step {} has not come", wanted.seq);
    ASSIGN_OR_RETURN(const wire::FrameHeader header, reader->Front());
    RETURN_IF_ERROR(CheckFrame(header, wanted));
    // The slot is freed by the next call: the stream has been synchronised by then.
    stream.CopyToDevice(rows, reader->FrontPayload(), sizeof(float) * size_t{header.n_rows} * size_t{header.dim});
    reader->Pass();
    return absl::OkStatus();
  }

 private:
  RingEnd<wire::RingReader> ring_;
};

}  // namespace

bool BeginRingWait(wire::RingReader& reader, std::vector<wire::PollItem>* items) {
  for (int i = 0; i < limits::kRingSpins; ++i) {
    if (reader.HasFront()) return false;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  if (!reader.BeginWait()) return false;
  items->push_back({.fd = reader.fd()});
  return true;
}

absl::StatusOr<std::byte*> WaitForRoom(wire::RingWriter& writer) {
  constexpr auto kPause = std::chrono::microseconds(100);  // a small part of the step that is waited for
  while (true) {
    if (std::byte* const payload = writer.NextPayload()) return payload;
    if (writer.closed()) return Aborted("the hop's ring is full and closed: its epoch is over");
    std::this_thread::sleep_for(kPause);
  }
}

std::unique_ptr<DataSender> MakeShmSender(Device& device, uint32_t hop) {
  return std::make_unique<ShmSender>(device, hop);
}
std::unique_ptr<DataReceiver> MakeShmReceiver(Device& device, uint32_t hop) {
  return std::make_unique<ShmReceiver>(device, hop);
}

}  // namespace layover
