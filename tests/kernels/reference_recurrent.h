// CausalConv, one token of GatedDeltaNet, and the operations of expert mixtures in double precision, with how far
// float32 in the contract's order may be from them (see reference.h for the rules of the bounds).
#ifndef LAYOVER_TESTS_KERNELS_REFERENCE_RECURRENT_H_
#define LAYOVER_TESTS_KERNELS_REFERENCE_RECURRENT_H_

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/kernels/reference.h"

namespace layover::reference {

inline constexpr double kSecondOrder = 1 + 0x1p-10;  // products of errors

// silu(sum of weight[t] * u[t]); u: the last inputs of one channel, the oldest first.
inline Bounded CausalConv(const std::vector<float>& u, const float* weight) {
  double sum = 0, magnitude = 0;
  for (size_t t = 0; t < u.size(); ++t) {
    sum += static_cast<double>(weight[t]) * u[t];
    magnitude += std::abs(static_cast<double>(weight[t]) * u[t]);
  }
  const double value = sum * Sigmoid(sum);
  // One fma a tap; the slope of silu is below 1.1; silu itself as in Gated.
  return {value, 1.1 * static_cast<double>(u.size()) * kUnit * magnitude + std::abs(value) * 8 * kUnit + 0x1p-126};
}

// -------------------------------------------------------------------------------------------------- gated delta rule

struct DeltaToken {
  const float* q = nullptr;  // [dim], before normalisation
  const float* k = nullptr;
  const float* v = nullptr;
  double alpha = 0;
  double beta = 0;
  double a = 0;
  double dt_bias = 0;
  double eps = 0;
  int dim = 0;
};

struct DeltaResult {
  std::vector<Bounded> state;  // [dim (value), dim (key)]
  std::vector<Bounded> out;    // [dim]
};

inline std::vector<double> Normalised(const float* x, int dim, double eps, double scale) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += static_cast<double>(x[i]) * x[i];
  std::vector<double> y(x, x + dim);
  for (double& value : y) value = value / std::sqrt(sum + eps) * scale;
  return y;
}

// One token from `state` [dim (value), dim (key)] on. Bounds are those of one token: `state` is taken as exact.
inline DeltaResult DeltaStep(const DeltaToken& token, const float* state) {
  const int dim = token.dim;
  const double sums = (dim / 16 + 6) * kUnit;  // of a sum in lanes and the tree, relative to the sum of magnitudes
  const std::vector<double> k = Normalised(token.k, dim, token.eps, 1);
  const std::vector<double> q = Normalised(token.q, dim, token.eps, 1 / std::sqrt(static_cast<double>(dim)));
  const double k_error = sums / 2 + 4 * kUnit;  // relative: the root halves; + eps, root, 1 /, product
  const double q_error = k_error + 3 * kUnit;   // the root of dim, 1 /, product
  const double x = token.alpha + token.dt_bias;
  const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  const double decay = std::exp(token.a * softplus);
  // The sum of alpha and its bias rounds; exp 4 u, s 2 u, the series 3 u and a product, the last sum; a; exp.
  const double decay_error = std::abs(token.a) * (12 * softplus + std::abs(x)) * kUnit + 5 * kUnit;
  const double beta = Sigmoid(token.beta);

  DeltaResult result;
  result.state.resize(static_cast<size_t>(dim) * dim);
  result.out.resize(dim);
  for (int j = 0; j < dim; ++j) {
    const float* row = state + static_cast<ptrdiff_t>(j) * dim;
    double held = 0, held_magnitude = 0;
    for (int i = 0; i < dim; ++i) {
      held += row[i] * decay * k[i];
      held_magnitude += std::abs(row[i] * decay * k[i]);
    }
    const double rest = token.v[j] - held;
    const double delta = beta * rest;
    const double delta_error =
        beta * (held_magnitude * (decay_error + kUnit + k_error + sums) + std::abs(rest) * kUnit) +
        std::abs(delta) * 9 * kUnit;  // sigmoid 8 u and the product
    for (int i = 0; i < dim; ++i) {
      Bounded& s = result.state[static_cast<size_t>(j) * dim + i];
      s.value = row[i] * decay + k[i] * delta;
      s.bound = kSecondOrder * (std::abs(row[i] * decay) * (decay_error + kUnit) + std::abs(k[i]) * delta_error +
                                std::abs(k[i] * delta) * k_error + std::abs(s.value) * kUnit) +
                kTiny;
      result.out[j].value += s.value * q[i];
      result.out[j].bound += kSecondOrder * (s.bound * std::abs(q[i]) + std::abs(s.value * q[i]) * (q_error + sums));
    }
    result.out[j].bound += kTiny;
  }
  return result;
}

// ------------------------------------------------------------------------------------------------ mixture of experts

struct Route {
  std::vector<int32_t> chosen;
  std::vector<Bounded> weights;
};

inline Route MoeRoute(const float* logits, int experts, int k, bool softmax_after_top_k, double scale) {
  std::vector<int32_t> ids(experts);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  Route route;
  route.chosen.assign(ids.begin(), ids.begin() + k);
  std::sort(route.chosen.begin(), route.chosen.end());
  const double max = logits[ids[0]];
  double all = 0, of_chosen = 0;
  for (int e = 0; e < experts; ++e) all += std::exp(logits[e] - max);
  if (softmax_after_top_k) all = 1;
  for (const int32_t e : route.chosen) of_chosen += std::exp(logits[e] - max) / all;
  if (!softmax_after_top_k) of_chosen = std::max(of_chosen, 0x1p-14);
  const double range = max - logits[ids[k - 1]];
  for (const int32_t e : route.chosen) {
    const double weight = std::exp(logits[e] - max) / all / of_chosen * scale;
    // The difference and exp, above and below the line; the sums over all and over the chosen; three operations.
    const double error = 2 * (range + 4) * kUnit + 2 * (experts / 16 + 6 + k) * kUnit + 4 * kUnit;
    route.weights.push_back({weight, weight * error + std::abs(scale) * 0x1p-120});
  }
  return route;
}

// residual + sum of weights[j] * parts[j]; parts: [k, dim].
inline std::vector<Bounded> MoeCombine(const float* parts, const float* weights, const float* residual, int k,
                                       int dim) {
  std::vector<Bounded> out(dim);
  for (int d = 0; d < dim; ++d) {
    double magnitude = std::abs(residual[d]);
    out[d].value = residual[d];
    for (int j = 0; j < k; ++j) {
      const double part = static_cast<double>(weights[j]) * parts[static_cast<ptrdiff_t>(j) * dim + d];
      out[d].value += part;
      magnitude += std::abs(part);
    }
    out[d].bound = magnitude * k * kUnit + kTiny;
  }
  return out;
}

}  // namespace layover::reference

#endif  // LAYOVER_TESTS_KERNELS_REFERENCE_RECURRENT_H_
