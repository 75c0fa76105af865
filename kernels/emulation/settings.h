// How emulated kernels are run: the order of threads and blocks, when asynchronous copies land, how late streams are,
// and what the pretended card has. One set for the process; a launch takes the one that stands when it runs.
#ifndef LAYOVER_KERNELS_EMULATION_SETTINGS_H_
#define LAYOVER_KERNELS_EMULATION_SETTINGS_H_

#include <cstddef>
#include <cstdint>

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
};

Settings CurrentSettings();
void SetSettings(const Settings& settings);

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_SETTINGS_H_
