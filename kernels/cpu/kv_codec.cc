// Picks the K/V codec of an instruction set.
#include "kernels/cpu/kv_codec.h"

#include "kernels/cpu/kv_codec_table.h"

namespace layover {
namespace {

const KvCodecTable& TableFor(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512) return avx512::kKvCodec;
  if (isa == CpuIsa::kAvx2) return avx2::kKvCodec;
#endif
  return scalar::kKvCodec;
}

}  // namespace

EncodeKvFunction CpuEncodeKv(CpuIsa isa, KvType type) {
  return TableFor(isa).encode[static_cast<int>(type)];
}
DecodeKvFunction CpuDecodeKv(CpuIsa isa, KvType type) {
  return TableFor(isa).decode[static_cast<int>(type)];
}

}  // namespace layover
