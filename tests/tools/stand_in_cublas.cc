// A stand-in for the few functions of cuBLAS that the measurements use, for emulated cards: the product is computed on
// the host in its turn on the stream. What cuBLAS refuses, in the order and with the types of its own header, it
// refuses.
#include <cstdint>

#include "kernels/emulation/foreign_stream.h"
#include "kernels/float16.h"
#include "tests/gpu/cublas.h"

namespace layover::gpu {
struct CublasContext {
  CUstream_st* stream = nullptr;
};
}  // namespace layover::gpu

namespace {

using layover::gpu::CublasContext;
using layover::gpu::kCublasSuccess;

constexpr int kInvalidValue = 7, kNotSupported = 15;
constexpr int kStandInVersion = 130100;

float LoadHalf(uint16_t half) {
  return layover::HalfToFloat(half);
}
uint16_t StoreHalf(float value) {
  return layover::FloatToHalf(value);
}
int32_t LoadByte(int8_t byte) {
  return byte;
}
int32_t StoreSum(int32_t sum) {
  return sum;
}

struct Matrices {
  int m;
  int n;
  int k;
  const void* a;
  const void* b;
  void* c;
};

// By columns: c[m, n] = a[k, m]^T b[k, n].
template <typename In, typename Sum, typename Out>
void Multiply(const Matrices& of, Sum (*load)(In), Out (*store)(Sum)) {
  for (int64_t column = 0; column < of.n; ++column) {
    for (int64_t row = 0; row < of.m; ++row) {
      Sum sum = 0;
      for (int64_t i = 0; i < of.k; ++i) {
        sum +=
            load(static_cast<const In*>(of.a)[row * of.k + i]) * load(static_cast<const In*>(of.b)[column * of.k + i]);
      }
      static_cast<Out*>(of.c)[column * of.m + row] = store(sum);
    }
  }
}

}  // namespace

extern "C" {

// What tells it from cuBLAS.
__attribute__((visibility("default"))) void layover_cublas_stand_in() {}

__attribute__((visibility("default"))) int cublasCreate_v2(CublasContext** made) {
  *made = new CublasContext;
  return kCublasSuccess;
}
__attribute__((visibility("default"))) int cublasDestroy_v2(CublasContext* context) {
  delete context;
  return kCublasSuccess;
}
__attribute__((visibility("default"))) int cublasSetStream_v2(CublasContext* context, CUstream_st* stream) {
  context->stream = stream;
  return kCublasSuccess;
}
__attribute__((visibility("default"))) int cublasGetVersion_v2(CublasContext*, int* version) {
  *version = kStandInVersion;
  return kCublasSuccess;
}

__attribute__((visibility("default"))) int cublasGemmEx(CublasContext* context, int transposed_a, int transposed_b,
                                                        int m, int n, int k, const void* alpha, const void* a,
                                                        int a_type, int lda, const void* b, int b_type, int ldb,
                                                        const void* beta, void* c, int c_type, int ldc,
                                                        int compute_type, int algorithm) {
  const Matrices matrices{m, n, k, a, b, c};
  if (transposed_a != 1 || transposed_b != 0 || lda != k || ldb != k || ldc != m || algorithm != -1)
    return kInvalidValue;
  if (a_type == 3 && b_type == 3 && c_type == 10 && compute_type == 72) {  // integer tensor cores want multiples of 4
    if (m % 4 != 0 || k % 4 != 0) return kNotSupported;
    if (*static_cast<const int32_t*>(alpha) != 1 || *static_cast<const int32_t*>(beta) != 0) return kInvalidValue;
    context->stream->Enqueue([matrices] {
      Multiply(matrices, LoadByte, StoreSum);
      return ForeignStep::kDone;
    });
    return kCublasSuccess;
  }
  if (a_type != 2 || b_type != 2 || c_type != 2 || compute_type != 68) return kNotSupported;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return kInvalidValue;
  context->stream->Enqueue([matrices] {
    Multiply(matrices, LoadHalf, StoreHalf);
    return ForeignStep::kDone;
  });
  return kCublasSuccess;
}

}  // extern "C"
