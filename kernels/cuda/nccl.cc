#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "common/status.h"
#include "kernels/cuda/runtime.h"

namespace layover::gpu {
namespace {

constexpr int kLeastVersion = 21400;  // non-blocking communicators
constexpr char kStandInSymbol[] = "layover_nccl_stand_in";

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<NcclApi> Load() {
  const char* const asked = std::getenv("LAYOVER_NCCL");
  const std::string path = asked != nullptr && *asked != '\0' ? asked : "libnccl.so.2";
  const bool emulated = std::string(BackEndKind()) == "emu";
  if (emulated && path == "libnccl.so.2") return Unavailable("emulated cards have no NCCL");
  // Never closed: its threads may outlive the last hop.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Unavailable("link nccl: NCCL cannot be loaded: {} (LAYOVER_NCCL names another file)", dlerror());
  if (emulated && dlsym(library, kStandInSymbol) == nullptr) {
    return Unavailable("link nccl: {} is no stand-in, which is what emulated cards need", path);
  }
  NcclApi api;
  const bool all = Find(library, "ncclGetVersion", &api.get_version) &&
                   Find(library, "ncclGetUniqueId", &api.get_unique_id) &&
                   Find(library, "ncclCommInitRankConfig", &api.comm_init_rank_config) &&
                   Find(library, "ncclCommGetAsyncError", &api.comm_get_async_error) &&
                   Find(library, "ncclCommAbort", &api.comm_abort) && Find(library, "ncclSend", &api.send) &&
                   Find(library, "ncclRecv", &api.recv) && Find(library, "ncclGetErrorString", &api.get_error_string);
  int version = 0;
  if (!all || api.get_version(&version) != kNcclSuccess || version < kLeastVersion) {
    return Unavailable("link nccl: {} is no NCCL of version 2.14 or later", path);
  }
  return api;
}

}  // namespace

absl::StatusOr<const NcclApi*> LoadNccl() {
  static const absl::StatusOr<NcclApi>& api = *new absl::StatusOr<NcclApi>(Load());
  if (!api.ok()) return api.status();
  return &*api;
}

}  // namespace layover::gpu
