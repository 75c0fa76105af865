// The one header of a kernel: CUDA where nvcc compiles it, the emulation where the host compiler does. Both offer
// __global__, threadIdx, __syncthreads, __shfl_sync and the like, and in layover::gpu the few wrapped instructions
// (ptx.h has nvcc's side), shared memory and launches.
//
// Rules for kernels (tests/check_kernels.py holds them): no other header of CUDA's, no `asm`, no raw `__shared__`, no
// `<<<`, no std:: in device code. Float arithmetic is written as it is to round: a * b + c is two roundings on both
// sides (nvcc is given -fmad=false), fmaf is one. Collectives take all 32 lanes, alive.
#ifndef LAYOVER_KERNELS_CUDA_GPU_H_
#define LAYOVER_KERNELS_CUDA_GPU_H_

#ifdef __CUDACC__
#include "kernels/cuda/ptx.h"
#else
#include "kernels/emulation/gpu_emulated.h"
#endif

#endif  // LAYOVER_KERNELS_CUDA_GPU_H_
