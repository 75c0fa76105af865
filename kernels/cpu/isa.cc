// Asks the processor, and through XGETBV the operating system, what may be used.
#include "kernels/cpu/isa.h"

#include <array>
#include <utility>

namespace layover {
namespace {

constexpr std::array<std::pair<CpuIsa, std::string_view>, 3> kNames = {{
    {CpuIsa::kScalar, "scalar"},
    {CpuIsa::kAvx2, "avx2"},
    {CpuIsa::kAvx512, "avx512"},
}};

}  // namespace

CpuIsa BestCpuIsa() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx512) return CpuIsa::kAvx512;
  if (avx2) return CpuIsa::kAvx2;
#endif
  return CpuIsa::kScalar;
}

std::string_view CpuIsaName(CpuIsa isa) {
  return kNames[static_cast<size_t>(isa)].second;
}

bool ParseCpuIsa(std::string_view name, CpuIsa* isa) {
  for (const auto& [value, text] : kNames) {
    if (text != name) continue;
    *isa = value;
    return true;
  }
  return false;
}

}  // namespace layover
