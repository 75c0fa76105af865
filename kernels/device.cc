// Opening a device by name, what K/V types are called and weigh, and the operations that a back end may lack.
#include <array>
#include <charconv>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"
#include "kernels/plugin.h"

namespace layover {
namespace {

constexpr std::array<std::string_view, 4> kKvTypeNames = {"f32", "f16", "q8_0", "q4_0"};

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

std::string_view KvTypeName(KvType type) {
  return kKvTypeNames[static_cast<size_t>(type)];
}

bool ParseKvType(std::string_view name, KvType* type) {
  for (size_t i = 0; i < kKvTypeNames.size(); ++i) {
    if (name != kKvTypeNames[i]) continue;
    *type = static_cast<KvType>(i);
    return true;
  }
  return false;
}

size_t KvRowBytes(KvType type, int kv_heads, int head_dim) {
  const size_t values = static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim);
  switch (type) {
    case KvType::kF32:
      return values * 4;
    case KvType::kF16:
      return values * 2;
    case KvType::kQ8_0:
      return values / 32 * 34;
    case KvType::kQ4_0:
      return values / 32 * 18;
  }
  LAYOVER_CHECK(false);
}

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

// A model that needs one of these asks Device::Supports first and is refused there.
void Stream::CausalConv(const CausalConvArgs&) {
  LAYOVER_CHECK(!"this back end has no CausalConv");
}
void Stream::GatedDeltaNet(const GatedDeltaNetArgs&) {
  LAYOVER_CHECK(!"this back end has no GatedDeltaNet");
}
void Stream::MoeRoute(const MoeRouteArgs&) {
  LAYOVER_CHECK(!"this back end has no MoeRoute");
}
void Stream::MoeMatMul(const MoeMatMulArgs&) {
  LAYOVER_CHECK(!"this back end has no MoeMatMul");
}
void Stream::MoeCombine(const MoeCombineArgs&) {
  LAYOVER_CHECK(!"this back end has no MoeCombine");
}

}  // namespace layover
