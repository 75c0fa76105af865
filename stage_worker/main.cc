// layover-stage: started by the coordinator, one process a stage. It is told everything over the control link.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "common/log.h"
#include "common/storage/fault_point.h"
#include "kernels/ops.h"
#include "stage_worker/worker.h"

namespace {

int ProbeDevice(const std::string& name) {
  const auto device = layover::OpenDevice(name, {});
  if (device.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  layover::WorkerOptions options;
  CLI::App app("A stage worker of Layover. The coordinator starts it; see `layover serve --help`.");
  app.add_option("--stage", options.stage, "which stage this is, from 0");
  CLI::Option* control = app.add_option("--control", options.control, "the coordinator's control endpoint");
  app.add_option("--epoch", options.epoch, "the pipeline's epoch");
  int parent = 0;
  app.add_option("--parent", parent, "process id of the coordinator: the worker dies with it");
  std::string probed;
  app.add_option("--probe-device", probed, "only say whether this device can be opened: exit 0, or 1 and why not")
      ->excludes(control);
  CLI11_PARSE(app, argc, argv);
  if (!probed.empty()) return ProbeDevice(probed);
  if (options.control.empty()) {
    std::fprintf(stderr, "layover-stage: --control is missing; `layover serve` starts this program\n");
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
