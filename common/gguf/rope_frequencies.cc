// The rotation's frequencies. For pair p of n = n_rot dims:
//   theta_p = base^(-2p/n) / factors[p]
//   linear: theta_p / factor
//   YaRN:   theta_p * (s * (1 - m_p) + m_p), s = 1 / factor,
//           m_p = ext * (1 - clamp((p - low) / max(0.001, high - low), 0, 1)),
//           dim(beta) = n * ln(original_context / (2 pi beta)) / (2 ln base),
//           low = max(0, floor(dim(beta_fast))), high = min(n - 1, ceil(dim(beta_slow)));
//           cos and sin are multiplied by 1 + 0.1 ln(factor).
// Sliding-window layers have a base of their own; gemma3's are not scaled.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "common/gguf/model_shape.h"
#include "common/status.h"

namespace layover {
namespace {

bool IsScaled(const ModelShape& shape, LayerKind kind) {
  return shape.rope.scaling != RopeScaling::kNone &&
         !(shape.kind == Architecture::kGemma3 && kind == LayerKind::kSlidingWindow);
}

// The factor on theta_p, scaling only.
double ScaleOf(const RopeShape& rope, double base, int pair) {
  const double s = 1.0 / rope.factor;
  if (rope.scaling == RopeScaling::kLinear) return s;
  const auto dim = [&](double beta) {
    return rope.n_rot * std::log(static_cast<double>(rope.original_context) / (2 * std::numbers::pi * beta)) /
           (2 * std::log(base));
  };
  const double low = std::max(0.0, std::floor(dim(rope.yarn_beta_fast)));
  const double high = std::min(rope.n_rot - 1.0, std::ceil(dim(rope.yarn_beta_slow)));
  const double ramp = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
  const double keep = rope.yarn_ext_factor * (1.0 - ramp);
  return s * (1.0 - keep) + keep;
}

absl::StatusOr<std::vector<double>> ReadFactors(const GgufFile& file, int n_pairs) {
  const GgufTensor* tensor = file.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return std::vector<double>(n_pairs, 1.0);
  std::vector<double> factors;
  for (int p = 0; p < n_pairs; ++p) {
    float factor = 0;
    std::memcpy(&factor, tensor->data + p * sizeof(float), sizeof(float));
    if (!std::isfinite(factor) || factor <= 0) {
      return DataLoss("{}: element {} of rope_freqs.weight is {}, it must be positive", file.path(), p, factor);
    }
    factors.push_back(factor);
  }
  return factors;
}

}  // namespace

absl::StatusOr<std::vector<double>> RopeFrequencies(const ModelShape& shape, const GgufFile& file, LayerKind kind) {
  const RopeShape& rope = shape.rope;
  const int n_pairs = rope.n_rot / 2;
  const bool window = kind == LayerKind::kSlidingWindow && rope.freq_base_window > 0;
  const double base = window ? rope.freq_base_window : rope.freq_base;
  const bool scaled = IsScaled(shape, kind);
  ASSIGN_OR_RETURN(std::vector<double> frequencies, ReadFactors(file, n_pairs));
  for (int p = 0; p < n_pairs; ++p) {
    const double theta = std::pow(base, -2.0 * p / rope.n_rot) / frequencies[p];
    frequencies[p] = scaled ? theta * ScaleOf(rope, base, p) : theta;
  }
  return frequencies;
}

double RopeMagnitude(const ModelShape& shape, LayerKind kind) {
  const RopeShape& rope = shape.rope;
  if (rope.scaling != RopeScaling::kYarn || !IsScaled(shape, kind) || rope.factor <= 1) return rope.attn_factor;
  return rope.attn_factor * (1.0 + 0.1 * std::log(rope.factor));
}

}  // namespace layover
