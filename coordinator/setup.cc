#include "coordinator/setup.h"

#include <utility>

#include "common/host_memory.h"
#include "common/status.h"
#include "coordinator/device_probe.h"

namespace layover {

absl::StatusOr<std::unique_ptr<Setup>> LoadSetup(const std::string& topology_path) {
  auto setup = std::make_unique<Setup>();
  absl::StatusOr<Topology> topology = LoadTopology(topology_path);
  // A path without a file is wrong usage, as a file without sense is.
  if (absl::IsNotFound(topology.status())) return InvalidArgument("{}", ToStd(topology.status().message()));
  ASSIGN_OR_RETURN(setup->topology, std::move(topology));
  ASSIGN_OR_RETURN(setup->file, GgufFile::Open(setup->topology.model));
  ASSIGN_OR_RETURN(setup->shape, ReadModelShape(*setup->file));
  ASSIGN_OR_RETURN(setup->plan, MakePlan(setup->topology, *setup->file, setup->shape));
  ASSIGN_OR_RETURN(setup->memory.devices, ProbeDevices(setup->topology));
  setup->memory.host_bytes = static_cast<uint64_t>(HostMemoryBytes());
  return setup;
}

LedgerConfig LedgerFor(const Plan& plan, const ModelShape& shape) {
  return {.sessions = plan.sessions, .full_pages = plan.n_pages,
          .window_pages = plan.n_window_pages + plan.n_checkpoint_window_pages, .window_tokens = shape.window,
          .state_slots = plan.n_state_slots + plan.n_checkpoint_slots};
}

}  // namespace layover
