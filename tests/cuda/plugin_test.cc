// The plug-in built under emulation, loaded as the program loads it; refusals.
#include "kernels/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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

TEST(EmulatedPlugin, IsNotTakenForAnotherBackEnd) {
  namespace files = std::filesystem;
  const files::path root = testing::TempDir() + "layover-plugin-" + std::to_string(getpid());
  // Each in a folder of its own: a library that has been loaded from a path is what that path means from then on.
  const auto in_folder = [&](const std::string& name) {
    files::create_directories(root / name);
    return (root / name / "liblayover_cuda.so").string();
  };
  const auto refusal = [&](const std::string& name) {
    return std::string(OpenPluginDevice((root / name).string(), "cuda", 3, {}).status().message());
  };
  const std::string missing = in_folder("missing"), damaged = in_folder("damaged"), other = in_folder("other"),
                    emulated = in_folder("emulated");
  EXPECT_EQ(refusal("missing"), "cuda:3: the plug-in " + missing + " is missing (this build has no cuda back end)");
  std::ofstream(damaged) << "no library";
  EXPECT_EQ(refusal("damaged").find("cuda:3: the plug-in cannot be loaded: " + damaged), 0u) << refusal("damaged");
  files::copy_file(kFolder + "/libstand_in_nccl.so", other);
  EXPECT_EQ(refusal("other"), "cuda:3: " + other + " is no plug-in: it has no symbol layover_open_device");
  files::copy_file(kFolder + "/liblayover_emu.so", emulated);
  EXPECT_EQ(refusal("emulated"), "cuda:3: " + emulated + " is the plug-in of another back end: it opens emu:3");
  files::remove_all(root);
}

}  // namespace
}  // namespace layover::gpu_test
