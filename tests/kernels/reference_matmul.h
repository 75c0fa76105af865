// The matrix product in double precision, with the error that float32 in the contract's order (ops.h, MatMulArgs) may
// have at most, and makers of weights and activations for the tests.
#ifndef LAYOVER_TESTS_KERNELS_REFERENCE_MATMUL_H_
#define LAYOVER_TESTS_KERNELS_REFERENCE_MATMUL_H_

#include <gtest/gtest.h>

#include <algorithm>
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

inline constexpr WeightType kMatMulTypes[] = {
    WeightType::kF32,     WeightType::kF16,    WeightType::kBF16,  WeightType::kQ4_0,  WeightType::kQ4_1,
    WeightType::kQ5_0,    WeightType::kQ5_1,   WeightType::kQ8_0,  WeightType::kQ2_K,  WeightType::kQ3_K,
    WeightType::kQ4_K,    WeightType::kQ5_K,   WeightType::kQ6_K,  WeightType::kIQ1_S, WeightType::kIQ1_M,
    WeightType::kIQ2_XXS, WeightType::kIQ2_XS, WeightType::kIQ2_S, WeightType::kIQ3_S, WeightType::kIQ3_XXS,
    WeightType::kIQ4_NL,  WeightType::kIQ4_XS, WeightType::kMXFP4};

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

// Byte offsets of the f16 fields of a block: d, then what the minimum is made of.
inline std::vector<int> HalfFields(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kIQ1_M:  // spread over other fields, see PutScales
    case WeightType::kMXFP4:  // a power of two
      return {};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

inline bool HasMinimum(WeightType type) {
  return HalfFields(type).size() == 2;
}

inline void PutHalf(uint8_t* at, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(at, &half, sizeof(half));
}

// Scale and minimum of a block; MXFP4 gets the power of two near |scale|.
inline void PutScales(WeightType type, uint8_t* block, float scale, float minimum) {
  const std::vector<int> fields = HalfFields(type);
  if (!fields.empty()) PutHalf(block + fields[0], scale);
  if (fields.size() == 2) PutHalf(block + fields[1], minimum);
  if (type == WeightType::kMXFP4) {
    block[0] = static_cast<uint8_t>(scale == 0 ? 0 : std::max(0, 128 + std::ilogb(scale)));
  }
  if (type == WeightType::kIQ1_M) {
    const uint16_t half = FloatToHalf(scale);
    for (int k = 0; k < 4; ++k) {
      uint8_t& top = block[48 + 2 * k + 1];
      top = static_cast<uint8_t>((top & 15) | (half >> 4 * k & 15) << 4);
    }
  }
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
    const float scale = normal(random);
    PutScales(type, block, scale, normal(random));
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
  // With a minimum: what is left when one of d and dmin is zero. Products of an f16 with a sub-scale and an integer of
  // a few bits fit in float32 without rounding.
  const std::vector<int> fields = HalfFields(weight.type);
  const size_t row_bytes = RowBytes(weight.type, weight.cols);
  std::vector<float> values(weight.cols);
  const auto decode_without = [&](int field, std::vector<double>* out) {
    std::vector<uint8_t> copy(weight.row(row), weight.row(row) + row_bytes);
    for (size_t at = 0; field >= 0 && at < row_bytes; at += BlockBytes(weight.type))
      PutHalf(copy.data() + at + field, 0);
    DequantizeRow(weight.type, copy.data(), weight.cols, values.data());
    out->assign(values.begin(), values.end());
  };
  if (HasMinimum(weight.type)) {
    decode_without(fields[1], &exact.scaled);
    decode_without(fields[0], &exact.minimum);
  } else {
    decode_without(-1, &exact.scaled);
  }
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

// Columns under one scale: ops.h leaves it to the type, kernels/README.md says it.
inline int GroupCols(WeightType type) {
  switch (type) {
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kQ6_K:
    case WeightType::kIQ1_S:
    case WeightType::kIQ1_M:
    case WeightType::kIQ2_XXS:
    case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S:
      return 16;
    default:
      return BlockElements(type) == 1 ? 1 : 32;
  }
}

// d * da among subnormals is off by up to 2^-150, and multiplies a dot below 2^28 (127 * 32639 * 32 and a bit).
inline constexpr double kSubnormalScale = 0x1p-122;

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
    if (group > 1) sum.Allow(kSubnormalScale);
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
      BoundedSum sum = DotInDouble(w, GroupCols(weight.type), HasMinimum(weight.type), &x[at],
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
