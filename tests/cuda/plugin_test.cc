// The plug-in built under emulation, loaded as the program loads it; refusals.
#include "kernels/plugin.h"

#include <dlfcn.h>

#include "tests/cuda/gpu_fixture.h"

namespace layover::gpu_test {
namespace {

const std::string kFolder = std::string(LAYOVER_BUILD_DIR) + "/bin";

TEST(EmulatedPlugin, OpensItsCardsAndComputes) {
  for (const int index : {0, 7}) {
    auto device = OpenPluginDevice(kFolder, "emu", index, {});
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_EQ((*device)->Name(), fmt::format("emu:{}", index));
    EXPECT_EQ((*device)->NumericsFingerprint(), gpu::GpuDevice::Open(0).value()->NumericsFingerprint());
    const std::vector<float> x = kernel_test::NormalValues(64, 1);
    Memory memory(device->get());
    float* rows = memory.Put(x);
    memory.stream()->Gated({rows, rows, rows, 1, 64, 64, 64, 64, GateKind::kSilu});
    EXPECT_NE(memory.Get(rows, 64), x);
  }
}

TEST(EmulatedPlugin, RefusesCardsThatAreNotThereAndOtherInterfaces) {
  const auto device = OpenPluginDevice(kFolder, "emu", 8, {});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(device.status().message(), "emu:8: there are 8 emulated cards");

  void* const library = dlopen((kFolder + "/liblayover_emu.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto open = reinterpret_cast<PluginEntry>(dlsym(library, kPluginSymbol));
  ASSERT_NE(open, nullptr);
  std::string error;
  const DeviceOptions options;
  EXPECT_EQ(open(kPluginAbi + 1, 0, &options, &error), nullptr);
  EXPECT_NE(error.find("interface"), std::string::npos) << error;
}

}  // namespace
}  // namespace layover::gpu_test
