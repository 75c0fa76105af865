// Pages to canonical rows and back. K is a transpose of small elements; it is done in 16-byte vectors (the compiler's
// portable ones, so this file needs no variants) over the rows asked for and not a byte beyond them.
#include "kernels/cpu/kv_pages.h"

#include <cstring>

#include "common/check.h"
#include "common/limits.h"

namespace layover {
namespace {

constexpr int kBlock = 32;  // values that share a scale in q8_0 and q4_0
constexpr int kTokens = kPageTokens;

template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(16)));
};
using V32 = VectorOf<uint32_t>::Type;
using V16 = VectorOf<uint16_t>::Type;
using V8 = VectorOf<uint8_t>::Type;

// The elements of the first (second) halves of a and b, taken in turn.
V32 ZipLow(V32 a, V32 b) {
  return __builtin_shuffle(a, b, V32{0, 4, 1, 5});
}
V32 ZipHigh(V32 a, V32 b) {
  return __builtin_shuffle(a, b, V32{2, 6, 3, 7});
}
V16 ZipLow(V16 a, V16 b) {
  return __builtin_shuffle(a, b, V16{0, 8, 1, 9, 2, 10, 3, 11});
}
V16 ZipHigh(V16 a, V16 b) {
  return __builtin_shuffle(a, b, V16{4, 12, 5, 13, 6, 14, 7, 15});
}
V8 ZipLow(V8 a, V8 b) {
  return __builtin_shuffle(a, b, V8{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
V8 ZipHigh(V8 a, V8 b) {
  return __builtin_shuffle(a, b, V8{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}

// Transposes the N x N tile at `in` (rows in_stride bytes apart) to `out`, N elements to a vector.
template <typename T>
void TransposeTile(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  using Vector = typename VectorOf<T>::Type;
  constexpr int kLanes = 16 / sizeof(T);
  // Unrolled, so that all of it stays in registers.
  Vector rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) std::memcpy(&rows[i], in + i * in_stride, 16);
  // Zipping row i with row i + N/2 moves the top bit of the row number to the bottom of the column number; log2(N)
  // such moves exchange the two.
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {
    Vector zipped[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      zipped[2 * i] = ZipLow(rows[i], rows[i + kLanes / 2]);
      zipped[2 * i + 1] = ZipHigh(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = zipped[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) std::memcpy(out + i * out_stride, &rows[i], 16);
}

// out[column][row] = in[row][column], elements of T, strides in bytes. Touches nothing outside.
template <typename T>
void Transpose(const uint8_t* in, size_t in_stride, int rows, int columns, uint8_t* out, size_t out_stride) {
  constexpr int kLanes = 16 / sizeof(T);
  const int whole_rows = rows / kLanes * kLanes;
  const int whole_columns = columns / kLanes * kLanes;
  // Along the input's rows: a page comes from memory, in the order that the processor fetches ahead.
  for (int r = 0; r < whole_rows; r += kLanes) {
    for (int c = 0; c < whole_columns; c += kLanes) {
      TransposeTile<T>(in + r * in_stride + c * sizeof(T), in_stride, out + c * out_stride + r * sizeof(T), out_stride);
    }
  }
  for (int c = 0; c < columns; ++c) {
    for (int r = c < whole_columns ? whole_rows : 0; r < rows; ++r) {
      std::memcpy(out + c * out_stride + r * sizeof(T), in + r * in_stride + c * sizeof(T), sizeof(T));
    }
  }
}

// Values of one head for tokens [begin, end): how its matrices lie in the page and in canonical rows.
struct HeadRows {
  uint8_t* page;     // the head block
  uint8_t* rows;     // canonical, first byte of this head in the first row
  size_t row_bytes;  // from row to row
  int begin;
  int end;
  int head_dim;
};

enum class Direction { kRead, kWrite };

template <typename T, Direction kDirection>
void MoveTransposed(uint8_t* matrix, int elements, const HeadRows& head, uint8_t* rows) {
  constexpr size_t kStride = kTokens * sizeof(T);
  uint8_t* const first = matrix + head.begin * sizeof(T);
  if constexpr (kDirection == Direction::kRead) {
    Transpose<T>(first, kStride, elements, head.end - head.begin, rows, head.row_bytes);
  } else {
    Transpose<T>(rows, head.row_bytes, head.end - head.begin, elements, first, kStride);
  }
}

template <Direction kDirection>
void MoveBytes(uint8_t* page, uint8_t* rows, size_t bytes) {
  if constexpr (kDirection == Direction::kRead) {
    std::memcpy(rows, page, bytes);
  } else {
    std::memcpy(page, rows, bytes);
  }
}

// K of a blocked type: per block of 32 values a matrix of `kBytes` bytes by 64 tokens, and a row of 64 scales.
template <int kBytes, Direction kDirection>
void MoveKeyBlocks(const HeadRows& head) {
  const int blocks = head.head_dim / kBlock;
  uint8_t* const scales = head.page + static_cast<size_t>(blocks) * kBytes * kTokens;
  for (int b = 0; b < blocks; ++b) {
    uint8_t* const rows = head.rows + static_cast<size_t>(b) * (2 + kBytes);
    MoveTransposed<uint16_t, kDirection>(scales + b * kTokens * 2, 1, head, rows);
    MoveTransposed<uint8_t, kDirection>(head.page + static_cast<size_t>(b) * kBytes * kTokens, kBytes, head, rows + 2);
  }
}

template <int kBytes, Direction kDirection>
void MoveValueBlocks(const HeadRows& head) {
  const int blocks = head.head_dim / kBlock;
  uint8_t* const scales = head.page + static_cast<size_t>(blocks) * kBytes * kTokens;
  for (int token = head.begin; token < head.end; ++token) {
    uint8_t* row = head.rows + (token - head.begin) * head.row_bytes;
    for (int i = token * blocks; i < (token + 1) * blocks; ++i, row += 2 + kBytes) {
      MoveBytes<kDirection>(scales + 2 * static_cast<size_t>(i), row, 2);
      MoveBytes<kDirection>(head.page + static_cast<size_t>(i) * kBytes, row + 2, kBytes);
    }
  }
}

template <Direction kDirection>
void MovePlainValues(const HeadRows& head, size_t element_bytes) {
  const size_t bytes = head.head_dim * element_bytes;
  for (int token = head.begin; token < head.end; ++token) {
    MoveBytes<kDirection>(head.page + token * bytes, head.rows + (token - head.begin) * head.row_bytes, bytes);
  }
}

template <Direction kDirection>
void MoveKeys(KvType type, const HeadRows& head) {
  switch (type) {
    case KvType::kF32:
      return MoveTransposed<uint32_t, kDirection>(head.page, head.head_dim, head, head.rows);
    case KvType::kF16:
      return MoveTransposed<uint16_t, kDirection>(head.page, head.head_dim, head, head.rows);
    case KvType::kQ8_0:
      return MoveKeyBlocks<32, kDirection>(head);
    case KvType::kQ4_0:
      return MoveKeyBlocks<16, kDirection>(head);
  }
}

template <Direction kDirection>
void MoveValues(KvType type, const HeadRows& head) {
  switch (type) {
    case KvType::kF32:
      return MovePlainValues<kDirection>(head, 4);
    case KvType::kF16:
      return MovePlainValues<kDirection>(head, 2);
    case KvType::kQ8_0:
      return MoveValueBlocks<32, kDirection>(head);
    case KvType::kQ4_0:
      return MoveValueBlocks<16, kDirection>(head);
  }
}

// In the direction of reading, the page is only read, and in that of writing, the rows. Rows that are null are left out.
template <Direction kDirection>
void MoveRows(const KvLayer& cache, int page, int row_begin, int row_end, uint8_t* k_rows, uint8_t* v_rows) {
  LAYOVER_CHECK(page >= 0 && page < cache.n_pages);
  LAYOVER_CHECK(row_begin >= 0 && row_begin < row_end && row_end <= kTokens);
  const size_t head_row_bytes = KvRowBytes(cache.type, 1, cache.head_dim);
  const auto rows_of = [&](void* pool, uint8_t* rows, int h) {
    return HeadRows{CpuKvHead(pool, cache, page, h), rows + h * head_row_bytes, head_row_bytes * cache.kv_heads, row_begin,
                    row_end, cache.head_dim};
  };
  for (int h = 0; h < cache.kv_heads; ++h) {
    if (k_rows != nullptr) MoveKeys<kDirection>(cache.type, rows_of(cache.k_pool, k_rows, h));
    if (v_rows != nullptr) MoveValues<kDirection>(cache.type, rows_of(cache.v_pool, v_rows, h));
  }
}

// Rows of a matrix [n][columns] of bytes: the first `kept` bytes of each from src, zero behind.
void CopyRowStarts(uint8_t* dst, const uint8_t* src, int n, size_t columns, size_t kept) {
  for (int i = 0; i < n; ++i, dst += columns, src += columns) {
    std::memcpy(dst, src, kept);
    std::memset(dst + kept, 0, columns - kept);
  }
}

}  // namespace

size_t CpuKvHeadBytes(KvType type, int head_dim) {
  return KvRowBytes(type, 1, head_dim) * kTokens;
}

bool CpuSupportsKv(KvType type, int head_dim) {
  const int multiple = type == KvType::kQ8_0 || type == KvType::kQ4_0 ? kBlock : 8;
  return head_dim > 0 && head_dim <= limits::kMaxHeadDim && head_dim % multiple == 0;
}

void CpuReadKvRows(const KvLayer& cache, int page, int row_begin, int row_end, void* k_rows, void* v_rows) {
  MoveRows<Direction::kRead>(cache, page, row_begin, row_end, static_cast<uint8_t*>(k_rows),
                             static_cast<uint8_t*>(v_rows));
}

void CpuWriteKvRows(const KvLayer& cache, int page, int row_begin, int row_end, const void* k_rows,
                    const void* v_rows) {
  MoveRows<Direction::kWrite>(cache, page, row_begin, row_end, static_cast<uint8_t*>(const_cast<void*>(k_rows)),
                              static_cast<uint8_t*>(const_cast<void*>(v_rows)));
}

void CpuCopyKvPage(const KvLayer& cache, int src_page, int dst_page, int rows) {
  LAYOVER_CHECK(src_page >= 0 && src_page < cache.n_pages && dst_page >= 0 && dst_page < cache.n_pages);
  LAYOVER_CHECK(src_page != dst_page && rows >= 0 && rows <= kTokens);
  const int dim = cache.head_dim;
  const bool blocked = cache.type == KvType::kQ8_0 || cache.type == KvType::kQ4_0;
  const int scales = blocked ? dim / kBlock : 0;
  // Bytes of one token's values in a head; K has them spread over rows of 64 elements, V together.
  const size_t value_bytes = KvRowBytes(cache.type, 1, dim) - static_cast<size_t>(scales) * 2;
  const size_t element = cache.type == KvType::kF32 ? 4 : cache.type == KvType::kF16 ? 2 : 1;
  const size_t values = value_bytes * kTokens;
  for (int h = 0; h < cache.kv_heads; ++h) {
    uint8_t* dst = CpuKvHead(cache.k_pool, cache, dst_page, h);
    const uint8_t* src = CpuKvHead(cache.k_pool, cache, src_page, h);
    CopyRowStarts(dst, src, static_cast<int>(value_bytes / element), kTokens * element, rows * element);
    CopyRowStarts(dst + values, src + values, scales, kTokens * 2, rows * 2);
    dst = CpuKvHead(cache.v_pool, cache, dst_page, h);
    src = CpuKvHead(cache.v_pool, cache, src_page, h);
    CopyRowStarts(dst, src, 1, values, rows * value_bytes);
    CopyRowStarts(dst + values, src + values, 1, static_cast<size_t>(scales) * 2 * kTokens,
                  static_cast<size_t>(scales) * 2 * rows);
  }
}

void CpuZeroKvPage(const KvLayer& cache, int page) {
  LAYOVER_CHECK(page >= 0 && page < cache.n_pages);
  const size_t bytes = CpuKvHeadBytes(cache.type, cache.head_dim) * cache.kv_heads;
  std::memset(CpuKvHead(cache.k_pool, cache, page, 0), 0, bytes);
  std::memset(CpuKvHead(cache.v_pool, cache, page, 0), 0, bytes);
}

}  // namespace layover
