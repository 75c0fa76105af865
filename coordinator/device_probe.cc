#include "coordinator/device_probe.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/child_process.h"
#include "common/status.h"

extern char** environ;

namespace layover {
namespace {

constexpr std::string_view kMemoryWord = "memory ";  // before the bytes, in a line of its own

// All that the process writes, as far as it is looked at.
std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t n = read(fd, part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (text.size() < part.size()) text.append(part.data(), static_cast<size_t>(n));
  }
  return text;
}

// Exit status of `layover-stage --probe-device NAME [--probe-nccl]`, and what it says.
absl::StatusOr<int> AskStageProgram(const std::string& device, bool nccl, std::string* answer) {
  const std::string program = StageProgram();
  int ends[2];
  if (pipe(ends) != 0) return ErrnoStatus(errno, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  const char* arguments[] = {program.c_str(), "--probe-device", device.c_str(), nccl ? "--probe-nccl" : nullptr,
                             nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) *answer = ReadAll(ends[0]);
  close(ends[0]);
  if (error != 0) return ErrnoStatus(error, program);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) *answer = std::string("the stage program died of ") + strsignal(WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Libraries may have written lines of their own.
absl::StatusOr<uint64_t> MemoryIn(const std::string& answer, const std::string& device) {
  uint64_t bytes = 0;
  for (const absl::string_view line : absl::StrSplit(answer, '\n')) {
    absl::string_view number = line;
    if (absl::ConsumePrefix(&number, ToAbsl(kMemoryWord)) && absl::SimpleAtoi(number, &bytes)) return bytes;
  }
  return Internal("the stage program does not say how much memory {} has", device);
}

}  // namespace

absl::StatusOr<std::map<std::string, uint64_t>> ProbeDevices(const Topology& topology) {
  std::map<std::string, uint64_t> memory;
  std::set<std::pair<std::string, bool>> asked = {{"cpu", false}};
  const auto ask = [&](const std::string& device, bool nccl, int line) -> absl::Status {
    if (!asked.insert({device, nccl}).second) return absl::OkStatus();
    std::string answer;
    ASSIGN_OR_RETURN(const int status, AskStageProgram(device, nccl, &answer));
    if (status != 0) return Unavailable("{}:{}: {}", topology.file, line, answer.substr(0, answer.find('\n')));
    ASSIGN_OR_RETURN(memory[device], MemoryIn(answer, device));
    return absl::OkStatus();
  };
  for (size_t i = 0; i < topology.stages.size(); ++i) {
    const StageSettings& stage = topology.stages[i];
    if (!stage.host.empty()) continue;
    RETURN_IF_ERROR(ask(stage.device, false, stage.line));
    if (i == 0 || stage.link != LinkKind::kNccl) continue;
    RETURN_IF_ERROR(ask(topology.stages[i - 1].device, true, stage.line));
    RETURN_IF_ERROR(ask(stage.device, true, stage.line));
  }
  return memory;
}

}  // namespace layover
