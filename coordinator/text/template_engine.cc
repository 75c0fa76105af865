#include "coordinator/text/template_engine.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/log.h"
#include "common/status.h"

namespace layover {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kDebianPython[] = "/usr/bin/python3";
constexpr char kHelperName[] = "template_helper.py";

struct Reply {
  char status = 0;
  std::string text;
};

std::string DefaultHelperPath() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) return kHelperName;
  const std::string program(path, static_cast<size_t>(n));
  return program.substr(0, program.rfind('/') + 1) + kHelperName;
}

// What of our environment the helper sees: nothing that could hold a key.
std::vector<std::string> HelperEnvironment() {
  std::vector<std::string> environment;
  for (const char* name : {"PATH", "TZ", "LD_LIBRARY_PATH"}) {
    if (const char* value = getenv(name)) environment.push_back(std::string(name) + "=" + value);
  }
  return environment;
}

// Interpreters to try, in order.
std::vector<std::string> PythonCandidates(const std::string& wanted) {
  if (!wanted.empty()) return {wanted};
  std::vector<std::string> candidates = {kDebianPython};
  const char* path = getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string program = std::string(folder) + "/python3";
    if (!folder.empty() && program != kDebianPython && access(program.c_str(), X_OK) == 0) {
      candidates.push_back(program);
      break;
    }
  }
  return candidates;
}

std::vector<char*> PointersOf(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// One helper process and our end of its socket. Not thread-safe: belongs to the engine's thread.
class Helper {
 public:
  ~Helper() { Kill(); }

  absl::Status Spawn(const std::string& python, const std::string& script);
  // Sends one request and waits for the reply. DeadlineExceeded: too slow; Aborted: it died or broke the protocol.
  absl::StatusOr<Reply> Call(const std::string& request, Clock::time_point deadline);
  absl::StatusOr<Reply> ReadReply(Clock::time_point deadline);
  bool IsRunning();
  void Kill();
  pid_t pid() const { return pid_; }  // from any thread

 private:
  [[noreturn]] static void RunChild(int socket, pid_t parent, char* const* arguments, char* const* environment);
  absl::Status WaitFor(short events, Clock::time_point deadline);
  absl::Status Write(const char* data, size_t bytes, Clock::time_point deadline);
  absl::Status Read(char* data, size_t bytes, Clock::time_point deadline);

  std::atomic<pid_t> pid_ = -1;
  int socket_ = -1;
};

// Between fork and exec: only calls that are safe there.
void Helper::RunChild(int socket, pid_t parent, char* const* arguments, char* const* environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (getppid() != parent) _exit(127);
  setsid();  // so that a Ctrl-C meant for the coordinator does not reach it
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  dup2(socket, STDIN_FILENO);
  dup2(socket, STDOUT_FILENO);
  close_range(STDERR_FILENO + 1, ~0u, 0);
  execve(arguments[0], arguments, environment);
  _exit(127);
}

absl::Status Helper::Spawn(const std::string& python, const std::string& script) {
  Kill();
  std::vector<std::string> arguments = {python,
                                        "-I",
                                        script,
                                        std::to_string(limits::kTemplateHelperMemoryBytes),
                                        std::to_string(limits::kTemplateDeadlineMs / 1000 + 1),
                                        std::to_string(limits::kMaxRenderedBytes)};
  std::vector<std::string> environment = HelperEnvironment();
  const std::vector<char*> argument_pointers = PointersOf(&arguments);
  const std::vector<char*> environment_pointers = PointersOf(&environment);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return ErrnoStatus(errno, "socketpair");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) RunChild(ends[1], parent, argument_pointers.data(), environment_pointers.data());
  const int fork_error = errno;
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return ErrnoStatus(fork_error, "fork");
  }
  pid_ = child;
  socket_ = ends[0];
  return absl::OkStatus();
}

absl::Status Helper::WaitFor(short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return DeadlineExceeded("no answer in time");
    pollfd entry{socket_, events, 0};
    const int n = poll(&entry, 1, static_cast<int>(left));
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

absl::Status Helper::Write(const char* data, size_t bytes, Clock::time_point deadline) {
  while (bytes > 0) {
    RETURN_IF_ERROR(WaitFor(POLLOUT, deadline));
    const ssize_t n = send(socket_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return Aborted("send: {}", std::strerror(errno));
    }
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Helper::Read(char* data, size_t bytes, Clock::time_point deadline) {
  while (bytes > 0) {
    RETURN_IF_ERROR(WaitFor(POLLIN, deadline));
    const ssize_t n = recv(socket_, data, bytes, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return Aborted("recv: {}", std::strerror(errno));
    }
    if (n == 0) return Aborted("it ended");
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<Reply> Helper::ReadReply(Clock::time_point deadline) {
  uint32_t length = 0;
  RETURN_IF_ERROR(Read(reinterpret_cast<char*>(&length), sizeof length, deadline));
  if (length < 1 || length > limits::kMaxRenderedBytes + 1) return Aborted("it sent a frame of {} bytes", length);
  Reply reply;
  RETURN_IF_ERROR(Read(&reply.status, 1, deadline));
  reply.text.resize(length - 1);
  RETURN_IF_ERROR(Read(reply.text.data(), reply.text.size(), deadline));
  return reply;
}

absl::StatusOr<Reply> Helper::Call(const std::string& request, Clock::time_point deadline) {
  RETURN_IF_ERROR(Write(request.data(), request.size(), deadline));
  return ReadReply(deadline);
}

bool Helper::IsRunning() {
  if (pid_ < 0) return false;
  if (waitpid(pid_, nullptr, WNOHANG) == 0) return true;
  close(socket_);
  pid_ = -1;
  return false;
}

void Helper::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(socket_);
  pid_ = -1;
}

template <typename Integer>
void AppendInteger(Integer value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string EncodeRequest(const std::string& source, const std::string& context, int64_t now_unix_s) {
  constexpr size_t kHeaderBytes = sizeof(int64_t) + sizeof(uint32_t);
  std::string request;
  request.reserve(sizeof(uint32_t) + kHeaderBytes + source.size() + context.size());
  AppendInteger(static_cast<uint32_t>(kHeaderBytes + source.size() + context.size()), &request);
  AppendInteger(now_unix_s, &request);
  AppendInteger(static_cast<uint32_t>(source.size()), &request);
  request += source;
  request += context;
  return request;
}

}  // namespace

struct TemplateEngine::Impl {
  struct Job {
    std::string request;
    std::promise<absl::StatusOr<std::string>> result;
  };

  explicit Impl(const Options& options_in) : options(options_in) {
    if (options.helper_path.empty()) options.helper_path = DefaultHelperPath();
  }

  void Run(std::promise<absl::Status> started);
  absl::Status EnsureHelper();
  absl::Status StartHelper(const std::string& python);
  absl::StatusOr<std::string> Render(const std::string& request);

  Options options;
  std::string python;  // the interpreter that worked
  Helper helper;       // touched by the engine's thread only

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> jobs;   // guarded by mutex
  bool stopping = false;  // guarded by mutex
  std::thread thread;
};

absl::Status TemplateEngine::Impl::StartHelper(const std::string& candidate) {
  RETURN_IF_ERROR(helper.Spawn(candidate, options.helper_path));
  const auto deadline = Clock::now() + std::chrono::milliseconds(limits::kTemplateStartDeadlineMs);
  absl::StatusOr<Reply> greeting = helper.ReadReply(deadline);
  if (greeting.ok() && greeting->status == 'H') {
    LogInfo("template helper: {} with jinja2 {}", candidate, greeting->text);
    return absl::OkStatus();
  }
  helper.Kill();
  if (greeting.ok()) return Unavailable("template helper: {}", greeting->text);
  return Unavailable("template helper: cannot run {} {}: {}", candidate, options.helper_path,
                     ToStd(greeting.status().message()));
}

absl::Status TemplateEngine::Impl::EnsureHelper() {
  if (helper.IsRunning()) return absl::OkStatus();
  if (access(options.helper_path.c_str(), R_OK) != 0) {
    return Unavailable("template helper: cannot read {}: {}", options.helper_path, std::strerror(errno));
  }
  absl::Status first_error;
  for (const std::string& candidate : PythonCandidates(python.empty() ? options.python : python)) {
    const absl::Status status = StartHelper(candidate);
    if (status.ok()) {
      python = candidate;
      return status;
    }
    first_error.Update(status);
  }
  return first_error;
}

absl::StatusOr<std::string> TemplateEngine::Impl::Render(const std::string& request) {
  RETURN_IF_ERROR(EnsureHelper());
  const auto deadline = Clock::now() + std::chrono::milliseconds(options.deadline_ms);
  absl::StatusOr<Reply> reply = helper.Call(request, deadline);
  if (!reply.ok()) {
    helper.Kill();
    LogWarning("template helper: killed: {}", ToStd(reply.status().message()));
    if (absl::IsDeadlineExceeded(reply.status())) {
      return InvalidArgument("chat template: it took longer than {} ms", options.deadline_ms);
    }
    return InvalidArgument("chat template: it broke a limit and its process ended");
  }
  switch (reply->status) {
    case 'T':
      return std::move(reply->text);
    case 'R':
      return InvalidArgument("{}", reply->text);
    case 'L':
      helper.Kill();
      LogWarning("template helper: replaced: {}", reply->text);
      return InvalidArgument("chat template: {}", reply->text);
    default:
      return InvalidArgument("chat template: {}", reply->text);
  }
}

void TemplateEngine::Impl::Run(std::promise<absl::Status> started) {
  const absl::Status status = EnsureHelper();
  started.set_value(status);
  if (!status.ok()) return;
  while (true) {
    std::unique_lock<std::mutex> lock(mutex);
    wake.wait(lock, [&] { return stopping || !jobs.empty(); });
    if (jobs.empty()) break;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    job.result.set_value(Render(job.request));
  }
  helper.Kill();
}

absl::StatusOr<std::unique_ptr<TemplateEngine>> TemplateEngine::Start(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  std::promise<absl::Status> started;
  std::future<absl::Status> outcome = started.get_future();
  impl->thread =
      std::thread([raw = impl.get(), promise = std::move(started)]() mutable { raw->Run(std::move(promise)); });
  std::unique_ptr<TemplateEngine> engine(new TemplateEngine(std::move(impl)));
  RETURN_IF_ERROR(outcome.get());
  return engine;
}

TemplateEngine::TemplateEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TemplateEngine::~TemplateEngine() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  impl_->thread.join();
}

int TemplateEngine::helper_pid() const {
  return impl_->helper.pid();
}

absl::StatusOr<std::string> TemplateEngine::Render(const std::string& template_source, const std::string& context_json,
                                                   int64_t now_unix_s) {
  if (template_source.size() > limits::kMaxChatTemplateBytes) {
    return InvalidArgument("chat template: {} bytes; at most {} are taken", template_source.size(),
                           limits::kMaxChatTemplateBytes);
  }
  if (context_json.size() > limits::kMaxTemplateContextBytes) {
    return InvalidArgument("chat template: its variables take {} bytes; at most {} are taken", context_json.size(),
                           limits::kMaxTemplateContextBytes);
  }
  Impl::Job job{EncodeRequest(template_source, context_json, now_unix_s), {}};
  std::future<absl::StatusOr<std::string>> result = job.result.get_future();
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->jobs.push_back(std::move(job));
  }
  impl_->wake.notify_all();
  return result.get();
}

}  // namespace layover
