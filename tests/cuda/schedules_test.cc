// Every kernel at random shapes, ragged ones among them, under every schedule of the emulation and several seeds: the
// bits of the CPU back end, which its own tests hold against the double reference, and never a NaN.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/cuda/gpu_fixture.h"
#include "tests/cuda/kernel_cases.h"

namespace layover::gpu_test {
namespace {

constexpr uint32_t kDraws = 2;

class EveryKernel : public testing::TestWithParam<KernelCase> {};

TEST_P(EveryKernel, InEveryScheduleAtRandomShapes) {
  const KernelCase& c = GetParam();
  const std::unique_ptr<Device> cpu = kernel_test::OpenCpu(kernel_test::BestVariant());
  for (uint32_t seed = 1; seed <= kDraws; ++seed) {
    SCOPED_TRACE(fmt::format("draw {}", seed));
    const std::vector<float> want = c.run(cpu.get(), seed, c.type);
    ASSERT_FALSE(want.empty());
    for (const float value : want) ASSERT_FALSE(std::isnan(value));
    ForEverySchedule(
        4, [&](Device* device) { ASSERT_TRUE(kernel_test::SameBits(c.run(device, seed, c.type), want)); },
        Schedules::kAll, seed);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EveryKernel, testing::ValuesIn(KernelCases()),
                         [](const auto& test) { return test.param.name; });

#ifndef LAYOVER_TEST_ON_CARD
// A kernel without a case above is missed here.
TEST(EveryKernel, IsReached) {
  std::set<std::string> launched;
  const std::regex launch("\\bLaunch\\(\"([^\"]+)\"");
  for (const auto& entry : std::filesystem::directory_iterator(LAYOVER_SOURCE_DIR "/kernels/cuda")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string source = text.str();
    for (std::sregex_iterator it(source.begin(), source.end(), launch), end; it != end; ++it) launched.insert((*it)[1]);
  }
  ASSERT_FALSE(launched.empty());
  emulation::TakeRan();
  for (const KernelCase& c : OneCaseOfEach()) {
    const auto device = gpu::GpuDevice::Open(0);
    ASSERT_TRUE(device.ok());
    for (const uint32_t seed : {1, 2}) c.run(device->get(), seed, c.type);
  }
  EXPECT_EQ(emulation::TakeRan().kernels, launched);
}
#endif

}  // namespace
}  // namespace layover::gpu_test
