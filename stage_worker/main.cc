// layover-stage: started by the coordinator, one process a stage; it is told everything over the control link. Or
// started by a person with --listen on another machine, where it waits for a coordinator.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "common/log.h"
#include "common/storage/fault_point.h"
#include "kernels/ops.h"
#include "stage_worker/listener.h"
#include "stage_worker/worker.h"

namespace {

int ProbeDevice(const std::string& name, bool nccl) {
  const auto device = layover::OpenDevice(name, {});
  absl::Status status = device.status();
  if (status.ok() && nccl) status = (*device)->NewPeerId().status();
  if (status.ok()) {
    std::printf("memory %lld\n", static_cast<long long>((*device)->MemoryBytes()));
    return 0;
  }
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

int MakeKeys(const std::string& stem) {
  const absl::Status made = layover::wire::WriteCurvePair(stem + ".public", stem + ".secret");
  if (made.ok()) return 0;
  std::fprintf(stderr, "layover-stage: %s\n", std::string(made.message()).c_str());
  return 1;
}

int Listen(const layover::ListenOptions& options) {
  layover::InitLog("stage");
  const auto listener = layover::StageListener::Open(options);
  const absl::Status status = listener.ok() ? (*listener)->Run() : listener.status();
  std::fprintf(stderr, "layover-stage: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  layover::WorkerOptions options;
  CLI::App app(
      "A stage worker of Layover. The coordinator starts it (see `layover serve --help`), or --listen makes it "
      "wait on this machine for a coordinator whose topology names it as `host`.");
  app.add_option("--stage", options.stage, "which stage this is, from 0");
  CLI::Option* control = app.add_option("--control", options.control, "the coordinator's control endpoint");
  app.add_option("--epoch", options.epoch, "the pipeline's epoch");
  int parent = 0;
  app.add_option("--parent", parent, "process id of the coordinator: the worker dies with it");
  std::string probed;
  app.add_option("--probe-device", probed, "only say whether this device can be opened: exit 0 and its memory, or 1 and why not")
      ->excludes(control);
  bool probes_nccl = false;
  app.add_flag("--probe-nccl", probes_nccl, "with --probe-device: also whether NCCL is there for it");
  layover::ListenOptions listening;
  CLI::Option* listen =
      app.add_option("--listen", listening.endpoint, "tcp://ADDRESS:PORT; the four ports after it are used too");
  listen->excludes(control);
  CLI::Option* secret =
      app.add_option("--secret-key-file", listening.secret_key_file, "this machine's own CURVE secret key");
  CLI::Option* known =
      app.add_option("--public-key-file", listening.public_key_file, "the coordinator's CURVE public key");
  secret->needs(known)->needs(listen);
  known->needs(secret);
  app.add_option("--model", options.model, "the model's file on this machine, where it is not the coordinator's path");
  app.add_option("--bind-host", options.bind_host, "where activations are received; --listen sets it");
  app.add_option("--store", options.store,
                 "where this machine keeps its part of saved conversations; needed if the coordinator has a store");
  std::string made_keys;
  app.add_option("--make-keys", made_keys, "only write a new CURVE pair: FILE.public and FILE.secret")
      ->excludes(control)
      ->excludes(listen);
  CLI11_PARSE(app, argc, argv);
  if (!made_keys.empty()) return MakeKeys(made_keys);
  if (!probed.empty()) return ProbeDevice(probed, probes_nccl);
  if (!listening.endpoint.empty()) {
    listening.model = options.model;
    listening.store = options.store;
    return Listen(listening);
  }
  if (options.control.empty()) {
    std::fprintf(stderr, "layover-stage: --listen is missing (or --control: `layover serve` starts this program)\n");
    return 2;
  }

  // A worker without its coordinator is of no use and holds memory: die with it, also if it died before this line.
  if (parent != 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;
  }
  // Ctrl-C in a terminal reaches the whole process group; the coordinator decides when workers end.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);

  const std::string name = "stage-" + std::to_string(options.stage);
  layover::InitLog(name);
  layover::SetFaultProgram(name);
  layover::Worker worker(options);
  return worker.Run().ok() ? 0 : 1;
}
