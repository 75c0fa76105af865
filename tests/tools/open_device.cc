// Opens a device by a plug-in of a folder and says what it is, or why it is not there: open_device FOLDER KIND INDEX.
#include <cstdio>
#include <cstdlib>

#include "kernels/plugin.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: open_device FOLDER KIND INDEX\n");
    return 2;
  }
  const auto device = layover::OpenPluginDevice(argv[1], argv[2], std::atoi(argv[3]), {});
  if (!device.ok()) {
    std::printf("%s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  std::printf("%s, %lld bytes, numerics %s\n", (*device)->Name().c_str(),
              static_cast<long long>((*device)->MemoryBytes()), (*device)->NumericsFingerprint().c_str());
  return 0;
}
