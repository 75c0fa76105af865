// The hybrid and mixture operations in plain loops, and the queue.
#include "tests/kernels/late_device.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/check.h"
#include "kernels/dequantize.h"

namespace layover::kernel_test {
namespace {

float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}
float Softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// The state of a slice in `state` [n_slots, slot_floats]: starts as slot `from`, or zero, and is left in slot `to`.
float* BeginState(const StateSlots& slots, int slice, size_t slot_floats, float* state) {
  float* const to = state + slots.to[slice] * slot_floats;
  if (slots.from[slice] < 0) {
    std::fill_n(to, slot_floats, 0.0f);
  } else if (slots.from[slice] != slots.to[slice]) {
    std::copy_n(state + slots.from[slice] * slot_floats, slot_floats, to);
  }
  return to;
}

// x / max(|x|, eps) * scale
std::vector<float> Normalised(const float* x, int dim, float eps, float scale) {
  const float norm = std::sqrt(std::inner_product(x, x + dim, x, 0.0f));
  std::vector<float> y(x, x + dim);
  for (float& value : y) value = value / std::max(norm, eps) * scale;
  return y;
}

// One token of one value head; state is [dim (value), dim (key)].
void DeltaStep(const std::vector<float>& q, const std::vector<float>& k, const float* v, float decay, float beta,
               float* state, float* out) {
  const int dim = static_cast<int>(q.size());
  for (int j = 0; j < dim; ++j) {
    float* const row = state + static_cast<ptrdiff_t>(j) * dim;
    for (int i = 0; i < dim; ++i) row[i] *= decay;
    const float delta = beta * (v[j] - std::inner_product(row, row + dim, k.data(), 0.0f));
    for (int i = 0; i < dim; ++i) row[i] += k[i] * delta;
    out[j] = std::inner_product(row, row + dim, q.data(), 0.0f);
  }
}

class LateEvent : public Event {
 public:
  explicit LateEvent(std::shared_ptr<bool> done) : done_(std::move(done)) {}
  bool Done() const override { return *done_; }

 private:
  const std::shared_ptr<bool> done_;
};

}  // namespace

void LateStream::Put(std::function<void()> operation) {
  if (fail_next_.ok()) {
    waiting_.push_back(std::move(operation));
  } else {
    waiting_.push_back([this, status = std::exchange(fail_next_, absl::OkStatus())] { error_ = status; });
  }
}

std::unique_ptr<Event> LateStream::Record() {
  auto done = std::make_shared<bool>(false);
  waiting_.push_back([done] { *done = true; });
  return std::make_unique<LateEvent>(done);
}

absl::Status LateStream::Synchronize() {
  const std::vector<std::function<void()>> operations = std::exchange(waiting_, {});
  for (const std::function<void()>& operation : operations) {
    if (error_.ok()) operation();
  }
  return error_;
}

void LateStream::CausalConv(const CausalConvArgs& args) {
  Put([args] {
    const int history = args.taps - 1;
    for (int s = 0; s < args.slices.n_slices; ++s) {
      const SequenceSlice& slice = args.slices.slices[s];
      // [history, channels], the oldest input first.
      float* const past = BeginState(args.slots, s, static_cast<size_t>(history) * args.channels, args.state);
      for (int row = slice.row_begin; row < slice.row_begin + slice.row_count; ++row) {
        const float* const u = args.u + static_cast<ptrdiff_t>(row) * args.channels;
        for (int ch = 0; ch < args.channels; ++ch) {
          const float* const w = args.weight + static_cast<ptrdiff_t>(ch) * args.taps;
          float sum = 0;
          for (int t = 0; t < history; ++t) sum += w[t] * past[t * args.channels + ch];
          sum += w[history] * u[ch];
          args.out[static_cast<ptrdiff_t>(row) * args.channels + ch] = sum * Sigmoid(sum);
        }
        std::copy(past + args.channels, past + history * args.channels, past);
        std::copy_n(u, args.channels, past + (history - 1) * args.channels);
      }
    }
  });
}

void LateStream::GatedDeltaNet(const GatedDeltaNetArgs& args) {
  Put([args] {
    const int dim = args.dim, key_dim = args.key_heads * dim, width = 2 * key_dim + args.value_heads * dim;
    const size_t head_floats = static_cast<size_t>(dim) * dim;
    for (int s = 0; s < args.slices.n_slices; ++s) {
      const SequenceSlice& slice = args.slices.slices[s];
      float* const state = BeginState(args.slots, s, head_floats * args.value_heads, args.state);
      for (int row = slice.row_begin; row < slice.row_begin + slice.row_count; ++row) {
        const float* const qkv = args.qkv + static_cast<ptrdiff_t>(row) * width;
        for (int h = 0; h < args.value_heads; ++h) {
          const int key_head = args.key_head_is_modulo ? h % args.key_heads : h / (args.value_heads / args.key_heads);
          const int gate = row * args.value_heads + h;
          const float decay = std::exp(args.a[h] * Softplus(args.alpha[gate] + args.dt_bias[h]));
          DeltaStep(Normalised(qkv + key_head * dim, dim, args.eps, 1.0f / std::sqrt(static_cast<float>(dim))),
                    Normalised(qkv + key_dim + key_head * dim, dim, args.eps, 1.0f), qkv + 2 * key_dim + h * dim, decay,
                    Sigmoid(args.beta[gate]), state + h * head_floats, args.out + static_cast<ptrdiff_t>(gate) * dim);
        }
      }
    }
  });
}

void LateStream::MoeRoute(const MoeRouteArgs& args) {
  Put([args] {
    for (int row = 0; row < args.n_rows; ++row) {
      const float* const logits = args.logits + static_cast<ptrdiff_t>(row) * args.experts;
      int32_t* const chosen = args.chosen + static_cast<ptrdiff_t>(row) * args.k;
      float* const weights = args.weights + static_cast<ptrdiff_t>(row) * args.k;
      std::vector<int32_t> ids(args.experts);
      std::iota(ids.begin(), ids.end(), 0);
      std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
      std::copy_n(ids.begin(), args.k, chosen);
      std::sort(chosen, chosen + args.k);
      // Over all experts or over the chosen: the same but for the factor, and what the bound of the renormalisation
      // does.
      float all = 0, of_chosen = 0;
      const float max = logits[ids[0]];
      for (int e = 0; e < args.experts; ++e) all += std::exp(logits[e] - max);
      if (args.softmax_after_top_k) all = 1;
      for (int j = 0; j < args.k; ++j) {
        weights[j] = std::exp(logits[chosen[j]] - max) / all;
        of_chosen += weights[j];
      }
      const float divisor = args.softmax_after_top_k ? of_chosen : std::max(of_chosen, 0x1p-14f);
      for (int j = 0; j < args.k; ++j) weights[j] = weights[j] / divisor * args.weight_scale;
    }
  });
}

void LateStream::MoeMatMul(const MoeMatMulArgs& args) {
  Put([args] {
    const auto& weight = static_cast<const PlainWeight&>(*args.weight);
    const float* const x = static_cast<const float*>(args.x);
    for (int choice = 0; choice < args.n_rows * args.k; ++choice) {
      const float* const in = x + static_cast<ptrdiff_t>(args.x_per_choice ? choice : choice / args.k) * weight.cols;
      for (int o = 0; o < weight.rows; ++o) {
        args.out[static_cast<ptrdiff_t>(choice) * weight.rows + o] =
            std::inner_product(in, in + weight.cols, weight.Row(args.chosen[choice], o), 0.0f);
      }
    }
  });
}

void LateStream::MoeCombine(const MoeCombineArgs& args) {
  Put([args] {
    for (int row = 0; row < args.n_rows; ++row) {
      for (int d = 0; d < args.dim; ++d) {
        float sum = args.residual[static_cast<ptrdiff_t>(row) * args.dim + d];
        for (int j = 0; j < args.k; ++j) {
          const ptrdiff_t choice = static_cast<ptrdiff_t>(row) * args.k + j;
          sum += args.weights[choice] * args.parts[choice * args.dim + d];
        }
        args.out[static_cast<ptrdiff_t>(row) * args.dim + d] = sum;
      }
    }
  });
}

absl::StatusOr<std::unique_ptr<PackedWeight>> LateDevice::PackWeight(const WeightSource& source) {
  auto weight = std::make_unique<PlainWeight>();
  weight->type = source.type;
  weight->experts = source.experts;
  weight->rows = source.rows;
  weight->cols = source.cols;
  weight->values.resize(static_cast<size_t>(source.experts) * source.rows * source.cols);
  weight->device_bytes = weight->values.size() * sizeof(float);
  const size_t row_bytes = RowBytes(source.type, source.cols);
  LAYOVER_CHECK(source.bytes == row_bytes * source.experts * source.rows);
  for (int row = 0; row < source.experts * source.rows; ++row) {
    DequantizeRow(source.type, static_cast<const uint8_t*>(source.data) + row * row_bytes, source.cols,
                  &weight->values[static_cast<size_t>(row) * source.cols]);
  }
  return weight;
}

}  // namespace layover::kernel_test
