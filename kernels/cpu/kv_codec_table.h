// The K/V codec's functions by KvType, one table per instruction set (kv_codec_<isa>.cc).
#ifndef LAYOVER_KERNELS_CPU_KV_CODEC_TABLE_H_
#define LAYOVER_KERNELS_CPU_KV_CODEC_TABLE_H_

#include "kernels/cpu/kv_codec.h"

namespace layover {

struct KvCodecTable {
  EncodeKvFunction encode[4];
  DecodeKvFunction decode[4];
};

namespace scalar {
extern const KvCodecTable kKvCodec;
}
namespace avx2 {
extern const KvCodecTable kKvCodec;
}
namespace avx512 {
extern const KvCodecTable kKvCodec;
}

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_KV_CODEC_TABLE_H_
