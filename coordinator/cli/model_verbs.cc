// plan and inspect: from the files' headers, before anything is loaded.
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/plan/report.h"
#include "common/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/verbs.h"
#include "coordinator/setup.h"
#include "fmt/core.h"

namespace layover {

int RunPlan(const std::string& topology, bool json) {
  const auto setup = LoadSetup(topology);
  if (!setup.ok()) {
    ReportError(setup.status(), json);
    return ExitCodeOfSetup(setup.status());
  }
  const Plan& plan = (*setup)->plan;
  const MachineMemory& memory = (*setup)->memory;
  fmt::print("{}\n", json ? PlanJson(plan, memory) : PlanText(plan, memory));
  return kDone;
}

int RunInspect(const std::string& model, bool json) {
  const auto file = GgufFile::Open(model);
  if (!file.ok()) {
    ReportError(file.status(), json);
    return absl::IsNotFound(file.status()) ? kNotFound : kFailed;
  }
  const auto shape = ReadModelShape(**file);
  if (!shape.ok()) {
    ReportError(shape.status(), json);
    return kFailed;
  }
  fmt::print("{}\n", json ? InspectJson(**file, *shape) : InspectText(**file, *shape));
  return kDone;
}

}  // namespace layover
