// How emulated kernels are run: the order of threads and blocks, when asynchronous copies land, how late streams are,
// and what the pretended card has. One set for the process; a launch takes the one that stands when it runs. And what
// ran, for tests that must reach every kernel and every barrier.
#ifndef LAYOVER_KERNELS_EMULATION_SETTINGS_H_
#define LAYOVER_KERNELS_EMULATION_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace layover::emulation {

// Who runs next when a thread waits. Random order alone finds little, as warps stay within a few steps of each other;
// warp depth lets one warp run as far as it can.
enum class Schedule : uint8_t { kForward, kReverse, kWarpDepth, kRandom };

// When the bytes of an asynchronous copy arrive: at the wait that covers it (what is read before is poison), at once
// (what others still read is overwritten), or either, by the seed.
enum class AsyncCopies : uint8_t { kLazy, kEager, kMixed };

struct Settings {
  Schedule schedule = Schedule::kForward;
  AsyncCopies copies = AsyncCopies::kMixed;
  uint64_t seed = 1;
  size_t shared_bytes = 99 * 1024;  // dynamic shared memory a block may have: 99 KiB on sm_86, 89 and 120
  int multiprocessors = 4;          // what kernels that cut their work by the card are told
  size_t most_pinned = SIZE_MAX;    // more host memory than this in one piece is not page-locked
  // A barrier, or a wait for copies, that kernels run past: the bug that a test plants. "attention.cu:137", null: none.
  const char* left_out = nullptr;
  // Whatever a graph stands for is put together anew each time, and has to be the graph's to the last argument. A card
  // cannot do that.
  bool compare_graphs = true;
};

Settings CurrentSettings();
void SetSettings(const Settings& settings);

// Kernels by their names, barriers and waits for copies as left_out has them, and loads by Load16, which is how kernels
// read weights.
struct Ran {
  std::set<std::string> kernels;
  std::set<std::string> barriers;
  uint64_t loads_of_16_bytes = 0;
};
// What ran since the last call.
Ran TakeRan();

struct Launches {
  int64_t kernels = 0;  // put in a queue one by one
  int64_t graphs = 0;
};
// Since the last call, in all queues.
Launches TakeLaunches();

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_SETTINGS_H_
