// Devices that live in plug-ins: "cuda:N" in liblayover_cuda.so and "emu:N" (the same kernels run by the CPU, for
// tests) in liblayover_emu.so, both looked for beside the program. A plug-in is loaded when a topology first names its
// device, so one build serves machines with and without a GPU; that it is absent is an error value like any other.
#ifndef LAYOVER_KERNELS_PLUGIN_H_
#define LAYOVER_KERNELS_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace layover {

// Goes up with every change of kernels/ops.h that a plug-in built before it could not survive.
inline constexpr uint32_t kPluginAbi = 3;

// The one C symbol of a plug-in. Answers with a new Device, or with null and why in *error. It is asked for `abi` =
// kPluginAbi of the program and refuses another number than its own. Nothing is thrown across.
inline constexpr char kPluginSymbol[] = "layover_open_device";
using PluginEntry = Device* (*)(uint32_t abi, int index, const DeviceOptions* options, std::string* error);

// The folder of the running program, where plug-ins are looked for.
std::string ProgramFolder();

// `kind` is "cuda" or "emu". Unavailable, naming the file and the reason, where the plug-in is not there, cannot be
// loaded, was built for another interface, or has no such device.
absl::StatusOr<std::unique_ptr<Device>> OpenPluginDevice(std::string_view folder, std::string_view kind, int index,
                                                         const DeviceOptions& options);

}  // namespace layover

#endif  // LAYOVER_KERNELS_PLUGIN_H_
