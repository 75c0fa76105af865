// StoreKv, and the way between pages and canonical rows.
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/slices.h"

namespace layover::gpu {
namespace {

constexpr uint16_t kHalfNan = 0x7e00;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// nearest-even(clamp(x * inverse, low, high)); the bounds are integral.
__device__ __forceinline__ int RoundClamped(float x, float inverse, float low, float high) {
  float value = x * inverse;
  value = value < low ? low : value;
  value = value > high ? high : value;
  return __float2int_rn(value);
}

__device__ __forceinline__ uint32_t LargestOfWarp(uint32_t bits) {
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, bits, step);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// A block of 32 values, one a lane, as kernels/cpu/kv_codec.h rounds it.
__device__ __forceinline__ void StoreQ8(float x, uint8_t* value, uint16_t* scale, int lane) {
  const uint32_t largest = LargestOfWarp(__float_as_uint(x) & 0x7fffffffu);
  const uint16_t d = largest >= kInfinityBits ? kHalfNan : FloatToHalf(__uint_as_float(largest) / 127.0f);
  int q = 0;
  if (d != 0 && d != kHalfNan) q = RoundClamped(x, 1.0f / HalfToFloat(d), -127.0f, 127.0f);
  *value = static_cast<uint8_t>(q);
  if (lane == 0) *scale = d;
}

// `value`: of this lane's byte, which lanes 0 to 15 have.
__device__ __forceinline__ void StoreQ4(float x, uint8_t* value, uint16_t* scale, int lane) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  const uint32_t largest = LargestOfWarp(bits);
  const uint32_t at_largest = __ballot_sync(kAllLanes, bits == largest);
  int first = 0;
  while ((at_largest >> first & 1) == 0) ++first;
  const float extreme = __shfl_sync(kAllLanes, x, first);
  uint16_t d = largest >= kInfinityBits ? kHalfNan : FloatToHalf(extreme / -8.0f);
  if (d == 0x8000) d = 0;  // zero has one spelling
  int q = 8;
  if (d != 0 && d != kHalfNan) q = RoundClamped(x, 1.0f / HalfToFloat(d), -8.0f, 7.0f) + 8;
  const int high = __shfl_xor_sync(kAllLanes, q, 16);
  if (lane < 16) *value = static_cast<uint8_t>(q | high << 4);
  if (lane == 0) *scale = d;
}

// A warp is 32 neighbouring values of one head of one row, of K (blockIdx.z 0) or V.
constexpr int kStoreWarps = 4;

__global__ void __launch_bounds__(kStoreWarps * 32) StoreKvKernel(StoreKvArgs args) {
  const KvLayer& cache = args.cache;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = (cache.head_dim + 31) / 32;
  const int group_of_row = static_cast<int>(blockIdx.x) * kStoreWarps + static_cast<int>(threadIdx.x) / 32;
  if (group_of_row >= cache.kv_heads * groups) return;  // the whole warp
  const int head = group_of_row / groups, d = group_of_row % groups * 32 + lane;
  const int row = static_cast<int>(blockIdx.y);
  const bool is_k = blockIdx.z == 0;
  const RowPlace place = FindRow(args.slices, row);
  const int token = place.position % kKeys;
  uint8_t* const block = HeadOf(cache, is_k, place.pages[place.position / kKeys], head);
  const int row_bytes = ValueBytesOfRow(cache.type, cache.head_dim);
  const int scales = ScalesOfRow(cache.type, cache.head_dim);
  const float* from = (is_k ? args.k : args.v) + static_cast<long long>(row) * args.stride + head * cache.head_dim;
  const bool inside = d < cache.head_dim;
  const float x = inside ? from[d] : 0.0f;
  uint16_t* scale = reinterpret_cast<uint16_t*>(block + ScaleAt(is_k, row_bytes, scales, token, d / 32));
  switch (cache.type) {
    case KvType::kF32:
      if (inside) *reinterpret_cast<float*>(block + ValueAt(is_k, row_bytes, token, 4 * d)) = x;
      return;
    case KvType::kF16:
      if (inside) *reinterpret_cast<uint16_t*>(block + ValueAt(is_k, row_bytes, token, 2 * d)) = FloatToHalf(x);
      return;
    case KvType::kQ8_0:
      return StoreQ8(x, block + ValueAt(is_k, row_bytes, token, d), scale, lane);
    case KvType::kQ4_0:
      return StoreQ4(x, block + ValueAt(is_k, row_bytes, token, d / 32 * 16 + lane % 16), scale, lane);
  }
}

// Where byte `at`, an even one, of a head's canonical row lies in its head block.
__device__ __forceinline__ int CanonicalAt(const KvLayer& cache, bool is_k, int token, int at) {
  const int row_bytes = ValueBytesOfRow(cache.type, cache.head_dim);
  const int scales = ScalesOfRow(cache.type, cache.head_dim);
  if (scales == 0) return ValueAt(is_k, row_bytes, token, at);
  const int block_values = row_bytes / scales;
  const int block = at / (2 + block_values), in_block = at % (2 + block_values);
  if (in_block == 0) return ScaleAt(is_k, row_bytes, scales, token, block);
  return ValueAt(is_k, row_bytes, token, block * block_values + in_block - 2);
}

// 16 bytes of a page, aligned there, from or to canonical ones that are even.
template <bool kGather>
__device__ __forceinline__ void MoveEven(uint8_t* in_page, uint16_t* canonical) {
  uint4 sixteen;
  uint32_t words[4];
  if (kGather) {
    sixteen = Load16<uint4>(in_page);
    words[0] = sixteen.x, words[1] = sixteen.y, words[2] = sixteen.z, words[3] = sixteen.w;
  }
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (kGather) {
      canonical[2 * i] = static_cast<uint16_t>(words[i]);
      canonical[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
    } else {
      words[i] = canonical[2 * i] | static_cast<uint32_t>(canonical[2 * i + 1]) << 16;
    }
  }
  if (!kGather) {
    sixteen.x = words[0], sixteen.y = words[1], sixteen.z = words[2], sixteen.w = words[3];
    *reinterpret_cast<uint4*>(in_page) = sixteen;
  }
}

constexpr int kLotThreads = 128;
constexpr int kUnitsOfThread = 8;

// Moves rows between their pages and a lot (KvLotRows): y is one of its parts, x some of the part's units. A unit is 16
// bytes of f32 and f16, and a block of q8_0 and q4_0, whose scale stands apart in the page.
template <bool kGather>
__global__ void __launch_bounds__(kLotThreads) MoveKvLotKernel(KvLotRows lot) {
  const KvLotPart& part = lot.parts[blockIdx.y];
  const KvType type = static_cast<KvType>(part.type);
  const int head_dim = part.head_dim;
  const int row_bytes = ValueBytesOfRow(type, head_dim);  // of a head
  const int scales = ScalesOfRow(type, head_dim);
  const int units_of_head = scales == 0 ? row_bytes / 16 : scales;
  const int units_of_row = units_of_head * part.kv_heads;
  const int units = units_of_row * part.rows;
  const int unit_bytes = scales == 0 ? 16 : 2 + row_bytes / scales;
  const bool is_k = part.is_k != 0;
  for (int i = 0; i < kUnitsOfThread; ++i) {
    const int unit = (static_cast<int>(blockIdx.x) * kUnitsOfThread + i) * kLotThreads + static_cast<int>(threadIdx.x);
    if (unit >= units) return;
    const int token = part.row_begin + unit / units_of_row;
    const int head = unit % units_of_row / units_of_head, at = unit % units_of_head;
    uint8_t* const canonical = lot.rows + part.at + static_cast<long long>(unit) * unit_bytes;
    uint8_t* const block =
        part.pool + (static_cast<long long>(part.page) * part.kv_heads + head) * HeadBytes(type, head_dim);
    if (scales == 0) {
      uint8_t* const in_page = block + ValueAt(is_k, row_bytes, token, 16 * at);
      if (kGather) {
        *reinterpret_cast<uint4*>(canonical) = Load16<uint4>(in_page);
      } else {
        *reinterpret_cast<uint4*>(in_page) = Load16<uint4>(canonical);
      }
      continue;
    }
    uint16_t* const even = reinterpret_cast<uint16_t*>(canonical);
    uint16_t* const scale = reinterpret_cast<uint16_t*>(block + ScaleAt(is_k, row_bytes, scales, token, at));
    if (kGather) {
      *even = *scale;
    } else {
      *scale = *even;
    }
    const int values = row_bytes / scales;
    MoveEven<kGather>(block + ValueAt(is_k, row_bytes, token, at * values), even + 1);
    if (values > 16) MoveEven<kGather>(block + ValueAt(is_k, row_bytes, token, at * values + 16), even + 9);
  }
}

struct PageCopy {
  KvLayer cache;
  int src_page;
  int dst_page;
  int rows;
};

__global__ void __launch_bounds__(128) CopyKvPageKernel(PageCopy copy) {
  const KvLayer& cache = copy.cache;
  const int head_bytes = HeadRowBytes(cache.type, cache.head_dim);
  const int at = 2 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_k = blockIdx.z == 0;
  if (at >= head_bytes * cache.kv_heads) return;
  const int token = static_cast<int>(blockIdx.y);
  const int offset = CanonicalAt(cache, is_k, token, at % head_bytes);
  const uint8_t* from = HeadOf(cache, is_k, copy.src_page, at / head_bytes) + offset;
  uint8_t* to = HeadOf(cache, is_k, copy.dst_page, at / head_bytes) + offset;
  *reinterpret_cast<uint16_t*>(to) = token < copy.rows ? *reinterpret_cast<const uint16_t*>(from) : uint16_t{0};
}

Grid RowGrid(const KvLayer& cache, int rows) {
  const int halves = HeadRowBytes(cache.type, cache.head_dim) * cache.kv_heads / 2;
  return {static_cast<unsigned>(halves + 127) / 128, static_cast<unsigned>(rows), 2};
}

Grid LotGrid(const KvLotRows& lot) {
  unsigned most = 0;  // units of a part
  for (int i = 0; i < lot.n_parts; ++i) {
    const KvLotPart& part = lot.parts[i];
    const KvType type = static_cast<KvType>(part.type);
    const int scales = ScalesOfRow(type, part.head_dim);
    const int units = scales == 0 ? ValueBytesOfRow(type, part.head_dim) / 16 : scales;
    const unsigned of_part = static_cast<unsigned>(units * part.kv_heads * part.rows);
    most = of_part > most ? of_part : most;
  }
  const unsigned of_block = kLotThreads * kUnitsOfThread;
  return {(most + of_block - 1) / of_block, static_cast<unsigned>(lot.n_parts)};
}

}  // namespace

void LaunchStoreKv(const StoreKvArgs& args, Queue* queue) {
  const int groups = args.cache.kv_heads * ((args.cache.head_dim + 31) / 32);
  const Grid grid = {static_cast<unsigned>(groups + kStoreWarps - 1) / kStoreWarps,
                     static_cast<unsigned>(args.slices.n_rows), 2};
  Launch("StoreKv", StoreKvKernel, grid, kStoreWarps * 32, 0, queue, args);
}

void LaunchGatherKv(const KvLotRows& lot, Queue* queue) {
  Launch("GatherKv", MoveKvLotKernel<true>, LotGrid(lot), kLotThreads, 0, queue, lot);
}
void LaunchScatterKv(const KvLotRows& lot, Queue* queue) {
  Launch("ScatterKv", MoveKvLotKernel<false>, LotGrid(lot), kLotThreads, 0, queue, lot);
}
void LaunchCopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows, Queue* queue) {
  Launch("CopyKvPage", CopyKvPageKernel, RowGrid(cache, kKeys), 128, 0, queue,
         PageCopy{cache, src_page, dst_page, rows});
}

}  // namespace layover::gpu
