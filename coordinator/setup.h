// From a topology file to everything that is known before a stage is started: `plan`, `serve`, `logits` and `bench`
// begin with it.
#ifndef LAYOVER_COORDINATOR_SETUP_H_
#define LAYOVER_COORDINATOR_SETUP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/plan/report.h"
#include "common/plan/stage_plan.h"
#include "common/topology.h"
#include "coordinator/page_ledger.h"

namespace layover {

struct Setup {
  Topology topology;
  std::unique_ptr<GgufFile> file;
  ModelShape shape;
  Plan plan;
  MachineMemory memory;
};

// InvalidArgument: the topology is wrong (FILE:LINE: what). Any other error is not the topology's: a model file that is
// missing, damaged or not supported; Unavailable: a device that is not there.
absl::StatusOr<std::unique_ptr<Setup>> LoadSetup(const std::string& topology_path);

// All that the stages have room for, checkpoints included.
LedgerConfig LedgerFor(const Plan& plan, const ModelShape& shape);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_SETUP_H_
