// The one error policy: an expected failure is an absl::Status, a bug hits LAYOVER_CHECK, nobody throws across a module
// border and nobody calls exit.
//
// What a code means here, and what HTTP makes of it (coordinator/http maps them in one place):
//   InvalidArgument 400 · NotFound 404 · FailedPrecondition 409 (identity) · Aborted 409 (busy) · DataLoss 422 (damage)
//   Internal 500 · Unimplemented 501 · Unavailable 503 · ResourceExhausted 507 · Cancelled (client gone)
#ifndef LAYOVER_COMMON_STATUS_H_
#define LAYOVER_COMMON_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/core.h"

namespace layover {

// Debian's absl::string_view is its own type; these two are the only bridge.
inline absl::string_view ToAbsl(std::string_view s) { return absl::string_view(s.data(), s.size()); }
inline std::string_view ToStd(absl::string_view s) { return std::string_view(s.data(), s.size()); }

template <typename... Args>
absl::Status MakeStatus(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return absl::Status(code, fmt::format(format, std::forward<Args>(args)...));
}

#define LAYOVER_DEFINE_ERROR(Name)                                                            \
  template <typename... Args>                                                                 \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {                     \
    return MakeStatus(absl::StatusCode::k##Name, format, std::forward<Args>(args)...);        \
  }
LAYOVER_DEFINE_ERROR(InvalidArgument)
LAYOVER_DEFINE_ERROR(NotFound)
LAYOVER_DEFINE_ERROR(FailedPrecondition)
LAYOVER_DEFINE_ERROR(Aborted)
LAYOVER_DEFINE_ERROR(DataLoss)
LAYOVER_DEFINE_ERROR(Internal)
LAYOVER_DEFINE_ERROR(Unimplemented)
LAYOVER_DEFINE_ERROR(Unavailable)
LAYOVER_DEFINE_ERROR(ResourceExhausted)
LAYOVER_DEFINE_ERROR(Cancelled)
LAYOVER_DEFINE_ERROR(DeadlineExceeded)
#undef LAYOVER_DEFINE_ERROR

// Which part a refusal is about; travels with the status and ends as fields of the HTTP error object.
struct StatusPart {
  std::string file;   // "s01-g000017.seg", "manifest.json", "journal"
  int stage = -1;     // -1: not a stage's
  std::string field;  // identity: "weights" | "rope" | "tokenizer" | "kv_type" | "arch" | "format"
  std::string param;  // request field, for 400s
  std::string code;   // OpenAI error code, such as "context_length_exceeded"
};
absl::Status WithPart(absl::Status status, const StatusPart& part);
std::optional<StatusPart> PartOf(const absl::Status& status);

// "read /a/b: No such file or directory", with the code that errno deserves (ENOENT NotFound, ENOSPC and EDQUOT
// ResourceExhausted, else Internal).
absl::Status ErrnoStatus(int error_number, std::string_view what);

}  // namespace layover

#define RETURN_IF_ERROR(expr)                              \
  do {                                                     \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define LAYOVER_CONCAT_INNER(a, b) a##b
#define LAYOVER_CONCAT(a, b) LAYOVER_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(LAYOVER_CONCAT(statusor_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(statusor, lhs, expr) \
  auto statusor = (expr);                          \
  if (!statusor.ok()) return statusor.status();    \
  lhs = std::move(statusor).value()

#endif  // LAYOVER_COMMON_STATUS_H_
