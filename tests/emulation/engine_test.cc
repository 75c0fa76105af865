// The emulation itself: what collectives compute, that misuse is reported with its line, that bugs planted in kernels
// are caught, and that a seed means one run.
#include <gtest/gtest.h>

#ifdef __SANITIZE_THREAD__
#include <unistd.h>
#endif

#include <numeric>
#include <vector>

#include "kernels/cuda/gpu.h"

#ifdef __SANITIZE_THREAD__
// A race ends who runs it: the test, or the child of a test that plants one.
extern "C" const char* __tsan_default_options() {
  return "halt_on_error=1";
}
#endif

namespace layover::emulation {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kForward, Schedule::kReverse, Schedule::kWarpDepth, Schedule::kRandom};
constexpr uint32_t kAll = 0xffffffffu;

// Runs `body` as a kernel; its report, or nothing.
template <typename Body>
std::string RunWith(const Settings& settings, unsigned blocks, unsigned threads, size_t shared_bytes, Body body) {
  KernelLaunch launch;
  launch.name = "test";
  launch.grid.x = blocks;
  launch.block.x = threads;
  launch.shared_bytes = shared_bytes;
  launch.run = [](void* arguments) { (*static_cast<Body*>(arguments))(); };
  launch.arguments = &body;
  return RunKernel(launch, settings);
}

// The same in every schedule, five seeds each; reports must be equal, and the first is the answer.
template <typename Body>
std::string RunAll(unsigned blocks, unsigned threads, Body body) {
  std::string first;
  for (const Schedule schedule : kSchedules) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      Settings settings;
      settings.schedule = schedule;
      settings.seed = seed;
      const std::string report = RunWith(settings, blocks, threads, 1 << 14, body);
      if (schedule == Schedule::kForward && seed == 1) first = report;
      EXPECT_EQ(report.empty(), first.empty()) << report << first;
    }
  }
  return first;
}

// Among threads of a kernel, by the test itself: what is done with it is no race.
class Ordered {
 public:
  Ordered() { OrderAtomic(&tag_); }
  ~Ordered() { OrderAtomic(&tag_); }

 private:
  static inline char tag_ = 0;
};

bool Mentions(const std::string& report, const std::string& text, int line = 0) {
  return report.find(text) != std::string::npos &&
         (line == 0 || report.find(fmt::format("engine_test.cc:{}", line)) != std::string::npos);
}

TEST(Engine, ThreadsOfAllBlocksRunOnce) {
  for (const unsigned threads : {1u, 31u, 32u, 33u, 250u, 1024u}) {
    std::vector<int> runs(threads * 3);
    EXPECT_EQ(RunWith({}, 3, threads, 0, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; }), "");
    EXPECT_EQ(runs, std::vector<int>(threads * 3, 1));
  }
}

TEST(Engine, ShufflesBallotsAndBarriers) {
  EXPECT_EQ(RunAll(2, 128,
                   [] {
                     const int lane = static_cast<int>(threadIdx.x % 32);
                     ASSERT_EQ(__shfl_xor_sync(kAll, lane, 5), lane ^ 5);
                     ASSERT_EQ(__shfl_sync(kAll, 10 * lane, 7), 70);
                     ASSERT_EQ(__shfl_up_sync(kAll, lane, 3), lane < 3 ? lane : lane - 3);
                     ASSERT_EQ(__ballot_sync(kAll, lane % 2 == 0), 0x55555555u);
                     if (lane < 16) {
                       ASSERT_EQ(__shfl_xor_sync(0xffffu, lane, 8), lane ^ 8);
                     }
                     __syncwarp();
                     GPU_SHARED(int, values, [128]);
                     values[threadIdx.x] = static_cast<int>(threadIdx.x);
                     __syncthreads();
                     ASSERT_EQ(values[127 - threadIdx.x], 127 - static_cast<int>(threadIdx.x));
                   }),
            "");
}

// Integer products of fragments, against a plain loop.
TEST(Engine, MatrixInstructions) {
  alignas(16) int8_t a[16][32], b[8][32];
  for (int i = 0; i < 16 * 32; ++i) a[i / 32][i % 32] = static_cast<int8_t>(i * 37 % 255 - 127);
  for (int i = 0; i < 8 * 32; ++i) b[i / 32][i % 32] = static_cast<int8_t>(i * 91 % 251 - 125);
  EXPECT_EQ(RunAll(1, 32,
                   [&] {
                     const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
                     uint32_t fa[4], fb[2];
                     // Matrices: rows 0-7 and 8-15 of columns 0-15, then of columns 16-31.
                     gpu::LoadMatrices4(fa, &a[lane % 16][lane / 16 * 16]);
                     std::memcpy(&fb[0], &b[g][4 * t], 4);
                     std::memcpy(&fb[1], &b[g][16 + 4 * t], 4);
                     int32_t d[4] = {1, 2, 3, 4}, halves[4] = {1, 2, 3, 4};
                     gpu::MmaS8K32(d, fa, fb);
                     gpu::MmaS8K16(halves, {fa[0], fa[1]}, fb[0]);
                     gpu::MmaS8K16(halves, {fa[2], fa[3]}, fb[1]);
                     for (int i = 0; i < 4; ++i) {
                       int32_t want = i + 1;
                       for (int k = 0; k < 32; ++k) want += a[g + i / 2 * 8][k] * b[2 * t + i % 2][k];
                       ASSERT_EQ(d[i], want);
                       ASSERT_EQ(halves[i], want);
                     }
                     ASSERT_EQ(gpu::Dot4(fa[0], fb[0], 5),
                               5 + a[g][4 * t] * b[g][4 * t] + a[g][4 * t + 1] * b[g][4 * t + 1] +
                                   a[g][4 * t + 2] * b[g][4 * t + 2] + a[g][4 * t + 3] * b[g][4 * t + 3]);
                   }),
            "");
}

TEST(Engine, SameSeedSameRun) {
  const auto order = [](uint64_t seed) {
    std::vector<unsigned> ran;
    Settings settings;
    settings.schedule = Schedule::kRandom;
    settings.seed = seed;
    EXPECT_EQ(RunWith(settings, 2, 96, 0,
                      [&] {
                        __syncthreads();
                        const Ordered ordered;
                        ran.push_back(threadIdx.x);
                      }),
              "");
    return ran;
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
}

// ---------------------------------------------------------------------------------------------------- reported misuse

TEST(Misuse, DifferentBarriers) {
  const int line = __LINE__ + 3;
  const std::string report = RunAll(1, 64, [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  EXPECT_TRUE(Mentions(report, "different barriers", line)) << report;
}

TEST(Misuse, BarrierThatSomeNeverReach) {
  const int line = __LINE__ + 2;
  const std::string report = RunAll(1, 64, [] {
    if (threadIdx.x != 5) __syncthreads();
  });
  EXPECT_TRUE(Mentions(report, "", line)) << report;
}

TEST(Misuse, CollectiveWithoutAllItsLanes) {
  const int line = __LINE__ + 2;
  const std::string report = RunAll(1, 64, [] {
    if (threadIdx.x % 32 < 20) __shfl_xor_sync(kAll, 1, 1);
  });
  EXPECT_TRUE(Mentions(report, "__shfl_xor_sync", line)) << report;
}

TEST(Misuse, MaskWithoutTheCaller) {
  EXPECT_TRUE(Mentions(RunAll(1, 32, [] { __syncwarp(1u << 3); }), "without the caller"));
}

TEST(Misuse, MaskOfLanesThatAreNotThere) {
  EXPECT_TRUE(Mentions(RunAll(1, 16, [] { __syncwarp(kAll); }), "is not there"));
}

TEST(Misuse, LanesMeetForDifferentThings) {
  const std::string report = RunAll(1, 32, [] {
    if (threadIdx.x % 2 == 0) {
      __syncwarp();
    } else {
      __ballot_sync(kAll, true);
    }
  });
  EXPECT_TRUE(Mentions(report, "different things")) << report;
}

TEST(Misuse, SharedMemoryBeyondTheLaunch) {
  const std::string report = RunAll(1, 32, [] {
    gpu::SharedCarver carver;
    carver.Take<float>(2048);
    carver.Take<float>(2049);
  });
  EXPECT_TRUE(Mentions(report, "dynamic shared memory")) << report;
}

TEST(Misuse, TooMuchOfEverything) {
  EXPECT_TRUE(Mentions(RunWith({}, 1, 1025, 0, [] {}), "1025 threads"));
  EXPECT_TRUE(Mentions(RunWith({}, 1, 32, 100 * 1024, [] {}), "dynamic shared memory"));
}

TEST(Misuse, UnalignedAccesses) {
  alignas(16) char global[64] = {};
  EXPECT_TRUE(Mentions(RunAll(1, 32, [&] { gpu::Load16<uint4>(global + 4); }), "not aligned"));
  EXPECT_TRUE(Mentions(RunAll(1, 32,
                              [&] {
                                gpu::SharedCarver carver;
                                gpu::CopyAsync16(carver.Take<char>(64) + 8, global);
                              }),
                       "not aligned"));
}

TEST(Misuse, EndWithCopiesOutstanding) {
  alignas(16) char global[16] = {};
  Settings settings;
  settings.copies = AsyncCopies::kLazy;
  const std::string report = RunWith(settings, 1, 1, 1024, [&] {
    gpu::SharedCarver carver;
    gpu::CopyAsync16(carver.Take<char>(16), global);
  });
  EXPECT_TRUE(Mentions(report, "outstanding")) << report;
}

TEST(Misuse, AReportedLaunchLeavesTheEngineUsable) {
  RunAll(1, 64, [] {
    if (threadIdx.x != 5) __syncthreads();
  });
  int runs = 0;
  EXPECT_EQ(RunWith({}, 2, 32, 0,
                    [&] {
                      const Ordered ordered;
                      ++runs;
                    }),
            "");
  EXPECT_EQ(runs, 64);
}

// -------------------------------------------------------------------------------------------------------- planted bugs

struct Caught {
  int wrong = 0;
  int runs = 0;
};

// How often a block's sum of 0 ... 127 comes out wrong. `first` and `second` say whether the two barriers are there.
Caught SumWithBarriers(Schedule schedule, bool first, bool second) {
  Caught caught;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Settings settings;
    settings.schedule = schedule;
    settings.seed = seed;
    float sums[2] = {};
    EXPECT_EQ(RunWith(settings, 1, 128, 0,
                      [&] {
                        GPU_SHARED(float, partial, [4]);
                        for (int round = 0; round < 2; ++round) {
                          float value = static_cast<float>(threadIdx.x) + 1000.0f * static_cast<float>(round);
                          for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
                          if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
                          if (first) __syncthreads();
                          const float sum = partial[0] + partial[1] + partial[2] + partial[3];
                          if (threadIdx.x == 40) sums[round] = sum;
                          if (second) __syncthreads();
                        }
                      }),
              "");
    ++caught.runs;
    if (!(sums[0] == 8128.0f) || !(sums[1] == 136128.0f)) ++caught.wrong;
  }
  return caught;
}

#ifdef __SANITIZE_THREAD__
// Also in the schedule in which the first one does no harm.
TEST(PlantedBugs, MissingBarriersAreRaces) {
  EXPECT_EQ(SumWithBarriers(Schedule::kForward, true, true).wrong, 0);
  for (const bool first : {false, true}) {
    EXPECT_EXIT(
        {
          SumWithBarriers(Schedule::kForward, first, !first);
          ::_exit(0);
        },
        testing::ExitedWithCode(66), "data race");
  }
}
#else
TEST(PlantedBugs, MissingBarriersAreCaught) {
  int without_first = 0, without_second = 0;
  for (const Schedule schedule : kSchedules) {
    EXPECT_EQ(SumWithBarriers(schedule, true, true).wrong, 0);
    without_first += SumWithBarriers(schedule, false, true).wrong;
    without_second += SumWithBarriers(schedule, true, false).wrong;
  }
  EXPECT_GT(without_first, 20);
  EXPECT_GT(without_second, 5);
}
#endif

// A double buffer filled by asynchronous copies: waits for `kPending` groups too many, or no barrier before a buffer is
// filled again.
template <int kPending, bool kBarrier>
int WrongPipelines(AsyncCopies copies) {
  alignas(16) float global[8][32];
  for (int i = 0; i < 256; ++i) global[i / 32][i % 32] = static_cast<float>(i);
  int wrong = 0;
  for (const Schedule schedule : kSchedules) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      Settings settings;
      settings.schedule = schedule;
      settings.copies = copies;
      settings.seed = seed;
      float sums[64] = {};
      EXPECT_EQ(RunWith(settings, 1, 64, 1024,
                        [&] {
                          gpu::SharedCarver carver;
                          float* buffers = carver.Take<float>(64);
                          const unsigned t = threadIdx.x;
                          const auto fetch = [&](int step) {
                            if (step < 8 && t < 8)
                              gpu::CopyAsync16(buffers + step % 2 * 32 + 4 * t, &global[step][4 * t]);
                            gpu::CommitCopies();
                          };
                          fetch(0);
                          for (int step = 0; step < 8; ++step) {
                            fetch(step + 1);
                            gpu::WaitCopies<kPending>();
                            __syncthreads();
                            for (int i = 0; i < 32; ++i) sums[t] += buffers[step % 2 * 32 + i];
                            if (kBarrier) __syncthreads();
                          }
                          gpu::WaitCopies<0>();
                        }),
                "");
      for (const float sum : sums) {
        if (!(sum == 32640.0f)) {
          ++wrong;
          break;
        }
      }
    }
  }
  return wrong;
}

TEST(PlantedBugs, WeakWaitsAndEarlyCopiesAreCaught) {
  for (const AsyncCopies copies : {AsyncCopies::kLazy, AsyncCopies::kEager, AsyncCopies::kMixed}) {
    EXPECT_EQ((WrongPipelines<1, true>(copies)), 0);
  }
  EXPECT_GT((WrongPipelines<2, true>(AsyncCopies::kLazy)), 10);
  EXPECT_GT((WrongPipelines<2, true>(AsyncCopies::kMixed)), 10);
  EXPECT_GT((WrongPipelines<1, false>(AsyncCopies::kEager)), 5);
  EXPECT_GT((WrongPipelines<1, false>(AsyncCopies::kMixed)), 5);
}

TEST(PlantedBugs, UnwrittenSharedMemoryIsNoNumber) {
  EXPECT_EQ(RunAll(1, 32,
                   [] {
                     GPU_SHARED(float, values, [32]);
                     ASSERT_NE(values[threadIdx.x], values[threadIdx.x]);
                   }),
            "");
}

TEST(PlantedBugs, ValueFromALaneOutsideTheMask) {
  EXPECT_EQ(RunAll(1, 32,
                   [] {
                     if (threadIdx.x >= 16) return;
                     const float value = __shfl_xor_sync(0xffffu, 1.0f, 16);
                     ASSERT_NE(value, value);
                   }),
            "");
}

}  // namespace
}  // namespace layover::emulation
