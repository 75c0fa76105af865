// Are the devices that a topology names there? The stage program is asked, since only it loads drivers and plug-ins: a
// driver that crashes or hangs on to memory does so in a process of its own.
#ifndef LAYOVER_COORDINATOR_DEVICE_PROBE_H_
#define LAYOVER_COORDINATOR_DEVICE_PROBE_H_

#include "absl/status/status.h"
#include "common/topology.h"

namespace layover {

// Asks once for every device but `cpu` of the stages on this host, and for NCCL where a hop asks for it. Unavailable with
// the topology's line and what is missing (plug-in, driver, device, library).
absl::Status ProbeDevices(const Topology& topology);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_DEVICE_PROBE_H_
