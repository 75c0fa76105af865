#include "common/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "common/status.h"

namespace layover {

std::string StageProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "layover-stage";
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  return *this;
}

absl::Status ChildProcess::Start(const std::vector<std::string>& args) {
  Kill();
  std::vector<const char*> arguments;
  for (const std::string& arg : args) arguments.push_back(arg.c_str());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    // Nothing but async-signal-safe calls here: other threads may have held locks at the fork.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // only the parent's own lines belong on stdout
    execv(arguments[0], const_cast<char* const*>(arguments.data()));
    _exit(127);
  }
  pid_ = pid;
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd_ < 0) return ErrnoStatus(errno, "pidfd_open");
  fcntl(pidfd_, F_SETFD, FD_CLOEXEC);
  return absl::OkStatus();
}

void ChildProcess::Reap(int* wait_status) {
  waitpid(pid_, wait_status, 0);
  close(pidfd_);
  pidfd_ = -1;
}

bool ChildProcess::WaitEnd(int timeout_ms, std::string* how) {
  if (!running()) return false;
  pollfd item{pidfd_, POLLIN, 0};
  if (poll(&item, 1, std::max(timeout_ms, 0)) != 1) return false;
  int status = 0;
  Reap(&status);
  *how = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                             : fmt::format("exited with {}", WEXITSTATUS(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    *how = "could not be started: layover-stage is not beside this program";
  return true;
}

void ChildProcess::SignalKill() const {
  if (running()) kill(pid_, SIGKILL);
}

void ChildProcess::Kill() {
  if (!running()) return;
  kill(pid_, SIGKILL);
  Reap(nullptr);
}

absl::StatusOr<std::string> MakeSocketFolder() {
  std::string path = "/tmp/layover-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "mkdtemp " + path);
  return path;
}

}  // namespace layover
