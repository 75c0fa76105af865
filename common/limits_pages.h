// Bounds of the way between a device's pages and the host.
#ifndef LAYOVER_COMMON_LIMITS_PAGES_H_
#define LAYOVER_COMMON_LIMITS_PAGES_H_

#include "common/limits.h"

namespace layover::limits {

// Rows that a card gathers before one copy takes them to the host, or that one copy brings. A copy costs some 10 us beside
// its bytes: at 57 GB/s (PCIe 5.0 x16) that is a tenth of 4 MiB, a third of 1 MiB.
inline constexpr size_t kKvLotBytes = 4 * kMiB;

// Buffers through which a stage's copies go: of as many requests as a save and a restore have between the disk and the
// device, so long that what is copied in one piece is seldom shorter than half of one.
inline constexpr size_t kCopyBufferBytes = kKvLotBytes;
inline constexpr size_t kCopyBuffers = 2 * kIoBuffers;
static_assert(kCopyBufferBytes >= 2 * kIoBufferBytes && kCopyBufferBytes % kIoBufferBytes == 0);

}  // namespace layover::limits

#endif  // LAYOVER_COMMON_LIMITS_PAGES_H_
