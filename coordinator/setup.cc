#include "coordinator/setup.h"

#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<Setup>> LoadSetup(const std::string& topology_path) {
  auto setup = std::make_unique<Setup>();
  ASSIGN_OR_RETURN(setup->topology, LoadTopology(topology_path));
  ASSIGN_OR_RETURN(setup->file, GgufFile::Open(setup->topology.model));
  ASSIGN_OR_RETURN(setup->shape, ReadModelShape(*setup->file));
  ASSIGN_OR_RETURN(setup->plan, MakePlan(setup->topology, *setup->file, setup->shape));
  return setup;
}

}  // namespace layover
