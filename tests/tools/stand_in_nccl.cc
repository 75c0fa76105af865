// A stand-in for NCCL with the symbols and manners that Layover relies on, for emulated cards: two ranks, in two
// processes or one, whose bytes go over a Unix socket. As in NCCL, a non-blocking communicator is made by a thread of
// its own, a call before it is ready is invalid, and a rank whose peer has died hangs until it is aborted.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/nccl.h"
#include "kernels/emulation/foreign_stream.h"

namespace {

using layover::gpu::kNcclInProgress;
using layover::gpu::kNcclSuccess;
using layover::gpu::NcclConfig;
using layover::gpu::NcclUniqueId;

constexpr int kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5;

struct Comm {
  std::mutex mutex;  // guards fd's use and its end
  int fd = -1;
  int listener = -1;
  std::atomic<bool> aborted{false};
  std::atomic<int> state{kNcclInProgress};
  std::thread joining;
};

std::mutex g_mutex;
std::map<std::string, int> g_listeners;  // by the socket's name; made with an id, taken by its rank 0
std::vector<std::unique_ptr<Comm>>& g_comms = *new std::vector<std::unique_ptr<Comm>>;  // for ever: steps refer to them

sockaddr_un AddressOf(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a name without a file
  return address;
}
socklen_t LengthOf(const std::string& name) {
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// Until `try_once` gives a descriptor or the rank is aborted.
template <typename Try>
int Again(const Comm& comm, const Try& try_once) {
  while (!comm.aborted) {
    const int fd = try_once();
    if (fd >= 0) return fd;
    poll(nullptr, 0, 5);
  }
  return -1;
}

void JoinRanks(Comm* comm, int rank, const std::string& name) {
  const auto accept_one = [&] { return accept4(comm->listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); };
  const auto connect_once = [&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const sockaddr_un address = AddressOf(name);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), LengthOf(name)) == 0) return fd;
    close(fd);
    return -1;
  };
  const int fd = rank == 0 ? Again(*comm, accept_one) : Again(*comm, connect_once);
  if (fd < 0) return;
  // As with NCCL, a message is sent when the other side takes it, not when the kernel has room for it.
  const int smallest = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &smallest, sizeof(smallest));
  // Each side is there only when it has said so.
  char byte = 1;
  (void)!send(fd, &byte, 1, MSG_NOSIGNAL);
  while (!comm->aborted && recv(fd, &byte, 1, 0) != 1) poll(nullptr, 0, 1);
  std::lock_guard lock(comm->mutex);
  comm->fd = fd;
  if (!comm->aborted) comm->state = kNcclSuccess;
}

// One message under way: its length, then its bytes.
struct Message {
  Comm* comm;
  bool outgoing;
  char* data;
  uint64_t bytes;
  uint64_t length = 0;
  uint64_t done = 0;  // of length and bytes together
};

// -1 with EAGAIN, or the other side is gone.
ssize_t MoveSome(Message& message) {
  const bool head = message.done < sizeof(uint64_t);
  char* const at =
      head ? reinterpret_cast<char*>(&message.length) + message.done : message.data + message.done - sizeof(uint64_t);
  const uint64_t left = head ? sizeof(uint64_t) - message.done : message.bytes + sizeof(uint64_t) - message.done;
  return message.outgoing ? send(message.comm->fd, at, left, MSG_NOSIGNAL) : recv(message.comm->fd, at, left, 0);
}

ForeignStep Advance(Message& message) {
  std::lock_guard lock(message.comm->mutex);
  while (!message.comm->aborted && message.done < message.bytes + sizeof(uint64_t)) {
    const ssize_t moved = MoveSome(message);
    if (moved <= 0) return ForeignStep::kWaiting;  // a dead peer is waited for as well
    message.done += static_cast<uint64_t>(moved);
    if (!message.outgoing && message.done == sizeof(uint64_t) && message.length != message.bytes) {
      message.comm->state = kInvalidArgument;
      return ForeignStep::kDone;
    }
  }
  return ForeignStep::kDone;
}

int Start(Comm* comm, bool outgoing, void* data, size_t bytes, CUstream_st* stream) {
  if (comm->state == kNcclInProgress || comm->aborted) return kInvalidUsage;
  const auto message = std::make_shared<Message>(Message{comm, outgoing, static_cast<char*>(data), bytes, bytes});
  stream->Enqueue([message] { return Advance(*message); });
  return kNcclSuccess;
}

}  // namespace

extern "C" {

// What tells it from NCCL.
__attribute__((visibility("default"))) void layover_nccl_stand_in() {}

__attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 22809;
  return kNcclSuccess;
}

__attribute__((visibility("default"))) int ncclGetUniqueId(NcclUniqueId* id) {
  static std::atomic<int> count{0};
  const std::string name = "layover-nccl-" + std::to_string(getpid()) + "-" + std::to_string(++count);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const sockaddr_un address = AddressOf(name);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), LengthOf(name)) != 0 || listen(fd, 1) != 0)
    return kSystemError;
  *id = {};
  std::memcpy(id->internal, name.data(), name.size());
  std::lock_guard lock(g_mutex);
  g_listeners[name] = fd;
  return kNcclSuccess;
}

__attribute__((visibility("default"))) int ncclCommInitRankConfig(Comm** made, int n_ranks, NcclUniqueId id, int rank,
                                                                  NcclConfig* config) {
  if (n_ranks != 2 || rank < 0 || rank > 1 || config == nullptr || config->magic != 0xcafebeef ||
      config->blocking != 0) {
    return kInvalidArgument;
  }
  auto owned = std::make_unique<Comm>();
  Comm* const comm = owned.get();
  const std::string name(id.internal, strnlen(id.internal, sizeof(id.internal)));
  std::lock_guard lock(g_mutex);
  if (rank == 0) {
    const auto found = g_listeners.find(name);
    if (found == g_listeners.end()) return kInvalidArgument;
    comm->listener = found->second;
    g_listeners.erase(found);
  }
  comm->joining = std::thread(JoinRanks, comm, rank, name);
  g_comms.push_back(std::move(owned));
  *made = comm;
  return kNcclInProgress;
}

__attribute__((visibility("default"))) int ncclCommGetAsyncError(Comm* comm, int* state) {
  *state = comm->state;
  return kNcclSuccess;
}

// The communicator stays, empty: a step of it may still be looked at.
__attribute__((visibility("default"))) int ncclCommAbort(Comm* comm) {
  comm->aborted = true;
  comm->joining.join();
  std::lock_guard lock(comm->mutex);
  if (comm->fd >= 0) close(comm->fd);
  if (comm->listener >= 0) close(comm->listener);
  comm->fd = comm->listener = -1;
  return kNcclSuccess;
}

__attribute__((visibility("default"))) int ncclSend(const void* data, size_t count, int type, int peer, Comm* comm,
                                                    CUstream_st* stream) {
  if (type != layover::gpu::kNcclInt8 || peer != 1) return kInvalidArgument;
  return Start(comm, true, const_cast<void*>(data), count, stream);
}

__attribute__((visibility("default"))) int ncclRecv(void* data, size_t count, int type, int peer, Comm* comm,
                                                    CUstream_st* stream) {
  if (type != layover::gpu::kNcclInt8 || peer != 0) return kInvalidArgument;
  return Start(comm, false, data, count, stream);
}

__attribute__((visibility("default"))) const char* ncclGetErrorString(int result) {
  thread_local char text[40];
  std::snprintf(text, sizeof(text), "stand-in error %d", result);
  return text;
}

}  // extern "C"
