// Every barrier of every kernel, and every wait for asynchronous copies, is left out once, and that is caught: what
// comes out is wrong or reported in some schedule, and where this is built with ThreadSanitizer, it reports a race.
// Barriers are found in the sources: one that no case of kernel_cases.h reaches fails here, and so does one that
// nothing needs.
#include <gtest/gtest-spi.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tests/cuda/gpu_fixture.h"
#include "tests/cuda/kernel_cases.h"

#ifdef __SANITIZE_THREAD__
#include <unistd.h>
// A planted race ends the child that runs it; one that nobody planted ends the test.
extern "C" const char* __tsan_default_options() {
  return "halt_on_error=1";
}
#endif

namespace layover::gpu_test {
namespace {

using emulation::Schedule;

constexpr uint32_t kDraws = 2;
constexpr Schedule kSchedules[] = {Schedule::kForward, Schedule::kReverse, Schedule::kWarpDepth, Schedule::kRandom};

// "attention.cu:137", as emulation::Settings::left_out has it.
std::set<std::string> BarriersOfTheSources() {
  std::set<std::string> barriers;
  const std::regex barrier("\\b(__syncthreads|__syncwarp|WaitCopies<\\d+>)\\(");
  for (const auto& entry : std::filesystem::directory_iterator(LAYOVER_SOURCE_DIR "/kernels/cuda")) {
    std::ifstream file(entry.path());
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (!std::regex_search(line.substr(0, line.find("//")), barrier)) continue;
      barriers.insert(fmt::format("{}:{}", entry.path().filename().string(), number));
    }
  }
  return barriers;
}

struct Planted {
  KernelCase kernel;
  uint32_t draw = 0;
  std::vector<float> want;
};

std::vector<float> Run(const Planted& planted, Schedule schedule, const char* left_out) {
  emulation::Settings settings;
  settings.schedule = schedule;
  settings.seed = planted.draw;
  settings.left_out = left_out;
  emulation::SetSettings(settings);
  const auto device = gpu::GpuDevice::Open(0);
  EXPECT_TRUE(device.ok());
  std::vector<float> got = planted.kernel.run(device->get(), planted.draw, planted.kernel.type);
  emulation::SetSettings({});
  return got;
}

// What runs past each barrier, a draw of a case each.
std::map<std::string, std::vector<Planted>> WhoReachesWhat() {
  std::map<std::string, std::vector<Planted>> reached;
  emulation::TakeRan();
  for (const KernelCase& c : OneCaseOfEach()) {
    for (uint32_t draw = 1; draw <= kDraws; ++draw) {
      Planted planted{c, draw, {}};
      planted.want = Run(planted, Schedule::kForward, nullptr);
      for (const std::string& barrier : emulation::TakeRan().barriers) reached[barrier].push_back(planted);
    }
  }
  return reached;
}

#ifdef __SANITIZE_THREAD__
bool IsCaught(const std::string& barrier, const std::vector<Planted>& planted) {
  // What a wait left out does, and a copy that comes too early, is no race to it: that shows in the results.
  EXPECT_EXIT(
      {
        for (const Schedule schedule : kSchedules) {
          for (const Planted& p : planted) {
            if (Run(p, schedule, barrier.c_str()) != p.want) ::_exit(66);
          }
        }
        ::_exit(0);
      },
      testing::ExitedWithCode(66), "data race|")
      << barrier;
  return true;
}
#else
bool IsCaught(const std::string& barrier, const std::vector<Planted>& planted) {
  for (const Schedule schedule : kSchedules) {
    for (const Planted& p : planted) {
      testing::TestPartResultArray reports;  // of misuse, by failed expectations of the case
      std::vector<float> got;
      {
        testing::ScopedFakeTestPartResultReporter reporter(
            testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &reports);
        got = Run(p, schedule, barrier.c_str());
      }
      if (reports.size() > 0 || !kernel_test::SameBits(got, p.want)) return true;
    }
  }
  return false;
}
#endif

TEST(Barriers, EachOneLeftOutIsCaught) {
  const std::set<std::string> barriers = BarriersOfTheSources();
  ASSERT_GT(barriers.size(), 5u);
  const std::map<std::string, std::vector<Planted>> reached = WhoReachesWhat();
  for (const auto& [barrier, planted] : reached) EXPECT_TRUE(barriers.count(barrier)) << barrier << " is in no source";
  for (const std::string& barrier : barriers) {
    const auto it = reached.find(barrier);
    ASSERT_TRUE(it != reached.end()) << barrier << ": no case reaches it";
    EXPECT_TRUE(IsCaught(barrier, it->second)) << barrier << ": nothing goes wrong without it";
  }
}

}  // namespace
}  // namespace layover::gpu_test
