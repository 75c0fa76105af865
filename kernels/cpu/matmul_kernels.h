// What matmul.cc hands to the products of one instruction set. Included by per-ISA files: plain structs only.
#ifndef LAYOVER_KERNELS_CPU_MATMUL_KERNELS_H_
#define LAYOVER_KERNELS_CPU_MATMUL_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace layover {

// Tiles [tile_begin, tile_end) of a weight times n_rows prepared rows.
struct MatMulJob {
  const uint8_t* tiles = nullptr;  // of one expert, from tile 0
  size_t tile_bytes = 0;
  int tile_begin = 0;
  int tile_end = 0;
  int cols = 0;
  int n_out = 0;               // the last tile may hold fewer than 16 outputs
  const uint8_t* x = nullptr;  // [n_rows][x_row_bytes]
  size_t x_row_bytes = 0;
  int n_rows = 0;
  float* out = nullptr;  // [n_rows, n_out], stride out_stride
  ptrdiff_t out_stride = 0;
  const int32_t* out_rows = nullptr;  // [n_rows]: row r is stored as row out_rows[r] of out; null: as row r
  const float* bias = nullptr;        // [n_out] or null
  const float* residual = nullptr;    // as out, or null; may be out
  uint8_t* scratch = nullptr;         // MatMulKernels::scratch_bytes, aligned to 64
};

struct MatMulKernels {
  using Kernel = void (*)(const MatMulJob& job);
  Kernel f32, f16, bf16, q4_0, q4_1, q8_0, q6_k;
  size_t (*scratch_bytes)(int n_rows, int cols);
};

extern const MatMulKernels kMatMulScalar;
extern const MatMulKernels kMatMulAvx2;
extern const MatMulKernels kMatMulAvx512;

}  // namespace layover

#endif  // LAYOVER_KERNELS_CPU_MATMUL_KERNELS_H_
