// Memory of this machine.
#ifndef LAYOVER_COMMON_HOST_MEMORY_H_
#define LAYOVER_COMMON_HOST_MEMORY_H_

#include <cstdint>

namespace layover {

// All that there is, or what this process's control group may have of it, used or not.
int64_t HostMemoryBytes();

}  // namespace layover

#endif  // LAYOVER_COMMON_HOST_MEMORY_H_
