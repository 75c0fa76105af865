// Every operation of kernels/ops.h but the matrix product (reference_matmul.h) in double precision, written to be read,
// and next to each value how far float32 in the contract's order may be from it. One function a row: rows do not know
// of each other.
//
// Bounds: a float operation is off by at most u = 2^-24 of its result, a sum of n terms by about n u of the sum of
// magnitudes, own exp by 2 ulp = 4 u. They are worst cases, so a bound that is passed is a mistake, not bad luck.
#ifndef LAYOVER_TESTS_KERNELS_REFERENCE_H_
#define LAYOVER_TESTS_KERNELS_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace layover::reference {

inline constexpr double kUnit = 0x1p-24;
inline constexpr double kTiny = 0x1p-140;  // where floats become subnormal, errors are no longer relative

// A value and how far a float may be from it.
struct Bounded {
  double value = 0;
  double bound = 0;
};

using Rows = std::vector<std::vector<double>>;

// ---------------------------------------------------------------------------------------------- norms, RoPE, gates

// x / sqrt(mean(x^2) + eps) * weight
inline std::vector<Bounded> RmsNorm(const float* x, const float* weight, int dim, double eps) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double inverse = 1 / std::sqrt(sum / dim + eps);
  std::vector<Bounded> y(dim);
  for (int i = 0; i < dim; ++i) {
    y[i].value = x[i] * inverse * weight[i];
    // The sum: dim / 16 fused adds and 4 of the tree, halved by the root; then mean, + eps, root, 1 /, two products.
    y[i].bound = std::abs(y[i].value) * ((dim / 16 + 6) / 2.0 + 5) * kUnit + kTiny;
  }
  return y;
}

// cos and sin of position * frequency, times magnitude.
inline std::vector<Bounded> RopeAngles(int position, const double* frequencies, int n_pairs, double magnitude) {
  std::vector<Bounded> angles;
  for (int p = 0; p < n_pairs; ++p) {
    const double angle = position * frequencies[p];
    for (const double value : {std::cos(angle) * magnitude, std::sin(angle) * magnitude}) {
      angles.push_back({value, std::abs(value) * kUnit + 0x1p-50 * magnitude});  // one rounding to float
    }
  }
  return angles;
}

// (a, b) -> (a cos - b sin, a sin + b cos) for each pair of each head; the other dims pass. x: [heads, head_dim].
inline std::vector<Bounded> Rope(const float* x, const float* angles, int heads, int head_dim, int n_pairs,
                                 RopePairing pairing) {
  std::vector<Bounded> y(static_cast<size_t>(heads) * head_dim);
  for (size_t i = 0; i < y.size(); ++i) y[i].value = x[i];
  for (int h = 0; h < heads; ++h) {
    for (int p = 0; p < n_pairs; ++p) {
      const size_t first = static_cast<size_t>(h) * head_dim + (pairing == RopePairing::kNorm ? 2 * p : p);
      const size_t second = first + (pairing == RopePairing::kNorm ? 1 : n_pairs);
      const double a = x[first], b = x[second], c = angles[2 * p], s = angles[2 * p + 1];
      const double magnitude = std::abs(a * c) + std::abs(b * s) + std::abs(a * s) + std::abs(b * c);
      y[first] = {a * c - b * s, 2 * kUnit * magnitude + kTiny};
      y[second] = {a * s + b * c, 2 * kUnit * magnitude + kTiny};
    }
  }
  return y;
}

inline double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

inline Bounded Gated(GateKind kind, float gate, float up) {
  const double g = gate;
  double act = 0;
  double argument_error = 0;  // of what goes into exp, absolute
  switch (kind) {
    case GateKind::kSilu:
      act = g * Sigmoid(g);
      break;
    case GateKind::kSigmoid:
      act = Sigmoid(g);
      break;
    case GateKind::kGeluTanh: {
      const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      act = g / 2 * (1 + std::tanh(u));
      // tanh cancels in double where u is very negative; the other form does not.
      if (u < -1) act = g * Sigmoid(2 * u);
      argument_error = std::abs(2 * u) * 6 * kUnit;
      break;
    }
    case GateKind::kClampedSwiglu: {
      const double clamped = std::min(g, 7.0);
      const double u = std::clamp<double>(up, -7, 7) + 1;  // off by a rounding
      const double value = clamped * Sigmoid(1.702 * clamped) * u;
      // As below, and the constant 1.702 and its product are rounded.
      return {value, std::abs(value) * (9 + std::abs(1.702 * clamped) * 2) * kUnit + std::abs(u * clamped) * 0x1p-126 +
                         kTiny};
    }
  }
  const double value = act * up;
  // exp 4 u, then +, /, *; where exp(-g) overflows, the result is rounded to zero instead of something below 1e-38.
  return {value, std::abs(value) * (8 * kUnit + argument_error) + std::abs(up) * std::max(1.0, std::abs(g)) * 0x1p-126};
}

// ---------------------------------------------------------------------------------------------------------- attention

struct AttentionRow {
  const float* q = nullptr;    // [head_dim]
  const Rows* keys = nullptr;  // [position][head_dim] of the K/V head, as the cache's type holds them
  const Rows* values = nullptr;
  int position = 0;
  int window = 0;
  double scale = 0;
  const float* sink = nullptr;
};

// softmax(scale * q k) v over the positions that the query sees.
inline std::vector<Bounded> Attention(const AttentionRow& row) {
  const int dim = static_cast<int>(row.keys->front().size());
  const int begin = row.window > 0 ? std::max(0, row.position - row.window + 1) : 0;
  const int end = row.position + 1;
  std::vector<double> scores;
  double max = row.sink != nullptr ? *row.sink : -INFINITY;
  double score_error = 0;  // absolute, of the worst score
  double range = 0;
  for (int p = begin; p < end; ++p) {
    double dot = 0, magnitude = 0;
    for (int d = 0; d < dim; ++d) {
      dot += row.q[d] * (*row.keys)[p][d];
      magnitude += std::abs(row.q[d] * (*row.keys)[p][d]);
    }
    scores.push_back(dot * row.scale);
    max = std::max(max, scores.back());
    score_error = std::max(score_error, (dim + 2) * kUnit * magnitude * row.scale);
  }
  double sum = row.sink != nullptr ? std::exp(*row.sink - max) : 0;
  for (double& score : scores) {
    range = std::max(range, max - score);
    score = std::exp(score - max);
    sum += score;
  }
  const double blocks = (end - 1) / kPageTokens - begin / kPageTokens + 1;
  // Of a weight, relative: its own score and the largest one, the differences of scores and maxima that exp is taken
  // of, exp itself and the factors of the merges. The same again for the sum it is divided by. Then 64 additions in a
  // block and one per merge, in both sums.
  const double weight_error = 2 * (2 * score_error + 2 * range * kUnit + (8 + 6 * blocks) * kUnit);
  const double sums_error = (2 * kPageTokens + 4 * blocks + 8) * kUnit;
  std::vector<Bounded> out(dim);
  for (int d = 0; d < dim; ++d) {
    double magnitude = 0;
    for (int p = begin; p < end; ++p) {
      out[d].value += scores[p - begin] / sum * (*row.values)[p][d];
      magnitude += scores[p - begin] / sum * std::abs((*row.values)[p][d]);
    }
    out[d].bound = magnitude * (weight_error + sums_error) + kTiny;
  }
  return out;
}

}  // namespace layover::reference

#endif  // LAYOVER_TESTS_KERNELS_REFERENCE_H_
