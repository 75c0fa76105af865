// Are the devices that a topology names there? The stage program is asked, since only it loads drivers and plug-ins: a
// driver that crashes or hangs on to memory does so in a process of its own.
#ifndef LAYOVER_COORDINATOR_DEVICE_PROBE_H_
#define LAYOVER_COORDINATOR_DEVICE_PROBE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/topology.h"

namespace layover {

// Asks once for every device but `cpu` of the stages on this host, and for NCCL where a hop asks for it: bytes of
// memory of each. Unavailable with the topology's line and what is missing (plug-in, driver, device, library).
absl::StatusOr<std::map<std::string, uint64_t>> ProbeDevices(const Topology& topology);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_DEVICE_PROBE_H_
