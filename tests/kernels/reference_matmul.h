// The matrix product in double precision, with the error that float32 in the contract's order (ops.h, MatMulArgs) may
// have at most, and makers of weights and activations for the tests.
#ifndef LAYOVER_TESTS_KERNELS_REFERENCE_MATMUL_H_
#define LAYOVER_TESTS_KERNELS_REFERENCE_MATMUL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/ops.h"

namespace layover {

inline constexpr WeightType kMatMulTypes[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBF16,
                                              WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0,
                                              WeightType::kQ6_K};

inline std::vector<CpuIsa> AvailableIsas() {
  std::vector<CpuIsa> isas;
  for (int i = 0; i <= static_cast<int>(BestCpuIsa()); ++i) isas.push_back(static_cast<CpuIsa>(i));
  return isas;
}

// ------------------------------------------------------------------------------------------------------------ weights

struct RawWeight {
  WeightType type = WeightType::kF32;
  int experts = 1;
  int rows = 0;
  int cols = 0;
  std::vector<uint8_t> data;  // GGUF's layout

  const uint8_t* row(int r) const { return data.data() + r * RowBytes(type, cols); }
  WeightSource Source() const { return {type, experts, rows, cols, data.data(), data.size()}; }
};

// Byte offsets of the f16 fields of a block.
inline std::vector<int> HalfFields(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kQ8_0:
      return {0};
    case WeightType::kQ4_1:
      return {0, 2};
    case WeightType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

inline void PutHalf(uint8_t* at, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(at, &half, sizeof(half));
}

// Random integers, scales and minima about as large as a model's; float types: normal values.
inline RawWeight RandomWeight(WeightType type, int rows, int cols, uint32_t seed, int experts = 1) {
  RawWeight weight{type, experts, rows, cols, std::vector<uint8_t>(RowBytes(type, cols) * rows * experts)};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  const size_t block_bytes = BlockBytes(type);
  for (size_t at = 0; at < weight.data.size(); at += block_bytes) {
    uint8_t* block = weight.data.data() + at;
    const float value = normal(random);
    switch (type) {
      case WeightType::kF32:
        std::memcpy(block, &value, 4);
        continue;
      case WeightType::kF16:
        PutHalf(block, value);
        continue;
      case WeightType::kBF16:
        std::memcpy(block, reinterpret_cast<const uint8_t*>(&value) + 2, 2);
        continue;
      default:
        break;
    }
    for (size_t i = 0; i < block_bytes; ++i) block[i] = static_cast<uint8_t>(random());
    for (const int field : HalfFields(type)) PutHalf(block + field, normal(random));
  }
  return weight;
}

// One row as double, split into what the scale carries and what the minimum adds; both exact.
struct ExactRow {
  std::vector<double> scaled;
  std::vector<double> minimum;
};

inline ExactRow DecodeExactly(const RawWeight& weight, int row) {
  ExactRow exact{std::vector<double>(weight.cols), std::vector<double>(weight.cols)};
  if (weight.type == WeightType::kQ4_1) {
    for (int k = 0; k < weight.cols; ++k) {
      const uint8_t* block = weight.row(row) + k / 32 * 20;
      uint16_t d, m;
      std::memcpy(&d, block, 2);
      std::memcpy(&m, block + 2, 2);
      const int q = block[4 + k % 16] >> (k % 32 / 16 * 4) & 15;
      exact.scaled[k] = static_cast<double>(HalfToFloat(d)) * q;
      exact.minimum[k] = HalfToFloat(m);
    }
    return exact;
  }
  // The other types' values fit in float32 without rounding.
  std::vector<float> values(weight.cols);
  DequantizeRow(weight.type, weight.row(row), weight.cols, values.data());
  for (int k = 0; k < weight.cols; ++k) exact.scaled[k] = values[k];
  return exact;
}

// ---------------------------------------------------------------------------------------------------------- reference

struct ReferenceProduct {
  std::vector<double> value;  // [n_rows, n_out]
  std::vector<double> bound;  // how far a float32 product in the contract's order may be from value
};

// One output, added up in the contract's order, and how far float32 may be from it: each rounding is off by at most
// 2^-24 of its result, or 2^-150 among subnormals. Errors made so far pass through later additions unchanged.
class BoundedSum {
 public:
  // A product whose factors were rounded `roundings` times before an fma added it.
  void AddProduct(double value, int roundings) {
    bound_ += std::abs(value) * roundings * kUnit + roundings * kSmallest;
    Add(value);
  }
  void Add(double value) {
    value_ += value;
    bound_ += (std::abs(value_) + bound_) * kUnit + kSmallest;
  }
  void Allow(double error) { bound_ += error; }
  double value() const { return value_; }
  double bound() const { return bound_ * (1 + 0x1p-20); }  // roundings of roundings, and double's own

 private:
  static constexpr double kUnit = 0x1p-24, kSmallest = 0x1p-149;
  double value_ = 0;
  double bound_ = 0;
};

inline int GroupCols(WeightType type) {
  return BlockElements(type) == 1 ? 1 : type == WeightType::kQ6_K ? 16 : 32;
}

// x, x_error: [cols]. x_error: how far the product's own activations may be from x; null for not at all.
inline BoundedSum DotInDouble(const ExactRow& w, int group, bool has_minimum, const double* x, const double* x_error) {
  BoundedSum sum;
  const int cols = static_cast<int>(w.scaled.size());
  for (int begin = 0; begin < cols; begin += group) {
    double scaled = 0, minimum = 0;
    for (int k = begin; k < begin + group; ++k) {
      scaled += w.scaled[k] * x[k];
      minimum += w.minimum[k] * x[k];
      if (x_error != nullptr) sum.Allow(std::abs(w.scaled[k] + w.minimum[k]) * x_error[k]);
    }
    sum.AddProduct(scaled, group == 1 ? 0 : 2);   // float(dot), d * da
    if (has_minimum) sum.AddProduct(minimum, 1);  // float(sum) * da
  }
  return sum;
}

// x: [n_rows, cols]. x_error: the same shape, or empty.
inline ReferenceProduct MultiplyInDouble(const RawWeight& weight, const std::vector<double>& x,
                                         const std::vector<double>& x_error, int n_rows, const float* bias = nullptr,
                                         const float* residual = nullptr) {
  ReferenceProduct product;
  product.value.resize(static_cast<size_t>(n_rows) * weight.rows);
  product.bound.resize(product.value.size());
  for (int o = 0; o < weight.rows; ++o) {
    const ExactRow w = DecodeExactly(weight, o);
    for (int r = 0; r < n_rows; ++r) {
      const size_t at = static_cast<size_t>(r) * weight.cols;
      BoundedSum sum = DotInDouble(w, GroupCols(weight.type), weight.type == WeightType::kQ4_1, &x[at],
                                   x_error.empty() ? nullptr : &x_error[at]);
      const size_t out = static_cast<size_t>(r) * weight.rows + o;
      if (bias != nullptr) sum.Add(bias[o]);
      if (residual != nullptr) sum.Add(residual[out]);
      product.value[out] = sum.value();
      product.bound[out] = sum.bound();
    }
  }
  return product;
}

// Fails naming the worst element, in units of its bound. Written so that a NaN is the worst of all.
inline testing::AssertionResult WithinBound(const std::vector<float>& got, const ReferenceProduct& want, int n_out) {
  double worst = -1;
  size_t worst_at = 0;
  for (size_t i = 0; i < want.value.size(); ++i) {
    const double ratio = std::abs(got[i] - want.value[i]) / want.bound[i];
    if (ratio <= worst) continue;
    worst = ratio;
    worst_at = i;
    if (std::isnan(ratio)) break;
  }
  char text[256];
  std::snprintf(text, sizeof(text), "worst element [%zu, %zu]: got %.9g, want %.9g, %.3f of the bound %.3g",
                worst_at / n_out, worst_at % n_out, got[worst_at], want.value[worst_at], worst, want.bound[worst_at]);
  if (worst >= 0 && worst <= 1) return testing::AssertionSuccess() << text;
  return testing::AssertionFailure() << text;
}

// -------------------------------------------------------------------------------------------------------- activations

inline std::vector<float> RandomRows(int n_rows, int dim, uint32_t seed) {
  std::vector<float> x(static_cast<size_t>(n_rows) * dim);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  return x;
}

// The rounding of kA16: half a step of the block's scale, and what x * (32639 / m) and m / 32639 round (below 2^-22 of
// 32639 steps); a block that is too small to be kept is off by all of itself.
inline std::vector<double> A16Error(const std::vector<float>& x, int dim) {
  std::vector<double> error(x.size());
  for (size_t block = 0; block < x.size(); block += 32) {
    double largest = 0;
    for (size_t k = block; k < block + 32; ++k) largest = std::max(largest, std::abs(static_cast<double>(x[k])));
    const double step = largest / 32639;
    for (size_t k = block; k < block + 32; ++k) {
      error[k] = largest < 0x1p-100 ? std::abs(static_cast<double>(x[k])) : step * (0.5 + 32639 * 0x1p-22);
    }
  }
  return error;
}

}  // namespace layover

#endif  // LAYOVER_TESTS_KERNELS_REFERENCE_MATMUL_H_
