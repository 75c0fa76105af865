// How much memory a hop between two stages takes: the ring's shape in memory, which common/wire/hop_ring.h makes and
// `plan` counts before anything is started.
#ifndef LAYOVER_COMMON_HOP_MEMORY_H_
#define LAYOVER_COMMON_HOP_MEMORY_H_

#include <cstdint>

namespace layover {

inline constexpr uint64_t kHopPageBytes = 4096;      // what the ring says of itself takes the first page
inline constexpr uint64_t kHopSlotHeaderBytes = 64;  // the payload begins on a cache line

// One slot more than the scheduler has steps in flight (one a stage): of the step that the receiver is still taking
// out.
constexpr uint32_t HopRingSlots(int n_stages) {
  return static_cast<uint32_t>(n_stages) + 1;
}

// From a slot to the next; `payload_bytes` 0: headers only.
constexpr uint64_t HopSlotStride(uint64_t payload_bytes) {
  return (kHopSlotHeaderBytes + payload_bytes + kHopPageBytes - 1) / kHopPageBytes * kHopPageBytes;
}

constexpr uint64_t HopRingBytes(uint32_t n_slots, uint64_t payload_bytes) {
  return kHopPageBytes + n_slots * HopSlotStride(payload_bytes);
}

}  // namespace layover

#endif  // LAYOVER_COMMON_HOP_MEMORY_H_
