// What goes between host memory and emulated cards, for tests that ask in which pieces and through which memory.
#ifndef LAYOVER_KERNELS_EMULATION_HOST_COPIES_H_
#define LAYOVER_KERNELS_EMULATION_HOST_COPIES_H_

#include <cstddef>
#include <vector>

namespace layover::emulation {

struct HostCopy {
  bool to_host = false;
  size_t bytes = 0;
  bool pinned = false;  // all of the host memory is page-locked
};

void WatchHostCopies();
// Those that were put in queues since, in that order; they are no longer watched.
std::vector<HostCopy> TakeHostCopies();

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_HOST_COPIES_H_
