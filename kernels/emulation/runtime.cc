// Queues, memory and cards of the emulation. Nothing runs when it is put in a queue: entries wait until somebody
// synchronises or asks for an event, and then those of all queues run in an order that the seed chooses, each queue's
// own in theirs. Device memory is of exact size, so that AddressSanitizer sees an overrun, and begins as poison.
#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "kernels/emulation/engine.h"
#include "kernels/emulation/foreign_stream.h"
#include "kernels/emulation/host_copies.h"

namespace layover::emulation {
namespace {

constexpr int kCards = 8;  // so many emu:N there are
constexpr int64_t kCardBytes = int64_t{2} << 30;

using Operation = std::function<std::string()>;  // answers with what went wrong, or nothing

class EmulatedQueue;

// All queues of the process. Entries run under the lock: one at a time, as their kernels do.
struct Queues {
  std::mutex mutex;
  std::vector<EmulatedQueue*> all;
  uint64_t turn = 0;
  std::map<uintptr_t, size_t> pinned;           // host memory, bytes by address
  std::optional<std::vector<HostCopy>> copies;  // while they are watched
  Launches launches;
};
Queues& TheQueues() {
  static Queues& queues = *new Queues;
  return queues;
}

// A card goes on with what another library has queued although the host has gone to sleep, and the other side waits for
// it.
void StartPump();

class EmulatedEvent : public gpu::QueueEvent {
 public:
  bool Done() const override;
  std::shared_ptr<bool> done = std::make_shared<bool>(false);
};

// One entry of a queue that the seed chooses. With the lock held; false if all are idle or wait for something outside.
bool RunOneOfAny();

// One thing that a queue is given.
struct Task {
  std::string what;
  std::string arguments;  // bytes
  Operation run;
};

class EmulatedGraph : public gpu::QueueGraph {
 public:
  EmulatedGraph(EmulatedQueue& queue, std::vector<Task> tasks) : queue_(queue), tasks_(std::move(tasks)) {}
  void Launch() override;
  std::string DifferenceTo(const gpu::QueueGraph& other) const override;

 private:
  EmulatedQueue& queue_;
  const std::vector<Task> tasks_;
};

// Whose capture this thread is in the middle of.
thread_local EmulatedQueue* capturing_here = nullptr;

class EmulatedQueue : public gpu::Queue, public CUstream_st {
 public:
  EmulatedQueue() {
    std::lock_guard lock(TheQueues().mutex);
    TheQueues().all.push_back(this);
  }
  ~EmulatedQueue() override {
    std::lock_guard lock(TheQueues().mutex);
    while (!waiting_.empty()) {
      if (!RunOne()) (void)RunOneOfAny();
    }
    std::erase(TheQueues().all, this);
  }

  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    if (Refused("a copy to the card")) return;
    Watch(host, bytes, false);
    Copy("copy to the card", device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    if (Refused("a copy to the host")) return;
    Watch(host, bytes, true);
    Copy("copy to the host", host, device, bytes);
  }
  void CopyOnDevice(void* to, const void* from, size_t bytes) override { Copy("copy on the card", to, from, bytes); }
  void Fill(void* device, uint8_t byte, size_t bytes) override {
    Put({"fill", fmt::format("{} {} {}", device, byte, bytes), [=] {
           if (bytes > 0) std::memset(device, byte, bytes);
           return std::string();
         }});
  }
  std::unique_ptr<gpu::QueueEvent> Record() override {
    auto event = std::make_unique<EmulatedEvent>();
    if (Refused("an event")) return event;
    std::lock_guard lock(TheQueues().mutex);
    waiting_.push_back({.reached = event->done});
    return event;
  }
  void WaitFor(const gpu::QueueEvent& event) override {
    if (Refused("another queue's event")) return;
    std::lock_guard lock(TheQueues().mutex);
    waiting_.push_back({.awaited = static_cast<const EmulatedEvent&>(event).done});
  }
  absl::Status Synchronize() override;

  absl::Status BeginCapture() override {
    LAYOVER_CHECK(!capturing_ && capturing_here == nullptr);
    std::lock_guard lock(TheQueues().mutex);
    if (!error_.empty()) return Internal("{}", error_);
    capturing_ = true;
    capturing_here = this;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<gpu::QueueGraph>> EndCapture() override {
    LAYOVER_CHECK(capturing_);
    std::lock_guard lock(TheQueues().mutex);
    capturing_ = false;
    capturing_here = nullptr;
    std::vector<Task> tasks = std::exchange(captured_, {});
    if (!error_.empty()) return Internal("{}", error_);
    return std::make_unique<EmulatedGraph>(*this, std::move(tasks));
  }
  bool ComparesGraphs() const override { return CurrentSettings().compare_graphs; }
  // What a card does not do in the middle of a capture is an error of the queue, and so of the test.
  bool Refused(std::string_view what) {
    if (!capturing_) return false;
    std::lock_guard lock(TheQueues().mutex);
    if (error_.empty()) error_ = fmt::format("{} in a graph", what);
    return true;
  }
  bool capturing() const { return capturing_; }

  void Put(Task task) {
    std::lock_guard lock(TheQueues().mutex);
    if (capturing_) {
      captured_.push_back(std::move(task));
    } else {
      waiting_.push_back({.operation = std::move(task.run)});
    }
  }
  void PutAll(const std::vector<Task>& tasks) {
    LAYOVER_CHECK(!capturing_);
    std::lock_guard lock(TheQueues().mutex);
    for (const Task& task : tasks) waiting_.push_back({.operation = task.run});
    ++TheQueues().launches.graphs;
  }
  void Enqueue(std::function<ForeignStep()> step) override {
    std::lock_guard lock(TheQueues().mutex);
    waiting_.push_back({.foreign = std::move(step)});
    foreign_ = true;
    StartPump();
  }
  bool foreign() const { return foreign_; }
  bool idle() const { return waiting_.empty(); }
  // With the lock held. False if the first entry waits: for another queue's event, or as another library's for its
  // other side.
  bool RunOne() {
    const bool runs = error_.empty();  // after an error nothing runs, as on a card; events come true all the same
    const Entry& front = waiting_.front();
    if (front.awaited != nullptr && !*front.awaited) return false;
    if (runs && front.foreign != nullptr && front.foreign() == ForeignStep::kWaiting) return false;
    if (front.reached != nullptr) *front.reached = true;
    const Operation operation = std::move(waiting_.front().operation);
    waiting_.pop_front();
    if (runs && operation != nullptr) error_ = operation();
    return true;
  }

 private:
  static void Watch(const void* host, size_t bytes, bool to_host) {
    Queues& queues = TheQueues();
    std::lock_guard lock(queues.mutex);
    if (!queues.copies.has_value()) return;
    const auto begin = reinterpret_cast<uintptr_t>(host);
    const auto behind = queues.pinned.upper_bound(begin);
    const auto region = behind == queues.pinned.begin() ? behind : std::prev(behind);
    const bool pinned = region != behind && begin + bytes <= region->first + region->second;
    queues.copies->push_back({to_host, bytes, pinned});
  }
  void Copy(std::string_view what, void* to, const void* from, size_t bytes) {
    Put({std::string(what), fmt::format("{} {} {}", to, from, bytes), [=] {
           if (bytes > 0) std::memcpy(to, from, bytes);
           return std::string();
         }});
  }

  struct Entry {  // one of
    Operation operation;
    std::function<ForeignStep()> foreign;
    std::shared_ptr<bool> reached;  // an event
    std::shared_ptr<bool> awaited;  // an event, of whatever queue
  };
  std::deque<Entry> waiting_;
  bool foreign_ = false;  // another library uses it; no kernel of ours is put in it
  std::string error_;
  bool capturing_ = false;  // of the queue's own thread
  std::vector<Task> captured_;
};

void EmulatedGraph::Launch() {
  queue_.PutAll(tasks_);
}

std::string EmulatedGraph::DifferenceTo(const gpu::QueueGraph& other) const {
  const std::vector<Task>& now = static_cast<const EmulatedGraph&>(other).tasks_;
  for (size_t i = 0; i < std::min(tasks_.size(), now.size()); ++i) {
    if (tasks_[i].what != now[i].what) return fmt::format("entry {} is {}, was {}", i, now[i].what, tasks_[i].what);
    if (tasks_[i].arguments != now[i].arguments) return fmt::format("entry {}, {}, has other arguments", i, now[i].what);
  }
  if (tasks_.size() != now.size()) return fmt::format("{} entries, were {}", now.size(), tasks_.size());
  return {};
}

bool RunOneOfAny() {
  Queues& queues = TheQueues();
  std::vector<EmulatedQueue*> busy;
  for (EmulatedQueue* queue : queues.all) {
    if (!queue->idle()) busy.push_back(queue);
  }
  if (busy.empty()) return false;
  uint64_t z = CurrentSettings().seed + ++queues.turn * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  const size_t first = (z ^ z >> 31) % busy.size();
  for (size_t i = 0; i < busy.size(); ++i) {
    if (busy[(first + i) % busy.size()]->RunOne()) return true;
  }
  return false;
}

void StartPump() {
  static const bool started = [] {
    std::thread([] {
      while (true) {
        {
          std::lock_guard lock(TheQueues().mutex);
          for (EmulatedQueue* queue : TheQueues().all) {
            if (queue->foreign() && !queue->idle()) (void)queue->RunOne();
          }
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }).detach();
    return true;
  }();
  (void)started;
}

absl::Status EmulatedQueue::Synchronize() {
  if (Refused("waiting")) return Internal("waiting in a graph");
  std::unique_lock lock(TheQueues().mutex);
  while (!waiting_.empty()) {
    if (RunOneOfAny()) continue;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  return error_.empty() ? absl::OkStatus() : Internal("{}", error_);
}

// Whoever asks again and again gets there.
bool EmulatedEvent::Done() const {
  std::lock_guard lock(TheQueues().mutex);
  if (!*done) RunOneOfAny();
  return *done;
}

}  // namespace

void WatchHostCopies() {
  std::lock_guard lock(TheQueues().mutex);
  TheQueues().copies.emplace();
}

std::vector<HostCopy> TakeHostCopies() {
  std::lock_guard lock(TheQueues().mutex);
  return std::exchange(TheQueues().copies, std::nullopt).value_or(std::vector<HostCopy>());
}

void EnqueueKernel(gpu::Queue* queue, KernelEntry entry) {
  auto* const emulated = static_cast<EmulatedQueue*>(queue);
  if (!emulated->capturing()) {
    std::lock_guard lock(TheQueues().mutex);
    ++TheQueues().launches.kernels;
  }
  const std::string name = entry.name;
  std::string arguments = std::move(entry.arguments);
  emulated->Put({name, std::move(arguments), [entry = std::move(entry)] {
                   KernelLaunch launch;
                   launch.name = entry.name;
                   launch.grid = {entry.grid.x, entry.grid.y, entry.grid.z};
                   launch.block = {static_cast<unsigned>(entry.threads), 1, 1};
                   launch.shared_bytes = entry.shared_bytes;
                   launch.run = [](void* body) { (*static_cast<const std::function<void()>*>(body))(); };
                   launch.arguments = const_cast<std::function<void()>*>(&entry.body);
                   return RunKernel(launch, CurrentSettings());
                 }});
}

Launches TakeLaunches() {
  std::lock_guard lock(TheQueues().mutex);
  return std::exchange(TheQueues().launches, {});
}

}  // namespace layover::emulation

namespace layover::gpu {

absl::StatusOr<CardInfo> OpenCard(int index) {
  if (index < 0 || index >= emulation::kCards) return Unavailable("there are {} emulated cards", emulation::kCards);
  const emulation::Settings settings = emulation::CurrentSettings();
  return CardInfo{"emulated card", "emulated", settings.multiprocessors, settings.shared_bytes, emulation::kCardBytes};
}

void UseCard(int) {}

absl::StatusOr<void*> AllocateOnDevice(int, size_t bytes) {
  if (emulation::capturing_here != nullptr) (void)emulation::capturing_here->Refused("memory allocated");
  void* memory = nullptr;
  if (bytes > static_cast<size_t>(emulation::kCardBytes) || posix_memalign(&memory, 256, bytes > 0 ? bytes : 1) != 0) {
    return ResourceExhausted("no memory on the card for {} bytes", bytes);
  }
  std::memset(memory, 0xff, bytes);
  return memory;
}

void FreeOnDevice(int, void* memory) {
  if (emulation::capturing_here != nullptr) (void)emulation::capturing_here->Refused("memory freed");
  {
    std::lock_guard lock(emulation::TheQueues().mutex);
    while (emulation::RunOneOfAny()) {
    }
  }
  std::free(memory);
}

CUstream_st* CudaStream(Queue* queue) {
  return static_cast<emulation::EmulatedQueue*>(queue);
}

bool PinHostMemory(int, void* memory, size_t bytes) {
  emulation::Queues& queues = emulation::TheQueues();
  std::lock_guard lock(queues.mutex);
  if (bytes > emulation::CurrentSettings().most_pinned) return false;
  LAYOVER_CHECK(queues.pinned.emplace(reinterpret_cast<uintptr_t>(memory), bytes).second);
  return true;
}

void UnpinHostMemory(int, void* memory) {
  emulation::Queues& queues = emulation::TheQueues();
  std::lock_guard lock(queues.mutex);
  LAYOVER_CHECK(queues.pinned.erase(reinterpret_cast<uintptr_t>(memory)) == 1);
}

std::unique_ptr<Queue> NewQueue(int, QueueRank) {
  return std::make_unique<emulation::EmulatedQueue>();
}

const char* BackEndKind() {
  return "emu";
}

}  // namespace layover::gpu
