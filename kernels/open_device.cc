// Opening a device by name.
#include <charconv>

#include "common/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"
#include "kernels/plugin.h"

namespace layover {
namespace {

// "cuda:1" -> ("cuda", 1)
bool ParsePluginName(std::string_view name, std::string_view* kind, int* index) {
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) return false;
  *kind = name.substr(0, colon);
  const std::string_view digits = name.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *index);
  return (*kind == "cuda" || *kind == "emu") && error == std::errc() && end == digits.data() + digits.size() &&
         *index >= 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(std::string_view name, const DeviceOptions& options) {
  if (name == "cpu") {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CpuDevice::Open(options));
    return device;
  }
  std::string_view kind;
  int index = 0;
  if (!ParsePluginName(name, &kind, &index)) {
    return InvalidArgument("device \"{}\": expected cpu, cuda:N or emu:N", name);
  }
  return OpenPluginDevice(ProgramFolder(), kind, index, options);
}

}  // namespace layover
