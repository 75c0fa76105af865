// The one symbol of liblayover_cuda.so and liblayover_emu.so (kernels/plugin.h).
#include <exception>

#include "fmt/format.h"
#include "kernels/cuda/gpu_device.h"
#include "kernels/plugin.h"

extern "C" __attribute__((visibility("default"))) layover::Device* layover_open_device(
    uint32_t abi, int index, const layover::DeviceOptions* options, std::string* error) {
  if (abi != layover::kPluginAbi) {
    *error = fmt::format("the plug-in was built for interface {}, the program has {}", layover::kPluginAbi, abi);
    return nullptr;
  }
  try {
    auto device = layover::gpu::GpuDevice::Open(index);
    if (device.ok()) return device->release();
    *error = std::string(device.status().message());
  } catch (const std::exception& exception) {  // nothing is thrown across
    *error = exception.what();
  }
  return nullptr;
}
