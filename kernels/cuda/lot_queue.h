// A stream's queue, and beside it the way between pages and the host in lots: rows that are asked for one after another
// are gathered on the card by one kernel and leave it in one copy for each stretch of host memory that they fill; on
// the way back one copy brings them and one kernel spreads them over their pages.
//
// Whoever asks for the queue (get, ->) sends the open lot off first, so everything stays in the order in which it was
// put in. Within a run of lots of one kind the next one is gathered (or copied) on a queue of its own while the one
// before is still copied (or spread): there are two lots' worth of memory on the card, used in turn. A gather takes
// about 10 us, launch included, its copy 75 to 350 us at 57 to 12 GB/s; but beside decode, whose kernels go first, a
// gather waits for room on the card for as long as a copy takes, and that is what the second queue hides.
#ifndef LAYOVER_KERNELS_CUDA_LOT_QUEUE_H_
#define LAYOVER_KERNELS_CUDA_LOT_QUEUE_H_

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/runtime.h"

namespace layover::gpu {

// Rows [row_begin, row_end) of a page's K or V.
struct KvRows {
  const KvLayer& cache;
  bool is_k = false;
  int page = 0;
  int row_begin = 0;
  int row_end = 0;
};

class LotQueue {
 public:
  // `most_bytes`: of a lot, at least one row.
  LotQueue(int card, QueueRank rank, size_t most_bytes);
  ~LotQueue();  // waits for all that was put in
  LotQueue(const LotQueue&) = delete;
  LotQueue& operator=(const LotQueue&) = delete;

  Queue* get();
  Queue* operator->() { return get(); }

  // Canonical rows to and from host memory, which stays valid until the queue is synchronised.
  void Read(const KvRows& rows, uint8_t* host) { Add(Way::kToHost, rows, host); }
  void Write(const KvRows& rows, const uint8_t* host) { Add(Way::kToCard, rows, const_cast<uint8_t*>(host)); }

  // Of all that was put in; the first error, for good.
  absl::Status Synchronize();

 private:
  enum class Way : uint8_t { kNone, kToHost, kToCard };
  // Host memory that is copied in one piece.
  struct Stretch {
    uint8_t* host = nullptr;
    size_t at = 0;  // in the lot
    size_t bytes = 0;
  };
  // Where rows go: host memory by address, or a pool's rows counted through its pages.
  using Place = std::pair<const void*, uintptr_t>;

  void Add(Way way, const KvRows& rows, uint8_t* host);
  // Adds rows [row_begin, row_begin + as many as there is room for] and gives back how many; 0: the lot has to go
  // first.
  int AddSome(const KvRows& rows, uint8_t* host);
  bool Overlaps(Place begin, uintptr_t end) const;
  void SendOff();
  void SendToHost(uint8_t* lot);
  void SendToCard(uint8_t* lot);
  void Launch(uint8_t* lot, void (*launch)(const KvLotRows&, Queue*), Queue* queue) const;

  const int card_;
  const QueueRank rank_;
  const size_t most_bytes_;
  absl::Status error_;

  Way way_ = Way::kNone;  // of the open lot
  size_t bytes_ = 0;
  std::vector<KvLotPart> parts_;
  std::vector<Stretch> stretches_;
  std::map<Place, uintptr_t> taken_;  // what the open lot writes to, begin and end; it may do so only once

  Way last_ = Way::kNone;  // of the lot before, unless something else came after it
  size_t turn_ = 0;
  struct Half {
    std::unique_ptr<GpuBuffer> memory;
    std::unique_ptr<QueueEvent> free;  // once its last lot has gone
  };
  std::array<Half, 2> halves_;
  std::unique_ptr<Queue> ahead_;  // gathers, and copies to the card; null before the first lot
  std::unique_ptr<Queue> queue_;  // first to go
};

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_LOT_QUEUE_H_
