#include "stage_worker/models/pass.h"

#include "common/check.h"

namespace layover {

void Pass::Normalize(const Norm& norm, const float* x, float* y, int rows) {
  const int dim = norm.dim();
  stream.RmsNorm({.x = x,
                  .weight = norm.values(),
                  .y = y,
                  .n_rows = rows,
                  .dim = dim,
                  .x_stride = dim,
                  .y_stride = dim,
                  .eps = eps});
}

const void* Pass::Prepare(const float* rows, int n, int dim, ActivationFormat format) {
  void* prepared = arena.Take(device_.ActivationBytes(format, n, dim));
  stream.PrepareActivation({.x = rows, .n_rows = n, .dim = dim, .x_stride = dim, .format = format, .out = prepared});
  return prepared;
}

void Pass::Project(const float* rows, int dim, std::initializer_list<Product> products) {
  const Arena::Scope scope(arena);
  const void* prepared[2] = {};  // by format
  for (const Product& product : products) {
    const PackedWeight& weight = *product.linear->weight;
    LAYOVER_CHECK(weight.cols == dim);
    const void*& x = prepared[static_cast<size_t>(weight.activation)];
    if (x == nullptr) x = Prepare(rows, n_rows(), dim, weight.activation);
    const DeviceBuffer* bias = product.linear->bias.get();
    stream.MatMul({.weight = &weight,
                   .x = x,
                   .n_rows = n_rows(),
                   .out = product.out,
                   .out_stride = weight.rows,
                   .bias = bias == nullptr ? nullptr : bias->As<float>(),
                   .residual = product.residual});
  }
}

void Pass::Add(const float* added, int dim, float* x) {
  // A mixture of one part that counts whole: fma(1, added, x) rounds as the sum does.
  stream.MoeCombine({.parts = added, .weights = ones, .residual = x, .out = x, .n_rows = n_rows(), .k = 1, .dim = dim});
}

}  // namespace layover
