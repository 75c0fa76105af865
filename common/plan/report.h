// What `inspect` and `plan` print: a table for people, one JSON value for machines (the fields are public interface).
#ifndef LAYOVER_COMMON_PLAN_REPORT_H_
#define LAYOVER_COMMON_PLAN_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/plan/stage_plan.h"

namespace layover {

std::string InspectText(const GgufFile& file, const ModelShape& shape);
std::string InspectJson(const GgufFile& file, const ModelShape& shape);

// All that the coordinator's machine has.
struct MachineMemory {
  uint64_t host_bytes = 0;                  // common/host_memory.h
  std::map<std::string, uint64_t> devices;  // of each that a stage there is on, but the CPU: "cuda:0"
};
// What is wrong with a plan that could be started all the same; empty if nothing is.
std::vector<std::string> PlanWarnings(const Plan& plan, const MachineMemory& memory);
std::string PlanText(const Plan& plan, const MachineMemory& memory);
std::string PlanJson(const Plan& plan, const MachineMemory& memory);

}  // namespace layover

#endif  // LAYOVER_COMMON_PLAN_REPORT_H_
