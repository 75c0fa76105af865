// Outcomes as exit codes, and errors as text: in one place, for every verb.
#ifndef LAYOVER_COORDINATOR_CLI_EXIT_CODE_H_
#define LAYOVER_COORDINATOR_CLI_EXIT_CODE_H_

#include "absl/status/status.h"
#include "coordinator/http/http_message.h"

namespace layover {

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kNotFound = 3, kRefused = 4, kNotReady = 5 };

// Of an engine's or a client's status: as HTTP would answer it.
ExitCode ExitCodeOf(const absl::Status& status);
// Of LoadSetup: a bad topology is wrong usage, all else (the model's file, a device that is not there) a failure.
ExitCode ExitCodeOfSetup(const absl::Status& status);
// Of a server's reply. A 409 is a refusal (4) where the identity differs; that something is busy or there already is 1.
ExitCode ExitCodeOf(const HttpReply& reply);

// Prints the error, on stderr and with `json` as {"error": {...}} on stdout too; returns its exit code.
ExitCode ReportError(const absl::Status& status, bool json);
ExitCode ReportError(const HttpReply& reply, bool json);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CLI_EXIT_CODE_H_
