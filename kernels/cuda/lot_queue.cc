#include "kernels/cuda/lot_queue.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace layover::gpu {

LotQueue::LotQueue(int card, QueueRank rank, size_t most_bytes)
    : card_(card), rank_(rank), most_bytes_(most_bytes), queue_(NewQueue(card, rank)) {
  LAYOVER_CHECK(most_bytes <= UINT32_MAX);
}

LotQueue::~LotQueue() {
  // What it was given is done, good or bad; nobody is left to be told.
  (void)Synchronize();
}

Queue* LotQueue::get() {
  SendOff();
  last_ = Way::kNone;
  return queue_.get();
}

absl::Status LotQueue::Synchronize() {
  SendOff();
  // The other queue's work is waited for by this one's; only an error may be left there.
  const absl::Status status = queue_->Synchronize();
  if (!error_.ok()) return error_;
  const absl::Status ahead = ahead_ != nullptr ? ahead_->Synchronize() : absl::OkStatus();
  return ahead.ok() ? status : ahead;
}

void LotQueue::Add(Way way, const KvRows& rows, uint8_t* host) {
  if (way != way_) SendOff();
  way_ = way;
  const size_t row_bytes = KvRowBytes(rows.cache.type, rows.cache.kv_heads, rows.cache.head_dim);
  LAYOVER_CHECK(row_bytes <= most_bytes_);
  KvRows left = rows;
  while (left.row_begin < left.row_end) {
    const int added = AddSome(left, host);
    if (added == 0) {
      SendOff();
      way_ = way;
    }
    left.row_begin += added;
    host += static_cast<size_t>(added) * row_bytes;
  }
}

int LotQueue::AddSome(const KvRows& rows, uint8_t* host) {
  const KvLayer& cache = rows.cache;
  const size_t row_bytes = KvRowBytes(cache.type, cache.kv_heads, cache.head_dim);
  const size_t alignment = KvLotAlignment(cache.type);
  const bool goes_on =
      !stretches_.empty() && stretches_.back().host + stretches_.back().bytes == host && bytes_ % alignment == 0;
  const size_t at = (bytes_ + alignment - 1) / alignment * alignment;
  const size_t room = at < most_bytes_ ? (most_bytes_ - at) / row_bytes : 0;
  const int count = static_cast<int>(std::min(room, static_cast<size_t>(rows.row_end - rows.row_begin)));
  if (count == 0) return 0;
  const size_t bytes = static_cast<size_t>(count) * row_bytes;

  uint8_t* const pool = static_cast<uint8_t*>(rows.is_k ? cache.k_pool : cache.v_pool);
  Place begin = {nullptr, reinterpret_cast<uintptr_t>(host)};
  uintptr_t end = begin.second + bytes;
  if (way_ == Way::kToCard) {
    begin = {pool, static_cast<uintptr_t>(rows.page) * kPageTokens + static_cast<uintptr_t>(rows.row_begin)};
    end = begin.second + static_cast<uintptr_t>(count);
  }
  if (Overlaps(begin, end)) return 0;
  taken_[begin] = end;
  parts_.push_back({pool, static_cast<uint32_t>(at), rows.page, cache.kv_heads, static_cast<int16_t>(cache.head_dim),
                    static_cast<uint8_t>(rows.row_begin), static_cast<uint8_t>(count), static_cast<uint8_t>(cache.type),
                    rows.is_k});
  if (goes_on) {
    stretches_.back().bytes += bytes;
  } else {
    stretches_.push_back({host, at, bytes});
  }
  bytes_ = at + bytes;
  return count;
}

bool LotQueue::Overlaps(Place begin, uintptr_t end) const {
  const auto after = taken_.upper_bound(begin);
  if (after != taken_.end() && after->first.first == begin.first && after->first.second < end) return true;
  if (after == taken_.begin()) return false;
  const auto before = std::prev(after);
  return before->first.first == begin.first && before->second > begin.second;
}

void LotQueue::SendOff() {
  if (parts_.empty()) return;
  Half& half = halves_[turn_];
  turn_ = 1 - turn_;
  if (half.memory == nullptr) {
    auto memory = GpuBuffer::Allocate(card_, most_bytes_);
    if (memory.ok()) half.memory = std::move(memory).value();
    if (!memory.ok() && error_.ok()) error_ = memory.status();
  }
  if (half.memory != nullptr) {
    if (ahead_ == nullptr) ahead_ = NewQueue(card_, rank_);
    // Lots of one kind may run into each other; what came before of any other kind is waited for.
    if (last_ != way_) ahead_->WaitFor(*queue_->Record());
    if (half.free != nullptr) ahead_->WaitFor(*half.free);
    uint8_t* const lot = half.memory->As<uint8_t>();
    way_ == Way::kToHost ? SendToHost(lot) : SendToCard(lot);
    half.free = queue_->Record();
  }
  last_ = way_;
  way_ = Way::kNone;
  bytes_ = 0;
  parts_.clear();
  stretches_.clear();
  taken_.clear();
}

void LotQueue::SendToHost(uint8_t* lot) {
  Launch(lot, LaunchGatherKv, ahead_.get());
  queue_->WaitFor(*ahead_->Record());
  for (const Stretch& stretch : stretches_) queue_->CopyToHost(stretch.host, lot + stretch.at, stretch.bytes);
}

void LotQueue::SendToCard(uint8_t* lot) {
  for (const Stretch& stretch : stretches_) ahead_->CopyToDevice(lot + stretch.at, stretch.host, stretch.bytes);
  queue_->WaitFor(*ahead_->Record());
  Launch(lot, LaunchScatterKv, queue_.get());
}

void LotQueue::Launch(uint8_t* lot, void (*launch)(const KvLotRows&, Queue*), Queue* queue) const {
  for (size_t begin = 0; begin < parts_.size(); begin += kKvLotParts) {
    KvLotRows rows{.rows = lot};
    rows.n_parts = static_cast<int32_t>(std::min(parts_.size() - begin, size_t{kKvLotParts}));
    std::copy_n(parts_.begin() + static_cast<ptrdiff_t>(begin), rows.n_parts, rows.parts);
    launch(rows, queue);
  }
}

}  // namespace layover::gpu
