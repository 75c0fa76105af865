// What `inspect` and `plan` print: a table for people, one JSON value for machines (the fields are public interface).
#ifndef LAYOVER_COMMON_PLAN_REPORT_H_
#define LAYOVER_COMMON_PLAN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/plan/stage_plan.h"

namespace layover {

std::string InspectText(const GgufFile& file, const ModelShape& shape);
std::string InspectJson(const GgufFile& file, const ModelShape& shape);

// What is wrong with a plan that could be started all the same; empty if nothing is. `host_memory_bytes`: all that the
// coordinator's machine has (common/host_memory.h).
std::vector<std::string> PlanWarnings(const Plan& plan, uint64_t host_memory_bytes);
std::string PlanText(const Plan& plan, uint64_t host_memory_bytes);
std::string PlanJson(const Plan& plan, uint64_t host_memory_bytes);

}  // namespace layover

#endif  // LAYOVER_COMMON_PLAN_REPORT_H_
