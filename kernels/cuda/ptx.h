// nvcc's side of gpu.h: wrappers of one instruction each, shared memory, launches. These lines are the only ones of a
// kernel that a machine without a GPU never runs; tests/gpu compares them with plain loops on one that has it.
#ifndef LAYOVER_KERNELS_CUDA_PTX_H_
#define LAYOVER_KERNELS_CUDA_PTX_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/runtime.h"

#define GPU_UNROLL _Pragma("unroll")
#define GPU_SHARED(T, name, dims) __shared__ T name dims

namespace layover::gpu {

__device__ __forceinline__ float HalfToFloat(uint16_t half) {
  return __half2float(__ushort_as_half(half));
}
__device__ __forceinline__ uint16_t FloatToHalf(float x) {
  return __half_as_ushort(__float2half_rn(x));
}

__device__ __forceinline__ int32_t Dot4(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

// Byte i is byte number (selector >> 4 i & 7) of a's four and then b's four.
__device__ __forceinline__ uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

template <typename T>
__device__ __forceinline__ T Load16(const void* p) {
  static_assert(sizeof(T) == 16);
  return *static_cast<const T*>(p);
}

extern __shared__ uint4 dynamic_shared[];

class SharedCarver {
 public:
  template <typename T>
  __device__ __forceinline__ T* Take(int n) {
    T* part = reinterpret_cast<T*>(reinterpret_cast<char*>(dynamic_shared) + used_);
    used_ += (n * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
    return part;
  }

 private:
  int used_ = 0;
};

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void CopyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void LoadMatrices4(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}

__device__ __forceinline__ void MmaS8K32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void MmaS8K16(int32_t (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b));
}

// A failed launch shows at the queue's next Synchronize.
template <typename... Parameters, typename... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads, size_t shared_bytes, Queue* queue,
            const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return NoteLaunchError(queue, name, error);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = CudaStream(queue);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (error != cudaSuccess) NoteLaunchError(queue, name, error);
}

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_PTX_H_
