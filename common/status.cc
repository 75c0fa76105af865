#include "common/status.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace layover {
namespace {

constexpr absl::string_view kPartUrl = "layover/part";
constexpr char kSeparator = '\x1f';

}  // namespace

absl::Status WithPart(absl::Status status, const StatusPart& part) {
  const std::string fields[] = {part.file, std::to_string(part.stage), part.field, part.param, part.code};
  status.SetPayload(kPartUrl, absl::Cord(absl::StrJoin(fields, std::string(1, kSeparator))));
  return status;
}

std::optional<StatusPart> PartOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPartUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(std::string(*payload), kSeparator);
  if (fields.size() != 5) return std::nullopt;
  return StatusPart{fields[0], std::stoi(fields[1]), fields[2], fields[3], fields[4]};
}

absl::Status ErrnoStatus(int error_number, std::string_view what) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  if (error_number == ENOENT) code = absl::StatusCode::kNotFound;
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) code = absl::StatusCode::kResourceExhausted;
  return MakeStatus(code, "{}: {}", what, std::strerror(error_number));
}

}  // namespace layover
