// cuBLAS, whose products prefill is measured against: found when first asked for (the back end itself does without it),
// by the system's loader as libcublas.so.13, .12 or .11, or where LAYOVER_CUBLAS says.
#ifndef LAYOVER_TESTS_GPU_CUBLAS_H_
#define LAYOVER_TESTS_GPU_CUBLAS_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime.h"

namespace layover::gpu {

struct CublasContext;
using CublasGemmEx = int (*)(CublasContext* handle, int transposed_a, int transposed_b, int m, int n, int k,
                             const void* alpha, const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                             const void* beta, void* c, int c_type, int ldc, int compute_type, int algorithm);
// The numbers of cuBLAS 11 to 13 (library_types.h, cublas_api.h).
inline constexpr int kCublasSuccess = 0, kCublasTransposed = 1, kCublasPlain = 0, kCublasDefault = -1;
inline constexpr int kCuda16F = 2, kCuda8I = 3, kCuda32I = 10;
inline constexpr int kCublasCompute32F = 68, kCublasCompute32I = 72;
// What tells the tests' stand-in, which is all that emulated cards can use, from cuBLAS.
inline constexpr char kCublasStandInSymbol[] = "layover_cublas_stand_in";

class Cublas {
 public:
  // cublasGemmEx with int8 in, int32 out and sums (R_8I, R_32I, COMPUTE_32I); f16 in and out, f32 sums (R_16F,
  // COMPUTE_32F).
  enum class Kind { kInt8, kF16 };
  struct Shape {
    int rows = 0;
    int n_out = 0;
    int cols = 0;
  };
  // out[rows, n_out] = x[rows, cols] w[n_out, cols]^T; device memory.
  struct Product {
    Kind kind = Kind::kInt8;
    Shape shape;
    const void* w = nullptr;
    const void* x = nullptr;
    void* out = nullptr;
  };

  // Unavailable, saying what is missing. The queue outlives this.
  static absl::StatusOr<std::unique_ptr<Cublas>> Open(Queue* queue);
  ~Cublas();

  std::string Version() const;  // "13.1.0"
  absl::Status Multiply(const Product& product);

 private:
  Cublas() = default;
  CublasContext* handle_ = nullptr;
  int (*destroy_)(CublasContext*) = nullptr;
  CublasGemmEx gemm_ = nullptr;
  int version_ = 0;
};

}  // namespace layover::gpu

#endif  // LAYOVER_TESTS_GPU_CUBLAS_H_
