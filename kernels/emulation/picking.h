// Who runs next: threads that can run are bits, a word a warp, and a schedule picks one of them.
#ifndef LAYOVER_KERNELS_EMULATION_PICKING_H_
#define LAYOVER_KERNELS_EMULATION_PICKING_H_

#include <cstdint>

#include "kernels/emulation/settings.h"

namespace layover::emulation {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxThreads = 1024;  // of a block, as on every card
inline constexpr int kMaxWarps = kMaxThreads / kWarpLanes;

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
  int Below(uint32_t n) { return static_cast<int>((Next() >> 32) * n >> 32); }

 private:
  uint64_t state_;
};

class ReadyThreads {
 public:
  void Clear() {
    for (uint32_t& warp : ready_) warp = 0;
  }
  void Add(int thread) { ready_[thread / kWarpLanes] |= 1u << thread % kWarpLanes; }
  void Remove(int thread) { ready_[thread / kWarpLanes] &= ~(1u << thread % kWarpLanes); }

  // The next after `running`, or -1 if nobody can run.
  int Pick(Schedule schedule, int running, Random* random) const {
    uint32_t warps = 0;
    for (int w = 0; w < kMaxWarps; ++w) warps |= ready_[w] != 0 ? 1u << w : 0;
    if (warps == 0) return -1;
    const int warp = running / kWarpLanes, lane = running % kWarpLanes;
    switch (schedule) {
      case Schedule::kForward: {
        const bool same = ready_[warp] >> lane > 1;  // one behind in this warp
        const int next = same ? warp : NextBit(warps, warp + 1);
        return next * kWarpLanes + NextBit(ready_[next], same ? lane + 1 : 0);
      }
      case Schedule::kReverse: {
        const bool same = (ready_[warp] & ~(~0u << lane)) != 0;  // one before
        const int next = same ? warp : PreviousBit(warps, warp);
        return next * kWarpLanes + PreviousBit(ready_[next], same ? lane : kWarpLanes);
      }
      case Schedule::kWarpDepth:
      case Schedule::kRandom: {
        const bool same = schedule == Schedule::kWarpDepth && ready_[warp] != 0;
        const int next = same ? warp : NextBit(warps, random->Below(kMaxWarps));
        return next * kWarpLanes + NextBit(ready_[next], random->Below(kWarpLanes));
      }
    }
    return -1;
  }

 private:
  // The lowest set bit of `bits` at or above `from`, else the lowest; bits is not 0.
  static int NextBit(uint32_t bits, int from) {
    const uint32_t above = from < 32 ? bits & (~0u << from) : 0;
    return __builtin_ctz(above != 0 ? above : bits);
  }
  // The highest below `from`, else the highest.
  static int PreviousBit(uint32_t bits, int from) {
    const uint32_t below = from <= 0 ? 0 : from >= 32 ? bits : bits & ~(~0u << from);
    return 31 - __builtin_clz(below != 0 ? below : bits);
  }

  uint32_t ready_[kMaxWarps] = {};
};

}  // namespace layover::emulation

#endif  // LAYOVER_KERNELS_EMULATION_PICKING_H_
