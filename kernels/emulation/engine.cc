// The engine has fixed arrays and no instrumented code: its own bookkeeping must not look like an access of a kernel.
#include "kernels/emulation/engine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "fmt/format.h"
#include "kernels/emulation/fiber.h"
#include "kernels/emulation/picking.h"
#include "kernels/emulation/shared_memory.h"

#if defined(LAYOVER_EMULATION_TSAN)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#define ORDER_AFTER(tag) __tsan_acquire(const_cast<void*>(static_cast<const void*>(tag)))
#define ORDER_BEFORE(tag) __tsan_release(const_cast<void*>(static_cast<const void*>(tag)))
#else
#define ORDER_AFTER(tag) static_cast<void>(tag)
#define ORDER_BEFORE(tag) static_cast<void>(tag)
#endif

namespace layover::emulation {

ThreadView* current_thread = nullptr;

namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr int kMaxCopies = 64;  // asynchronous copies of one thread in flight
constexpr int kMaxSites = 256;  // barriers of all kernels

enum class Waiting : uint8_t { kNo, kForBlock, kForWarp, kDone };

struct PendingCopy {
  void* to;
  const void* from;
  int group;
};

struct Thread {
  ThreadView view;
  Fiber* fiber = nullptr;
  Waiting waiting = Waiting::kNo;
  Site site;
  const char* what = "";
  uint32_t mask = 0;
  void* argument = nullptr;
  PendingCopy copies[kMaxCopies];
  int n_copies = 0;
  int group = 0;  // the one that the next commit closes
};

class Engine {
 public:
  std::string Run(const KernelLaunch& launch, const Settings& settings);

  void Barrier(Site site);
  void Rendezvous(const char* what, uint32_t mask, void* argument, Combine combine, Site site);
  void OrderWarpBefore() { ORDER_BEFORE(&warp_tags_[running_ / kWarpLanes]); }
  void OrderWarpAfter() { ORDER_AFTER(&warp_tags_[running_ / kWarpLanes]); }
  void* Static(const void* key, size_t bytes) { return shared_.Static(key, bytes); }
  void* Dynamic(int ordinal, size_t bytes, Site site);
  void Copy(void* to, const void* from, Site site);
  void Commit() { ++threads_[running_].group; }
  void Land(int pending);
  // Whether the barrier is left out; notes that it was reached.
  bool Passes(Site site);
  void AddBarriersTo(std::set<std::string>* names);
  [[noreturn]] void Fail(Site site, std::string what);

 private:
  static void Entry();
  void RunBlock(const Index3& block);
  void RunThread();
  int Pick() { return ready_.Pick(settings_.schedule, running_, &random_); }
  void Wait();
  void GiveWay();
  [[noreturn]] void Leave();
  std::string Stuck() const;
  std::string ThreadName(int thread) const;
  uint32_t WaitingLanes(int warp, uint32_t mask) const;

  KernelLaunch launch_;
  Settings settings_;
  Random random_{0};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber main_;
  Thread threads_[kMaxThreads];
  int n_threads_ = 0;
  int live_ = 0;
  int running_ = 0;
  int at_barrier_ = 0;
  Site barrier_site_;      // where they wait
  int barrier_first_ = 0;  // and who came first
  ReadyThreads ready_;
  size_t block_number_ = 0;
  SharedMemory shared_;
  std::string report_;
  Site sites_[kMaxSites];  // of barriers that were reached
  int n_sites_ = 0;
  std::string_view left_out_file_;
  int left_out_line_ = 0;
  // What ThreadSanitizer orders by: a barrier's, the warps' barriers', the launch's begin and (another one, else a
  // thread that ended early would seem ordered before one that began late) its end.
  char block_tags_[2] = {};
  char warp_tags_[kMaxWarps] = {};
  char begin_tag_ = 0;
  char end_tag_ = 0;
};

Engine& TheEngine() {
  static Engine& engine = *new Engine;  // threads of the process may outlive static objects
  return engine;
}

std::string Engine::Run(const KernelLaunch& launch, const Settings& settings) {
  const size_t n = launch.block.Count();
  if (n == 0 || n > kMaxThreads || launch.grid.Count() == 0) {
    return fmt::format("{}: a grid of {} blocks of {} threads", launch.name, launch.grid.Count(), n);
  }
  if (launch.shared_bytes > settings.shared_bytes) {
    return fmt::format("{}: {} bytes of dynamic shared memory, the card has {}", launch.name, launch.shared_bytes,
                       settings.shared_bytes);
  }
  launch_ = launch;
  settings_ = settings;
  random_ = Random(settings.seed);
  const std::string_view left_out = settings.left_out == nullptr ? ":0" : settings.left_out;
  left_out_file_ = left_out.substr(0, left_out.find(':'));
  left_out_line_ = std::atoi(left_out.data() + left_out_file_.size() + 1);
  report_.clear();
  shared_.BeginLaunch(launch.shared_bytes);
  n_threads_ = static_cast<int>(n);
  while (fibers_.size() < n) fibers_.push_back(std::make_unique<Fiber>(kStackBytes));
  main_.AdoptCurrentStack();
  ORDER_BEFORE(&begin_tag_);
  const size_t blocks = launch.grid.Count();
  const size_t shift = settings.schedule == Schedule::kRandom ? random_.Next() % blocks : 0;
  for (size_t i = 0; i < blocks && report_.empty(); ++i) {
    size_t b = (i + shift) % blocks;
    if (settings.schedule == Schedule::kReverse) b = blocks - 1 - i;
    const size_t plane = static_cast<size_t>(launch.grid.x) * launch.grid.y;
    block_number_ = i;
    RunBlock({static_cast<unsigned>(b % launch.grid.x), static_cast<unsigned>(b % plane / launch.grid.x),
              static_cast<unsigned>(b / plane)});
    shared_.EndBlock();
  }
  current_thread = nullptr;
  ORDER_AFTER(&end_tag_);
  return report_;
}

void Engine::RunBlock(const Index3& block) {
  const Extent3 extent = launch_.block;
  ready_.Clear();
  for (int i = 0; i < n_threads_; ++i) {
    Thread& thread = threads_[i];
    const unsigned u = static_cast<unsigned>(i);
    thread.view = {{u % extent.x, u / extent.x % extent.y, u / (extent.x * extent.y)}, block, extent, launch_.grid};
    // Stacks move on by one from block to block, so that threads of equal number are not taken for one thread.
    thread.fiber = fibers_[(static_cast<size_t>(i) + block_number_) % static_cast<size_t>(n_threads_)].get();
    thread.fiber->Start(Entry);
    thread.waiting = Waiting::kNo;
    thread.n_copies = 0;
    thread.group = 0;
    ready_.Add(i);
  }
  live_ = n_threads_;
  at_barrier_ = 0;
  running_ = settings_.schedule == Schedule::kReverse ? 0 : n_threads_ - 1;
  running_ = Pick();
  current_thread = &threads_[running_].view;
  threads_[running_].fiber->SwitchFrom(&main_);
}

void Engine::Entry() {
  Fiber::Arrived();
  TheEngine().RunThread();
}

void Engine::RunThread() {
  ORDER_AFTER(&begin_tag_);
  launch_.run(launch_.arguments);
  Thread& self = threads_[running_];
  if (self.n_copies > 0) Fail(self.site, "a thread ends with asynchronous copies outstanding");
  ORDER_BEFORE(&end_tag_);
  self.waiting = Waiting::kDone;
  ready_.Remove(running_);
  if (--live_ == 0) Leave();
  const int next = Pick();
  if (next < 0) {
    report_ = Stuck();
    Leave();
  }
  running_ = next;
  current_thread = &threads_[next].view;
  threads_[next].fiber->SwitchFrom(self.fiber, true);
  LAYOVER_CHECK(!"a finished thread runs again");
}

void Engine::Leave() {
  ORDER_BEFORE(&end_tag_);
  main_.SwitchFrom(threads_[running_].fiber, true);
  LAYOVER_CHECK(!"an abandoned thread runs again");
  __builtin_unreachable();
}

void Engine::Fail(Site site, std::string what) {
  report_ = fmt::format("{}: {}:{}: {}, by {}", launch_.name, site.file, site.line, what, ThreadName(running_));
  std::string().swap(what);  // this stack is abandoned
  Leave();
}

// The running thread waits; returns when it may go on.
void Engine::Wait() {
  const int self = running_;
  const int next = Pick();
  if (next < 0) {
    report_ = Stuck();
    Leave();
  }
  if (next == self) return;
  running_ = next;
  current_thread = &threads_[next].view;
  threads_[next].fiber->SwitchFrom(threads_[self].fiber);
}

// The running thread could go on; in random order somebody else may first.
void Engine::GiveWay() {
  if (settings_.schedule == Schedule::kRandom) Wait();
}

void Engine::Barrier(Site site) {
  Thread& self = threads_[running_];
  if (at_barrier_ == 0) {
    barrier_site_ = site;
    barrier_first_ = running_;
  } else if (barrier_site_.line != site.line || std::strcmp(barrier_site_.file, site.file) != 0) {
    // Named first: what is still alive when a stack is abandoned is lost.
    std::string what = fmt::format("threads meet at different barriers: {} waits at {}:{}", ThreadName(barrier_first_),
                                   barrier_site_.file, barrier_site_.line);
    Fail(site, std::move(what));
  }
  if (live_ < n_threads_) Fail(site, "a barrier after threads of the block have ended");
  char* const tag = &block_tags_[block_number_ % 2];
  ORDER_BEFORE(tag);
  if (++at_barrier_ < n_threads_) {
    self.waiting = Waiting::kForBlock;
    self.site = site;
    self.what = "__syncthreads";
    ready_.Remove(running_);
    Wait();
  } else {
    at_barrier_ = 0;
    for (int i = 0; i < n_threads_; ++i) {
      threads_[i].waiting = Waiting::kNo;
      ready_.Add(i);
    }
    GiveWay();
  }
  ORDER_AFTER(tag);
}

uint32_t Engine::WaitingLanes(int warp, uint32_t mask) const {
  uint32_t waiting = 0;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (mask >> lane & 1 && threads_[warp * kWarpLanes + lane].waiting == Waiting::kForWarp) waiting |= 1u << lane;
  }
  return waiting;
}

void Engine::Rendezvous(const char* what, uint32_t mask, void* argument, Combine combine, Site site) {
  Thread& self = threads_[running_];
  const int warp = running_ / kWarpLanes;
  const int lane = running_ % kWarpLanes;
  if ((mask >> lane & 1) == 0) Fail(site, fmt::format("the mask {:#x} of {} is without the caller", mask, what));
  self.argument = argument;
  // All that can be checked by looking at the others is checked by the last one to come.
  if ((WaitingLanes(warp, mask) | 1u << lane) != mask) {
    for (int i = 0; i < kWarpLanes; ++i) {
      if ((mask >> i & 1) == 0) continue;
      const int other = warp * kWarpLanes + i;
      if (other >= n_threads_ || threads_[other].waiting == Waiting::kDone) {
        Fail(site, fmt::format("the mask {:#x} of {} names lane {}, which {}", mask, what, i,
                               other >= n_threads_ ? "is not there" : "has ended"));
      }
    }
    self.waiting = Waiting::kForWarp;
    self.site = site;
    self.what = what;
    self.mask = mask;
    ready_.Remove(running_);
    Wait();
    return;
  }
  void* lanes[kWarpLanes] = {};
  for (int i = 0; i < kWarpLanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    Thread& other = threads_[warp * kWarpLanes + i];
    lanes[i] = other.argument;
    if (i == lane) continue;
    if (other.mask != mask || std::strcmp(other.what, what) != 0) {
      Fail(site, fmt::format("lanes of one warp meet for different things: {} of mask {:#x} here, {} of mask {:#x} at "
                             "{}:{}",
                             what, mask, other.what, other.mask, other.site.file, other.site.line));
    }
    other.waiting = Waiting::kNo;
    ready_.Add(warp * kWarpLanes + i);
  }
  if (combine != nullptr) combine(lanes, mask);
  GiveWay();
}

std::string_view FileName(Site site) {
  const std::string_view file = site.file;
  return file.substr(file.rfind('/') + 1);
}

bool Engine::Passes(Site site) {
  int i = 0;
  while (i < n_sites_ && (sites_[i].line != site.line || sites_[i].file != site.file)) ++i;
  if (i == n_sites_ && n_sites_ < kMaxSites) sites_[n_sites_++] = site;
  return site.line == left_out_line_ && FileName(site) == left_out_file_;
}

void Engine::AddBarriersTo(std::set<std::string>* names) {
  for (int i = 0; i < n_sites_; ++i) {
    names->insert(fmt::format("{}:{}", FileName(sites_[i]), sites_[i].line));
  }
  n_sites_ = 0;
}

std::string Engine::ThreadName(int thread) const {
  const Index3& t = threads_[thread].view.thread;
  const Index3& b = threads_[thread].view.block;
  return fmt::format("thread ({}, {}, {}), lane {} of warp {}, block ({}, {}, {})", t.x, t.y, t.z, thread % kWarpLanes,
                     thread / kWarpLanes, b.x, b.y, b.z);
}

std::string Engine::Stuck() const {
  std::string text = fmt::format("{}: all threads wait: ", launch_.name);
  Site last;
  int named = 0, waiting = 0;
  for (int i = 0; i < n_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.waiting == Waiting::kDone) continue;
    ++waiting;
    if (named == 4 || (named > 0 && last.line == thread.site.line)) continue;
    last = thread.site;
    ++named;
    text += fmt::format("{} in {} at {}:{}; ", ThreadName(i), thread.what, thread.site.file, thread.site.line);
  }
  return text + fmt::format("{} of {} wait, the others have ended", waiting, n_threads_);
}

void* Engine::Dynamic(int ordinal, size_t bytes, Site site) {
  std::string error;
  void* const piece = shared_.Dynamic(ordinal, bytes, &error);
  if (piece == nullptr) Fail(site, std::move(error));
  return piece;
}

// ------------------------------------------------------------------------------------------------ asynchronous copies

void Engine::Copy(void* to, const void* from, Site site) {
  Thread& self = threads_[running_];
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    Fail(site, "an asynchronous copy of 16 bytes that is not aligned to 16");
  }
  if (self.n_copies == kMaxCopies) Fail(site, "too many asynchronous copies in flight");
  self.site = site;
  const bool eager =
      settings_.copies == AsyncCopies::kEager || (settings_.copies == AsyncCopies::kMixed && random_.Next() % 2 == 0);
  if (eager) {
    std::memcpy(to, from, 16);
  } else {
    Poison(to, 16);
    self.copies[self.n_copies++] = {to, from, self.group};
  }
}

void Engine::Land(int pending) {
  Thread& self = threads_[running_];
  int kept = 0;
  for (int i = 0; i < self.n_copies; ++i) {
    const PendingCopy& copy = self.copies[i];
    if (copy.group < self.group - pending) {
      std::memcpy(copy.to, copy.from, 16);
    } else {
      self.copies[kept++] = copy;
    }
  }
  self.n_copies = kept;
}

std::mutex launch_mutex;
std::set<std::string> kernels_run;  // under launch_mutex
uint64_t loads_run = 0;             // under launch_mutex: kernels run under it
std::mutex settings_mutex;
Settings current_settings;

}  // namespace

Settings CurrentSettings() {
  std::lock_guard lock(settings_mutex);
  return current_settings;
}
void SetSettings(const Settings& settings) {
  std::lock_guard lock(settings_mutex);
  current_settings = settings;
}

std::string RunKernel(const KernelLaunch& launch, const Settings& settings) {
  std::lock_guard lock(launch_mutex);
  kernels_run.insert(launch.name);
  return TheEngine().Run(launch, settings);
}

Ran TakeRan() {
  std::lock_guard lock(launch_mutex);
  Ran ran;
  ran.kernels.swap(kernels_run);
  ran.loads_of_16_bytes = std::exchange(loads_run, 0);
  TheEngine().AddBarriersTo(&ran.barriers);
  return ran;
}

void BlockBarrier(Site site) {
  if (!TheEngine().Passes(site)) TheEngine().Barrier(site);
}
void WarpRendezvous(const char* what, uint32_t mask, void* argument, Combine combine, Site site) {
  TheEngine().Rendezvous(what, mask, argument, combine, site);
}
void WarpBarrier(uint32_t mask, Site site) {
  Engine& engine = TheEngine();
  if (engine.Passes(site)) return;
  engine.OrderWarpBefore();
  engine.Rendezvous("__syncwarp", mask, nullptr, nullptr, site);
  engine.OrderWarpAfter();
}
void* StaticShared(const void* key, size_t bytes) {
  return TheEngine().Static(key, bytes);
}
void* DynamicShared(int ordinal, size_t bytes, Site site) {
  return TheEngine().Dynamic(ordinal, bytes, site);
}
void CopyAsync16(void* shared, const void* global, Site site) {
  TheEngine().Copy(shared, global, site);
}
void CommitCopies() {
  TheEngine().Commit();
}
void WaitCopies(int pending, Site site) {
  if (!TheEngine().Passes(site)) TheEngine().Land(pending);
}
void CountLoad16() {
  ++loads_run;
}
void OrderAtomic(const void* word) {
  ORDER_AFTER(word);
  ORDER_BEFORE(word);
}
void Misuse(Site site, std::string what) {
  TheEngine().Fail(site, std::move(what));
}

}  // namespace layover::emulation
