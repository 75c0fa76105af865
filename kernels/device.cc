// What K/V types are called and weigh, and the operations that a back end may lack: what plug-ins have too.
#include <array>

#include "common/check.h"
#include "common/status.h"
#include "kernels/ops.h"

namespace layover {
namespace {

constexpr std::array<std::string_view, 4> kKvTypeNames = {"f32", "f16", "q8_0", "q4_0"};

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

bool Device::PinHost(void*, size_t) {
  return false;
}
void Device::UnpinHost(void*) {
}

absl::StatusOr<std::string> Device::NewPeerId() {
  return Unavailable("{} has no links of its own to other devices", Name());
}
absl::StatusOr<std::unique_ptr<PeerLink>> Device::JoinPeer(const std::string&, int, size_t) {
  return Unavailable("{} has no links of its own to other devices", Name());
}

}  // namespace layover
