// What `inspect` and `plan` print: a table for people, one JSON value for machines (the fields are public interface).
#ifndef LAYOVER_COMMON_PLAN_REPORT_H_
#define LAYOVER_COMMON_PLAN_REPORT_H_

#include <string>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/plan/stage_plan.h"

namespace layover {

std::string InspectText(const GgufFile& file, const ModelShape& shape);
std::string InspectJson(const GgufFile& file, const ModelShape& shape);
std::string PlanText(const Plan& plan);
std::string PlanJson(const Plan& plan);

}  // namespace layover

#endif  // LAYOVER_COMMON_PLAN_REPORT_H_
