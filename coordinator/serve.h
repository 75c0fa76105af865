// The verbs that run a model in this process and its workers. Each returns a process exit code (0 done, 1 failed, 2 bad
// topology or usage) and prints its own errors on stderr.
#ifndef LAYOVER_COORDINATOR_SERVE_H_
#define LAYOVER_COORDINATOR_SERVE_H_

#include <string>

namespace layover {

struct ServeOptions {
  std::string topology;
};
// Serves until SIGTERM or SIGINT; prints `ready http://HOST:PORT` on stdout when it does.
int RunServe(const ServeOptions& options);

struct LogitsOptions {
  std::string topology;
  std::string input;    // a text file, or IDS.json: an array of token ids
  int top = 20;
  std::string raw_file; // the float32 rows, [positions, n_vocab]; empty: none
};
// One context read afresh; JSON on stdout.
int RunLogits(const LogitsOptions& options);

struct BenchOptions {
  std::string topology;
  int prompt_tokens = 512;
  int output_tokens = 64;
  int state_tokens = 4096;   // of the conversation that is saved and restored
  int repeats = 7;
  std::string peer;          // path of llama.cpp's llama-bench; empty: none
  bool json = false;
};
int RunBench(const BenchOptions& options);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_SERVE_H_
