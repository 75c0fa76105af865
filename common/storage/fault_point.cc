#include "common/storage/fault_point.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string>

#include "common/check.h"
#include "fmt/format.h"

namespace layover {
namespace {

enum class Mode { kOff, kKill, kKillBefore, kTorn, kFail, kHold, kTrace };

struct Plan {
  Mode mode = Mode::kOff;
  uint64_t at = 0;  // counted from 1
  bool from_there_on = false;
  int fail_with = 0;
  std::string file;     // of kTrace and kHold
  std::string program;  // count only here, if not empty
  std::string match;    // count only paths that contain it, if not empty
  uint64_t reached = 0;
};

enum : int { kUnread, kOff, kOn };
std::atomic<int> state{kUnread};
std::mutex plan_mutex;
Plan plan;                // guarded by plan_mutex
std::string own_program;  // guarded by plan_mutex

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "kill:12", "eio:3+", "hold:2:/a/b", "trace:/a/b". Anything else stops the program: a test that asks for a fault must get it.
Plan ReadPlan() {
  Plan fresh;
  const std::string text = Environment("LAYOVER_FAULT");
  if (text.empty()) return fresh;
  fresh.program = Environment("LAYOVER_FAULT_PROGRAM");
  fresh.match = Environment("LAYOVER_FAULT_MATCH");
  const size_t colon = text.find(':');
  LAYOVER_CHECK(colon != std::string::npos);
  const std::string verb = text.substr(0, colon);
  std::string argument = text.substr(colon + 1);
  if (verb == "trace") {
    fresh.mode = Mode::kTrace;
    fresh.file = argument;
    return fresh;
  }
  if (verb == "kill") fresh.mode = Mode::kKill;
  if (verb == "killbefore") fresh.mode = Mode::kKillBefore;
  if (verb == "torn") fresh.mode = Mode::kTorn;
  if (verb == "eio") fresh.mode = Mode::kFail, fresh.fail_with = EIO;
  if (verb == "enospc") fresh.mode = Mode::kFail, fresh.fail_with = ENOSPC;
  if (verb == "hold") {
    const size_t second = argument.find(':');
    LAYOVER_CHECK(second != std::string::npos);
    fresh.mode = Mode::kHold;
    fresh.file = argument.substr(second + 1);
    argument.resize(second);
  }
  if (argument.ends_with('+')) {
    fresh.from_there_on = true;
    argument.pop_back();
  }
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), fresh.at);
  LAYOVER_CHECK(fresh.mode != Mode::kOff && error == std::errc() && end == argument.data() + argument.size());
  return fresh;
}

[[noreturn]] void KillSelf() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

void AppendTrace(FaultKind kind, std::string_view path) {
  const std::string line =
      fmt::format("{} {} {}\n", own_program.empty() ? "-" : own_program, FaultKindName(kind), path);
  const int fd = open(plan.file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  LAYOVER_CHECK(fd >= 0 && write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  close(fd);
}

void HoldUntilGone(const std::string& file) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  LAYOVER_CHECK(fd >= 0);
  close(fd);
  while (access(file.c_str(), F_OK) == 0) usleep(1000);
}

}  // namespace

std::string_view FaultKindName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kWrite:
      return "write";
    case FaultKind::kSync:
      return "sync";
    case FaultKind::kRename:
      return "rename";
    case FaultKind::kUnlink:
      return "unlink";
    case FaultKind::kTruncate:
      return "truncate";
    case FaultKind::kMkdir:
      return "mkdir";
    case FaultKind::kCopy:
      return "copy";
  }
  return "";
}

void SetFaultProgram(std::string_view program) {
  const std::lock_guard<std::mutex> lock(plan_mutex);
  own_program = program;
}

void ResetFaultPoints() {
  const std::lock_guard<std::mutex> lock(plan_mutex);
  plan = ReadPlan();
  state = plan.mode == Mode::kOff ? kOff : kOn;
}

FaultPoint::FaultPoint(FaultKind kind, std::string_view path) {
  if (state.load(std::memory_order_relaxed) == kOff) return;
  if (state.load() == kUnread) ResetFaultPoints();
  std::unique_lock<std::mutex> lock(plan_mutex);
  if (plan.mode == Mode::kOff) return;
  if (!plan.program.empty() && plan.program != own_program) return;
  if (!plan.match.empty() && path.find(plan.match) == std::string_view::npos) return;
  if (plan.mode == Mode::kTrace) {
    AppendTrace(kind, path);
    return;
  }
  ++plan.reached;
  if (plan.reached != plan.at && !(plan.from_there_on && plan.reached > plan.at)) return;
  const bool is_write = kind == FaultKind::kWrite;
  switch (plan.mode) {
    case Mode::kKillBefore:
      KillSelf();
    case Mode::kTorn:
      if (!is_write) KillSelf();
      half_ = kill_after_ = true;
      return;
    case Mode::kKill:
      kill_after_ = true;
      return;
    case Mode::kHold: {
      const std::string file = plan.file;
      lock.unlock();
      HoldUntilGone(file);
      return;
    }
    default:
      error_ = plan.fail_with;
      half_ = is_write;
  }
}

void FaultPoint::Done() {
  if (kill_after_) KillSelf();
}

}  // namespace layover
