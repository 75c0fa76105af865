#include "common/storage/durable_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "common/status.h"
#include "common/storage/fault_point.h"
#include "common/storage/file_names.h"
#include "fmt/format.h"

namespace layover {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr mode_t kFolderMode = 0700;

absl::Status Failed(std::string_view verb, std::string_view path, int error_number) {
  if (error_number == ELOOP) {
    return DataLoss("{} {}: a symbolic link stands where a file of the store belongs", verb, path);
  }
  return ErrnoStatus(error_number, fmt::format("{} {}", verb, path));
}

// The folder itself, never what a link at its place points to.
absl::StatusOr<UniqueFd> OpenFolder(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() && errno == ENOTDIR) {
    return DataLoss("open folder {}: a link or a file stands where a folder of the store belongs", path);
  }
  if (!fd.valid()) return Failed("open folder", path, errno);
  return fd;
}

// Runs `operation` between the two halves of a fault point. The operation returns 0, or -1 and errno.
template <typename Operation>
absl::Status Guarded(FaultKind kind, std::string_view verb, const std::string& path, Operation operation) {
  FaultPoint point(kind, path);
  if (point.error() != 0) return Failed(verb, path, point.error());
  if (operation() != 0) return Failed(verb, path, errno);
  point.Done();
  return absl::OkStatus();
}

absl::Status UnlinkAt(int folder_fd, const std::string& path, const std::string& name) {
  return Guarded(FaultKind::kUnlink, "remove", path, [&] {
    const int result = unlinkat(folder_fd, name.c_str(), 0);
    return result != 0 && errno == ENOENT ? 0 : result;
  });
}

absl::Status SyncFolderFd(int fd, const std::string& path) {
  return Guarded(FaultKind::kSync, "sync folder", path, [&] { return fsync(fd); });
}

std::string NameOfFd(int fd) {
  return fmt::format("/proc/self/fd/{}", fd);
}

// A store that is there already holds only what a store holds.
absl::Status CheckLooksLikeStore(const std::string& store) {
  absl::StatusOr<std::vector<std::string>> names = ListFolder(store);
  if (!names.ok()) return names.status();
  const bool has_conversations = std::find(names->begin(), names->end(), kConversationsName) != names->end();
  const bool only_lock = names->empty() || (names->size() == 1 && names->front() == kLockName);
  if (has_conversations || only_lock) return absl::OkStatus();
  return InvalidArgument("{} is not a store: it holds other files (such as {}); name an empty or new folder", store,
                         names->front());
}

absl::Status MakePrivate(const std::string& path) {
  absl::StatusOr<UniqueFd> fd = OpenFolder(path);
  if (!fd.ok()) return fd.status();
  struct stat info;
  if (fstat(fd->get(), &info) != 0) return Failed("stat", path, errno);
  if ((info.st_mode & 07777) == kFolderMode) return absl::OkStatus();
  if (fchmod(fd->get(), kFolderMode) != 0) return Failed("make private", path, errno);
  return absl::OkStatus();
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

UniqueFd::~UniqueFd() {
  reset();
}

void UniqueFd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, OpenMode mode, int extra_flags) {
  ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolder(std::string(DirName(path))));
  int flags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | extra_flags;  // O_NONBLOCK: a pipe in the place must not hang us
  flags |= mode == OpenMode::kRead ? O_RDONLY : O_RDWR;
  if (mode == OpenMode::kCreate) flags |= O_CREAT | O_EXCL;
  UniqueFd fd(openat(folder.get(), std::string(BaseName(path)).c_str(), flags, kFileMode));
  if (!fd.valid()) {
    if (errno == EEXIST) return absl::AlreadyExistsError(ToAbsl(fmt::format("create {}: it exists", path)));
    return Failed(mode == OpenMode::kCreate ? "create" : "open", path, errno);
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return Failed("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return DataLoss("open {}: not a regular file", path);
  // io_uring would answer EAGAIN where it should wait.
  if (fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK) != 0) return Failed("open", path, errno);
  return fd;
}

absl::StatusOr<uint64_t> FileBytes(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Failed("stat", path, errno);
  return static_cast<uint64_t>(info.st_size);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes) {
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, OpenMode::kRead));
  ASSIGN_OR_RETURN(const uint64_t bytes, FileBytes(fd.get(), path));
  if (bytes > max_bytes) return ResourceExhausted("read {}: {} bytes, at most {} are allowed", path, bytes, max_bytes);
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = pread(fd.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

absl::Status WriteAt(int fd, const std::string& path, uint64_t offset, std::string_view bytes) {
  FaultPoint point(FaultKind::kWrite, path);
  if (point.error() != 0 && !point.first_half()) return Failed("write", path, point.error());
  if (point.first_half()) bytes = bytes.substr(0, bytes.size() / 2);
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed("write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  if (point.error() != 0) return Failed("write", path, point.error());
  point.Done();
  return absl::OkStatus();
}

absl::Status SyncFile(int fd, const std::string& path) {
  return Guarded(FaultKind::kSync, "sync", path, [&] { return fdatasync(fd); });
}

absl::Status TruncateFile(int fd, const std::string& path, uint64_t bytes) {
  return Guarded(FaultKind::kTruncate, "truncate", path, [&] { return ftruncate(fd, static_cast<off_t>(bytes)); });
}

absl::Status WriteFileDurably(const std::string& folder, std::string_view name, std::string_view bytes) {
  ASSIGN_OR_RETURN(const UniqueFd folder_fd, OpenFolder(folder));
  const std::string final_name(name);
  const std::string temporary_name = final_name + std::string(kTemporarySuffix);
  const std::string temporary = JoinPath(folder, temporary_name);
  RETURN_IF_ERROR(UnlinkAt(folder_fd.get(), temporary, temporary_name));  // left by a crash
  absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(temporary, OpenMode::kCreate));
    RETURN_IF_ERROR(WriteAt(fd.get(), temporary, 0, bytes));
    // The bytes must be on disk before the name points to them, else a crash could leave the new name with old content.
    return SyncFile(fd.get(), temporary);
  }();
  if (status.ok()) {
    status = Guarded(FaultKind::kRename, "rename", JoinPath(folder, name), [&] {
      return renameat(folder_fd.get(), temporary_name.c_str(), folder_fd.get(), final_name.c_str());
    });
  }
  if (!status.ok()) {
    UnlinkAt(folder_fd.get(), temporary, temporary_name).IgnoreError();  // a start removes it too
    return status;
  }
  // The rename is real for a reader now, but only the folder's sync makes it survive a power cut.
  return SyncFolderFd(folder_fd.get(), folder);
}

absl::Status EnsureFolder(const std::string& path) {
  const std::string parent(DirName(path));
  const absl::Status made = Guarded(FaultKind::kMkdir, "make folder", path, [&] {
    const int result = mkdir(path.c_str(), kFolderMode);
    return result != 0 && errno == EEXIST ? 0 : result;
  });
  RETURN_IF_ERROR(made);
  RETURN_IF_ERROR(MakePrivate(path));
  // Also when it existed: whoever made it may have crashed before this.
  return SyncFolder(parent);
}

absl::Status SyncFolder(const std::string& path) {
  // A parent such as the store's own may be reached through a link, so this one follows it.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Failed("open folder", path, errno);
  return SyncFolderFd(fd.get(), path);
}

absl::Status RemoveFile(const std::string& folder, std::string_view name) {
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenFolder(folder));
  return UnlinkAt(fd.get(), JoinPath(folder, name), std::string(name));
}

absl::Status RemoveDurably(const std::string& folder, std::string_view name) {
  RETURN_IF_ERROR(RemoveFile(folder, name));
  return SyncFolder(folder);
}

absl::Status RemoveEmptyFolder(const std::string& path) {
  bool not_empty = false;
  RETURN_IF_ERROR(Guarded(FaultKind::kUnlink, "remove folder", path, [&] {
    const int result = rmdir(path.c_str());
    not_empty = result != 0 && (errno == ENOTEMPTY || errno == EEXIST);
    return result != 0 && (not_empty || errno == ENOENT) ? 0 : result;
  }));
  if (not_empty) return FailedPrecondition("remove folder {}: it is not empty", path);
  return SyncFolder(std::string(DirName(path)));
}

absl::Status PublishDurably(const std::string& from, const std::string& to) {
  bool taken = false;
  RETURN_IF_ERROR(Guarded(FaultKind::kRename, "rename", to, [&] {
    int result = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
      // A file system without the flag: look first. Who makes `to` between the two calls loses it.
      struct stat info;
      taken = lstat(to.c_str(), &info) == 0;
      result = taken ? 0 : rename(from.c_str(), to.c_str());
    } else if (result != 0 && errno == EEXIST) {
      taken = true;
      result = 0;
    }
    return result;
  }));
  if (taken) return absl::AlreadyExistsError(ToAbsl(fmt::format("{} exists", to)));
  return SyncFolder(std::string(DirName(to)));
}

absl::StatusOr<UniqueFd> OpenUnnamed(const std::string& folder) {
  UniqueFd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kFileMode));
  // Older kernels take it for the folder itself.
  const bool unable = errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT;
  if (!fd.valid() && unable) return FailedPrecondition("{}: its file system has no files without a name", folder);
  if (!fd.valid()) return Failed("create a file in", folder, errno);
  if (access(NameOfFd(fd.get()).c_str(), F_OK) != 0) return FailedPrecondition("/proc is not mounted");
  return fd;
}

absl::Status PublishUnnamed(int fd, const std::string& to) {
  bool taken = false;
  RETURN_IF_ERROR(Guarded(FaultKind::kRename, "link", to, [&] {
    const int result = linkat(AT_FDCWD, NameOfFd(fd).c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW);
    taken = result != 0 && errno == EEXIST;
    return taken ? 0 : result;
  }));
  if (taken) return absl::AlreadyExistsError(ToAbsl(fmt::format("{} exists", to)));
  return SyncFolder(std::string(DirName(to)));
}

absl::Status ExchangeDurably(const std::string& a, const std::string& b) {
  bool unable = false;
  RETURN_IF_ERROR(Guarded(FaultKind::kRename, "rename", b, [&] {
    const int result = renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
    unable = result != 0 && (errno == EINVAL || errno == ENOSYS);
    return unable ? 0 : result;
  }));
  if (unable) return FailedPrecondition("rename {}: its file system cannot exchange two folders", b);
  return SyncFolder(std::string(DirName(b)));
}

absl::Status LinkFile(const std::string& from, const std::string& to) {
  return Guarded(FaultKind::kWrite, "link", to, [&] { return link(from.c_str(), to.c_str()); });
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenFolder(path));
  DIR* folder = fdopendir(dup(fd.get()));
  if (folder == nullptr) return Failed("list", path, errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  const int error_number = errno;
  closedir(folder);
  if (error_number != 0) return Failed("list", path, error_number);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return Failed("free space of", path, errno);
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

absl::Status PrepareStore(const std::string& store) {
  struct stat info;
  if (stat(store.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) return InvalidArgument("{} is not a folder", store);
    // The top folder may be a link that the owner set; everything below may not.
    RETURN_IF_ERROR(CheckLooksLikeStore(store + "/."));
    RETURN_IF_ERROR(MakePrivate(store + "/."));
  } else {
    RETURN_IF_ERROR(EnsureFolder(store));
  }
  return EnsureFolder(JoinPath(store, kConversationsName));
}

absl::StatusOr<std::unique_ptr<StoreLock>> StoreLock::Acquire(const std::string& store) {
  const std::string path = JoinPath(store, kLockName);
  // Opened, never replaced: an unlinked lock file could be held by one server and made anew by another.
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (!fd.valid()) return Failed("open", path, errno);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed("lock", path, errno);
    const absl::StatusOr<int> holder = Holder(store);
    return Aborted("the store {} is in use by another server (process {}, by {})", store, holder.ok() ? *holder : 0,
                   path);
  }
  if (ftruncate(fd.get(), 0) != 0) return Failed("truncate", path, errno);
  RETURN_IF_ERROR(WriteAt(fd.get(), path, 0, fmt::format("{}\n", getpid())));
  return std::unique_ptr<StoreLock>(new StoreLock(std::move(fd)));
}

absl::StatusOr<int> StoreLock::Holder(const std::string& store) {
  const std::string path = JoinPath(store, kLockName);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return 0;
  if (!fd.valid()) return Failed("open", path, errno);
  if (flock(fd.get(), LOCK_SH | LOCK_NB) == 0) return 0;  // let go when fd closes
  if (errno != EWOULDBLOCK) return Failed("lock", path, errno);
  char text[32];
  const ssize_t got = pread(fd.get(), text, sizeof(text), 0);
  int pid = 0;
  if (got > 0) std::from_chars(text, text + got, pid);
  return pid > 0 ? pid : 1;  // held, by someone who has not written its number yet
}

}  // namespace layover
