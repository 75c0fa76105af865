// dlopen and one symbol. A plug-in stays loaded to the end of the process: its devices' code must not go away.
#include "kernels/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>

#include "common/status.h"

namespace layover {

std::string ProgramFolder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : program.parent_path().string();
}

absl::StatusOr<std::unique_ptr<Device>> OpenPluginDevice(std::string_view folder, std::string_view kind, int index,
                                                         const DeviceOptions& options) {
  const std::string path = fmt::format("{}/liblayover_{}.so", folder, kind);
  if (access(path.c_str(), F_OK) != 0) {
    return Unavailable("{}:{}: the plug-in {} is missing (this build has no {} back end)", kind, index, path, kind);
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable("{}:{}: the plug-in cannot be loaded: {}", kind, index, dlerror());
  const auto open = reinterpret_cast<PluginEntry>(dlsym(library, kPluginSymbol));
  if (open == nullptr) {
    return Unavailable("{}:{}: {} is no plug-in: it has no symbol {}", kind, index, path, kPluginSymbol);
  }
  std::string error;
  std::unique_ptr<Device> device(open(kPluginAbi, index, &options, &error));
  if (device == nullptr) return Unavailable("{}:{}: {}", kind, index, error);
  if (const std::string wanted = fmt::format("{}:{}", kind, index); device->Name() != wanted) {
    return Unavailable("{}: {} is the plug-in of another back end: it opens {}", wanted, path, device->Name());
  }
  return device;
}

}  // namespace layover
