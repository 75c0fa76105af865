// Bounds of the way between a device's pages and the host.
#ifndef LAYOVER_COMMON_LIMITS_PAGES_H_
#define LAYOVER_COMMON_LIMITS_PAGES_H_

#include "common/limits.h"

namespace layover::limits {

// Rows that a card gathers before one copy takes them to the host, or that one copy brings. A copy costs some 10 us beside
// its bytes: at 57 GB/s (PCIe 5.0 x16) that is a tenth of 4 MiB, a third of 1 MiB.
inline constexpr size_t kKvLotBytes = 4 * kMiB;

}  // namespace layover::limits

#endif  // LAYOVER_COMMON_LIMITS_PAGES_H_
