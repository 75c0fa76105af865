#include "common/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace layover {

int64_t HostMemoryBytes() {
  const int64_t all = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t bytes = 0;
    if (file >> bytes && bytes > 0) return std::min(bytes, all);
  }
  return all;
}

}  // namespace layover
