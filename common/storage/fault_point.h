// Where a storage operation can be made to fail or the process to die, so that tests can visit every moment of a save.
// Every write, sync, rename, unlink, truncate and mkdir of the storage code passes one of these, and so does a session's
// copy into host memory.
//
// Off (one atomic load) unless the environment has LAYOVER_FAULT:
//   kill:K        SIGKILL to this process right after the K-th operation (counted from 1)
//   killbefore:K  right before it
//   torn:K        in the middle of it: a write puts down its first half only; other operations as killbefore
//   eio:K         the K-th operation fails with EIO and is not done (a write may have put down its first half)
//   enospc:K      the same with ENOSPC
//   hold:K:FILE   the K-th operation makes FILE and waits until somebody removes it; other threads go on
//   trace:FILE    every operation appends a line "PROGRAM KIND PATH" to FILE
// LAYOVER_FAULT_PROGRAM=NAME counts only in the process that calls itself so (SetFaultProgram),
// LAYOVER_FAULT_MATCH=TEXT only operations whose path contains TEXT. eio and enospc with "K+" fail the K-th and every
// later one.
#ifndef LAYOVER_COMMON_STORAGE_FAULT_POINT_H_
#define LAYOVER_COMMON_STORAGE_FAULT_POINT_H_

#include <string_view>

namespace layover {

enum class FaultKind { kWrite, kSync, kRename, kUnlink, kTruncate, kMkdir, kCopy };
std::string_view FaultKindName(FaultKind kind);

// What LAYOVER_FAULT_PROGRAM is compared with: "layover", "stage-1". Call it once, early.
void SetFaultProgram(std::string_view program);

// Reads LAYOVER_FAULT again and counts from zero: for tests that fork.
void ResetFaultPoints();

// One operation. Make it right before, ask error(), do the operation, call Done() right after.
class FaultPoint {
 public:
  FaultPoint(FaultKind kind, std::string_view path);

  int error() const { return error_; }  // an errno: fail with it instead of doing the operation; 0: go on
  bool first_half() const {
    return half_;
  }  // a write: put down the first half only (then Done() kills, or error() holds)
  void Done();

 private:
  int error_ = 0;
  bool half_ = false;
  bool kill_after_ = false;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_FAULT_POINT_H_
