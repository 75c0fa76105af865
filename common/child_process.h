// A child process that dies with its parent's wish: started without a shell, watched by pidfd, never left unreaped. The
// coordinator runs its stages so, and a listening machine its worker. One thread uses it.
#ifndef LAYOVER_COMMON_CHILD_PROCESS_H_
#define LAYOVER_COMMON_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layover {

class ChildProcess {
 public:
  ChildProcess() = default;
  ~ChildProcess() { Kill(); }
  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  // args[0] is the program's path. Its standard output goes where its standard error goes; no signal is blocked in it.
  absl::Status Start(const std::vector<std::string>& args);

  bool running() const { return pidfd_ >= 0; }
  pid_t pid() const { return pid_; }    // also of one that has ended
  int pidfd() const { return pidfd_; }  // readable when it has ended; -1: there is none

  // Waits until it has ended, at most so long (0: looks). True if it has: then it is reaped and *how says "exited with
  // 1".
  bool WaitEnd(int timeout_ms, std::string* how);
  // SIGKILL, and waits.
  void Kill();
  // SIGKILL; its end is seen like any other.
  void SignalKill() const;

 private:
  void Reap(int* wait_status);

  pid_t pid_ = 0;
  int pidfd_ = -1;
};

// The worker's program, which lies beside this one.
std::string StageProgram();

// A new folder, 0700, for the sockets at which a parent and its children meet. Short: a socket's path may have 107
// characters.
absl::StatusOr<std::string> MakeSocketFolder();

}  // namespace layover

#endif  // LAYOVER_COMMON_CHILD_PROCESS_H_
