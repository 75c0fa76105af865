// Files that must survive a crash, and the only code that renames or removes anything in a store.
//
// What holds: folders are 0700 and files 0600; the last two components of a path are never followed if they are
// symbolic links; a function named Durably returns only when what it did is on disk, folder included. Errors name the
// path; no space is ResourceExhausted, a missing file NotFound, everything else of the disk Internal.
#ifndef LAYOVER_COMMON_STORAGE_DURABLE_FILE_H_
#define LAYOVER_COMMON_STORAGE_DURABLE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace layover {

// Closes its descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

enum class OpenMode {
  kRead,       // an existing regular file
  kCreate,     // a new file, read and write; AlreadyExists if there is one
  kReadWrite,  // an existing regular file
};
// `extra_flags` may hold O_DIRECT.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, OpenMode mode, int extra_flags = 0);
absl::StatusOr<uint64_t> FileBytes(int fd, const std::string& path);

// All of a file; ResourceExhausted if it is longer than max_bytes.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes);

// Makes folder/name hold exactly `bytes`, or leaves it as it was: a temporary file, written and synced, renamed over
// the name, then the folder synced. A reader sees the old file or the new one.
absl::Status WriteFileDurably(const std::string& folder, std::string_view name, std::string_view bytes);

// Writes at an offset of an open file, all or an error; passes a fault point.
absl::Status WriteAt(int fd, const std::string& path, uint64_t offset, std::string_view bytes);
absl::Status SyncFile(int fd, const std::string& path);
absl::Status TruncateFile(int fd, const std::string& path, uint64_t bytes);

// The folder, created 0700 (its parent must exist) and durable; an existing one must be a real folder, not a link.
absl::Status EnsureFolder(const std::string& path);
absl::Status SyncFolder(const std::string& path);

// A missing file is success, so that a removal can be repeated. RemoveFile leaves the folder's sync to the caller.
absl::Status RemoveFile(const std::string& folder, std::string_view name);
absl::Status RemoveDurably(const std::string& folder, std::string_view name);
// Success also if it is missing; FailedPrecondition if it is not empty.
absl::Status RemoveEmptyFolder(const std::string& path);

// Gives a file or folder its final name, which must be free (AlreadyExists), in the same file system.
absl::Status PublishDurably(const std::string& from, const std::string& to);
// A new file in `folder` that has no name: it goes when its descriptor does, however the process ends.
// FailedPrecondition where the file system has no such files.
absl::StatusOr<UniqueFd> OpenUnnamed(const std::string& folder);
// Gives it its name, which must be free (AlreadyExists).
absl::Status PublishUnnamed(int fd, const std::string& to);
// Two folders get each other's name, in one step. FailedPrecondition where the file system cannot do that.
absl::Status ExchangeDurably(const std::string& a, const std::string& b);
// Another name for a file, in another folder of the same file system; leaves the folder's sync to the caller.
absl::Status LinkFile(const std::string& from, const std::string& to);

// Names of the entries of a folder, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Bytes that this user may still write on the file system of `path`.
absl::StatusOr<uint64_t> FreeBytes(const std::string& path);

// The top folder of a store with its `c/`: made if missing. One that exists and holds other things than a store is
// refused, so that a mistyped path does not turn somebody's folder into a private one.
absl::Status PrepareStore(const std::string& store);

// One server per store: holds an exclusive lock on STORE/lock, which says who holds it, until destroyed.
class StoreLock {
 public:
  // Aborted if it is held, naming the holder's pid. `store` must exist (PrepareStore).
  static absl::StatusOr<std::unique_ptr<StoreLock>> Acquire(const std::string& store);
  // The holder's pid, 0 if nobody holds it. For messages and for offline verbs that may not run beside a server.
  static absl::StatusOr<int> Holder(const std::string& store);

 private:
  explicit StoreLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_STORAGE_DURABLE_FILE_H_
