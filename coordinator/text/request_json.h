// JSON of requests: order of keys and size of integers kept, depth bounded, errors as Status, linear cost.
//
// nlohmann turns 123456789012345678901 into a double and overflows the stack on deep input; this reader does neither.
// An integer that fits neither int64 nor uint64 is held as a `binary` value with its digits in it; DumpJson writes it
// back as it was. Everything else is as nlohmann has it.
#ifndef LAYOVER_COORDINATOR_TEXT_REQUEST_JSON_H_
#define LAYOVER_COORDINATOR_TEXT_REQUEST_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

// InvalidArgument: not JSON (says where), not UTF-8, nested deeper than limits::kMaxJsonDepth. Of duplicate keys the
// last wins.
absl::StatusOr<nlohmann::ordered_json> ParseRequestJson(std::string_view text);

// One line of UTF-8, keys in order. Bad UTF-8 in a string becomes U+FFFD. `value` is nested no deeper than
// 2 * limits::kMaxJsonDepth.
std::string DumpJson(const nlohmann::ordered_json& value);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_REQUEST_JSON_H_
