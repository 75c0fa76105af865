// The command line. Exit codes: 0 done, 1 failed, 2 usage or bad topology, 3 not found, 4 refused (identity, damage),
// 5 server not reachable or not ready. With --json, stdout is one JSON value; messages go to stderr.
#ifndef LAYOVER_COORDINATOR_CLI_CLI_H_
#define LAYOVER_COORDINATOR_CLI_CLI_H_

namespace layover {

int RunCli(int argc, char** argv);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_CLI_CLI_H_
