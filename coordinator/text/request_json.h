// JSON of requests: order of keys and spelling of numbers kept, depth bounded, errors as Status.
//
// nlohmann turns 123456789012345678901 into a double and overflows the stack on deep input; this reader does neither.
// A number that does not fit int64 or uint64 is held as a `binary` value with its own spelling in it; DumpJson writes
// it back as it was.
#ifndef LAYOVER_COORDINATOR_TEXT_REQUEST_JSON_H_
#define LAYOVER_COORDINATOR_TEXT_REQUEST_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace layover {

// InvalidArgument: not JSON (says where), not UTF-8, nested deeper than limits::kMaxJsonDepth. Of duplicate keys the
// last wins. Fractions stay spelled as they were: 1.0 is 1.0, 1e5 is 1e5; `number_float` values do not occur.
absl::StatusOr<nlohmann::ordered_json> ParseRequestJson(std::string_view text);

// The value of a number held either way; false if `value` is not a number.
bool NumberOf(const nlohmann::ordered_json& value, double* number);

// Compact UTF-8 text, keys in order, spelled-out numbers as they were. Bad UTF-8 in a string becomes U+FFFD.
std::string DumpJson(const nlohmann::ordered_json& value);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_REQUEST_JSON_H_
