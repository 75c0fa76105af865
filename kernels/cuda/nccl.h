// The few functions of NCCL that a hop between two cards needs. The library is looked for when a hop first asks for it,
// so a machine without it loses nothing but `link: nccl`, and neither plug-in links it. Its types are declared here:
// they are NCCL's stable C interface since 2.14.
#ifndef LAYOVER_KERNELS_CUDA_NCCL_H_
#define LAYOVER_KERNELS_CUDA_NCCL_H_

#include <cstddef>

#include "absl/status/statusor.h"

struct CUstream_st;

namespace layover::gpu {

struct NcclComm;  // ncclComm

struct NcclUniqueId {
  char internal[128];
};

// The part of ncclConfig_t that 2.14 had; NCCL takes defaults for what came later.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 1;
};

// ncclResult_t; every other number is an error.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
// ncclDataType_t
inline constexpr int kNcclInt8 = 0;

struct NcclApi {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*comm_init_rank_config)(NcclComm** comm, int n_ranks, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
  int (*comm_get_async_error)(NcclComm* comm, int* state) = nullptr;
  int (*comm_abort)(NcclComm* comm) = nullptr;
  int (*send)(const void* data, size_t count, int type, int peer, NcclComm* comm, CUstream_st* stream) = nullptr;
  int (*recv)(void* data, size_t count, int type, int peer, NcclComm* comm, CUstream_st* stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
};

// $LAYOVER_NCCL, or libnccl.so.2 where the system's loader finds it. Unavailable, naming the file and the reason.
// Emulated cards take only a library that says it is a stand-in: NCCL itself would hand their streams to a driver.
absl::StatusOr<const NcclApi*> LoadNccl();

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_NCCL_H_
