// Which instruction set the CPU back end's kernels use. Bits do not depend on it (kernels/README.md); speed does.
#ifndef LAYOVER_KERNELS_CPU_ISA_H_
#define LAYOVER_KERNELS_CPU_ISA_H_

#include <cstdint>
#include <string_view>

namespace layover {

// Ordered: what a machine with one of these has, includes the ones before it.
enum class CpuIsa : uint8_t { kScalar, kAvx2 /* + FMA, F16C */, kAvx512 /* F, BW, VL, DQ, VNNI */ };

// The best that this machine and this build have.
CpuIsa BestCpuIsa();

std::string_view CpuIsaName(CpuIsa isa);               // "scalar" | "avx2" | "avx512"
bool ParseCpuIsa(std::string_view name, CpuIsa* isa);  // of the three names

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_ISA_H_
