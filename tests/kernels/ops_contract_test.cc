// What kernels/ops.h promises beyond single operations: that work may run late, that errors stick, and that hybrid and
// mixture models fit.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/kv_fixture.h"
#include "tests/kernels/late_device.h"

namespace layover::kernel_test {
namespace {

class OpsContractTest : public testing::Test {
 protected:
  OpsContractTest() : device_(OpenCpu(BestVariant())), stream_(device_.NewComputeStream()) {}

  LateStream* late() { return static_cast<LateStream*>(stream_.get()); }

  LateDevice device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(OpsContractTest, ResultsAppearWhenTheStreamIsSynchronised) {
  const std::vector<float> x = NormalValues(64, 1), weight = NormalValues(64, 2);
  std::vector<float> y(64, NAN), host(64, NAN);
  {
    RmsNormArgs args = {x.data(), weight.data(), y.data(), 1, 64, 64, 64, 1e-5f};
    stream_->RmsNorm(args);
    args.x = nullptr;  // arguments are the stream's from the call on
  }
  const std::unique_ptr<Event> norm_done = stream_->Record();
  stream_->CopyToHost(host.data(), y.data(), 64 * sizeof(float));
  EXPECT_FALSE(norm_done->Done());
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(stream_->Synchronize().ok());
  EXPECT_TRUE(norm_done->Done());
  EXPECT_TRUE(WithinBounds(host.data(), reference::RmsNorm(x.data(), weight.data(), 64, 1e-5)));
}

TEST_F(OpsContractTest, ErrorsStick) {
  std::vector<float> y(4, 1.0f);
  late()->FailNext(absl::InternalError("the card fell off the bus"));
  stream_->Zero(y.data(), 8);
  stream_->Zero(y.data(), 16);
  const std::unique_ptr<Event> event = stream_->Record();
  EXPECT_EQ(stream_->Synchronize().message(), "the card fell off the bus");
  EXPECT_EQ(y, std::vector<float>(4, 1.0f)) << "nothing runs after a failure";
  EXPECT_FALSE(event->Done());
  stream_->Zero(y.data(), 16);
  EXPECT_EQ(stream_->Synchronize().message(), "the card fell off the bus");
}

// A step as a stage worker enqueues it, attention included, gives the bits of the CPU back end that runs at once.
TEST_F(OpsContractTest, AWholeLayerStepMayRunLate) {
  const TestCache at_once(OpenCpu(BestVariant()).get(), KvType::kF16, 2, 1, 32);
  const TestCache late(&device_, KvType::kF16, 2, 1, 32);
  const std::vector<float> qkv = NormalValues(70 * 96, 3);
  StepSlices step;
  step.Add(0, 70, {1, 0});
  std::vector<std::vector<float>> outs;
  for (const TestCache* cache : {&at_once, &late}) {
    const std::unique_ptr<Stream> stream =
        cache == &late ? device_.NewComputeStream() : OpenCpu(BestVariant())->NewComputeStream();
    std::vector<float>& out = outs.emplace_back(70 * 32, NAN);
    stream->StoreKv({cache->layer(), qkv.data() + 32, qkv.data() + 64, 96, step.Table()});
    AttentionArgs args;
    args.cache = cache->layer();
    args.q = qkv.data();
    args.q_stride = 96;
    args.out = out.data();
    args.out_stride = 32;
    args.heads = 1;
    args.scale = 0.2f;
    args.slices = step.Table();
    stream->Attention(args);
    ASSERT_TRUE(stream->Synchronize().ok());
  }
  EXPECT_TRUE(SameBits(outs[1], outs[0]));
}

// --------------------------------------------------------------------------------------------------- recurrent layers

constexpr int kDim = 8, kKeyHeads = 2, kValueHeads = 4, kChannels = 2 * kKeyHeads * kDim + kValueHeads * kDim;
constexpr size_t kStateFloats = kValueHeads * kDim * kDim;

// A recurrent layer's inputs for some tokens and its weights.
struct DeltaNetInputs {
  std::vector<float> qkv, alpha, beta, a, dt_bias;

  explicit DeltaNetInputs(int tokens, uint32_t seed)
      : qkv(NormalValues(static_cast<size_t>(tokens) * kChannels, seed)),
        alpha(NormalValues(static_cast<size_t>(tokens) * kValueHeads, seed + 1)),
        beta(NormalValues(static_cast<size_t>(tokens) * kValueHeads, seed + 2)),
        a{-0.5f, -1.0f, -2.0f, -0.1f},
        dt_bias{0.1f, 0.2f, -0.3f, 0.0f} {}

  GatedDeltaNetArgs Args(int first_token) const {
    GatedDeltaNetArgs args;
    args.qkv = qkv.data() + static_cast<ptrdiff_t>(first_token) * kChannels;
    args.alpha = alpha.data() + static_cast<ptrdiff_t>(first_token) * kValueHeads;
    args.beta = beta.data() + static_cast<ptrdiff_t>(first_token) * kValueHeads;
    args.a = a.data();
    args.dt_bias = dt_bias.data();
    args.key_heads = kKeyHeads;
    args.value_heads = kValueHeads;
    args.dim = kDim;
    args.eps = 1e-6f;
    return args;
  }
};

// The delta rule of one value head over all tokens, in double, straight from the formulas: S is [key][value].
std::vector<double> DeltaNetHead(const DeltaNetInputs& in, int tokens, int head, bool modulo) {
  const int key_head = modulo ? head % kKeyHeads : head / (kValueHeads / kKeyHeads);
  double s[kDim][kDim] = {};
  std::vector<double> out;
  for (int t = 0; t < tokens; ++t) {
    const float* q = &in.qkv[t * kChannels + key_head * kDim];
    const float* k = q + kKeyHeads * kDim;
    const float* v = &in.qkv[t * kChannels + 2 * kKeyHeads * kDim + head * kDim];
    double q_norm = 0, k_norm = 0;
    for (int i = 0; i < kDim; ++i)
      q_norm += q[i] * static_cast<double>(q[i]), k_norm += k[i] * static_cast<double>(k[i]);
    const double g = in.a[head] * std::log1p(std::exp(in.alpha[t * kValueHeads + head] + in.dt_bias[head]));
    const double beta = reference::Sigmoid(in.beta[t * kValueHeads + head]);
    for (int j = 0; j < kDim; ++j) {
      double held = 0, o = 0;
      for (int i = 0; i < kDim; ++i) held += (s[i][j] *= std::exp(g)) * k[i] / std::sqrt(k_norm);
      for (int i = 0; i < kDim; ++i) s[i][j] += k[i] / std::sqrt(k_norm) * beta * (v[j] - held);
      for (int i = 0; i < kDim; ++i) o += s[i][j] * q[i] / std::sqrt(q_norm) / std::sqrt(kDim);
      out.push_back(o);
    }
  }
  return out;
}

TEST_F(OpsContractTest, GatedDeltaNetFollowsTheRecurrence) {
  for (const bool modulo : {false, true}) {
    const int tokens = 20;
    const DeltaNetInputs in(tokens, 10);
    std::vector<float> state(kStateFloats, NAN), out(tokens * kValueHeads * kDim, NAN);
    StepSlices step;
    step.Add(0, tokens, {0});
    const int32_t from = -1, to = 0;
    GatedDeltaNetArgs args = in.Args(0);
    args.key_head_is_modulo = modulo;
    args.state = state.data();
    args.out = out.data();
    args.slots = {&from, &to};
    args.slices = step.Table();
    stream_->GatedDeltaNet(args);
    ASSERT_TRUE(stream_->Synchronize().ok());
    for (int h = 0; h < kValueHeads; ++h) {
      const std::vector<double> want = DeltaNetHead(in, tokens, h, modulo);
      for (int t = 0; t < tokens; ++t) {
        for (int j = 0; j < kDim; ++j) {
          // Values of about 1, states that decay: a thousand roundings are far from this.
          ASSERT_NEAR(out[(t * kValueHeads + h) * kDim + j], want[t * kDim + j], 1e-4) << h << " " << t;
        }
      }
    }
  }
}

// Two sequences in one step, then one of them goes on from its slot into another while the old slot keeps the cut.
TEST_F(OpsContractTest, StateSlotsCarrySequencesFromStepToStep) {
  const DeltaNetInputs in(12, 20);
  const auto run = [&](int first, const StepSlices& step, std::vector<int32_t> from, std::vector<int32_t> to,
                       std::vector<float>* state) {
    std::vector<float> out(static_cast<size_t>(step.rows()) * kValueHeads * kDim, NAN);
    GatedDeltaNetArgs args = in.Args(first);
    args.state = state->data();
    args.out = out.data();
    args.slots = {from.data(), to.data()};
    args.slices = step.Table();
    stream_->GatedDeltaNet(args);
    EXPECT_TRUE(stream_->Synchronize().ok());
    return out;
  };
  StepSlices two, whole, begin, rest;
  two.Add(0, 5, {0});
  two.Add(0, 7, {1});
  whole.Add(0, 12, {0});
  begin.Add(0, 5, {0});
  rest.Add(5, 7, {0});
  std::vector<float> state(4 * kStateFloats, 7.0f);
  const std::vector<float> at_once = run(0, whole, {-1}, {3}, &state);
  const std::vector<float> first = run(0, two, {-1, -1}, {0, 1}, &state);
  EXPECT_TRUE(SameBits({first.begin(), first.begin() + 5 * kValueHeads * kDim},
                       {at_once.begin(), at_once.begin() + 5 * kValueHeads * kDim}));
  const std::vector<float> cut(state.begin(), state.begin() + kStateFloats);
  const std::vector<float> second = run(5, rest, {0}, {2}, &state);
  EXPECT_TRUE(SameBits(second, {at_once.begin() + 5 * kValueHeads * kDim, at_once.end()}));
  EXPECT_TRUE(SameBits({state.begin(), state.begin() + kStateFloats}, cut)) << "the cut is kept";
  EXPECT_TRUE(SameBits({state.begin() + 2 * kStateFloats, state.begin() + 3 * kStateFloats},
                       {state.begin() + 3 * kStateFloats, state.end()}));
}

TEST_F(OpsContractTest, CausalConvRemembersItsLastInputs) {
  constexpr int kTaps = 4, kWidth = 5, kTokens = 9;
  const std::vector<float> u = NormalValues(kTokens * kWidth, 30), weight = NormalValues(kWidth * kTaps, 31);
  std::vector<float> out(kTokens * kWidth, NAN), state(2 * (kTaps - 1) * kWidth, NAN);
  int32_t from = -1, to = 0;
  for (const auto& [begin, count] : {std::pair{0, 1}, {1, 1}, {2, 5}, {7, 2}}) {  // steps shorter than the filter, too
    StepSlices step;
    step.Add(begin, count, {0});
    CausalConvArgs args;
    args.u = &u[begin * kWidth];
    args.weight = weight.data();
    args.state = state.data();
    args.out = &out[begin * kWidth];
    args.channels = kWidth;
    args.taps = kTaps;
    args.slots = {&from, &to};
    args.slices = step.Table();
    stream_->CausalConv(args);
    ASSERT_TRUE(stream_->Synchronize().ok());
    from = to;
    to = 1 - to;
  }
  for (int n = 0; n < kTokens; ++n) {
    for (int ch = 0; ch < kWidth; ++ch) {
      double sum = 0;
      for (int t = 0; t < kTaps; ++t) {
        const int at = n - kTaps + 1 + t;
        if (at >= 0) sum += static_cast<double>(weight[ch * kTaps + t]) * u[at * kWidth + ch];
      }
      EXPECT_NEAR(out[n * kWidth + ch], sum * reference::Sigmoid(sum), 1e-5) << n << " " << ch;
    }
  }
}

// -------------------------------------------------------------------------------------------------- mixture of experts

TEST_F(OpsContractTest, RoutingBreaksTiesTowardsTheLowerIdAndListsAscending) {
  const std::vector<float> logits = {1, 3, 3, 3, 0, 2, /* second row */ -1, -1, -1, -1, -1, 5};
  for (const bool after : {false, true}) {
    std::vector<int32_t> chosen(4, -1);
    std::vector<float> weights(4, NAN);
    MoeRouteArgs args;
    args.logits = logits.data();
    args.chosen = chosen.data();
    args.weights = weights.data();
    args.n_rows = 2;
    args.experts = 6;
    args.k = 2;
    args.softmax_after_top_k = after;
    args.weight_scale = 2.0f;
    stream_->MoeRoute(args);
    ASSERT_TRUE(stream_->Synchronize().ok());
    EXPECT_EQ(chosen, (std::vector<int32_t>{1, 2, 0, 5}));
    EXPECT_NEAR(weights[0], 1.0, 1e-6);
    EXPECT_NEAR(weights[1], 1.0, 1e-6);
    EXPECT_NEAR(weights[2], 2 / (1 + std::exp(6.0)), 1e-6);
    EXPECT_NEAR(weights[2] + weights[3], 2.0, 1e-6);
  }
}

// Two products with experts of a slab, as a mixture layer does them: x is shared by a row's experts first, its own
// after.
TEST_F(OpsContractTest, ExpertsOfASlabAreAppliedAndAddedInAscendingOrder) {
  constexpr int kExperts = 5, kIn = 6, kHidden = 4, kRows = 3, kChosen = 2;
  const std::vector<float> up = NormalValues(kExperts * kHidden * kIn, 40);
  const std::vector<float> down = NormalValues(kExperts * kIn * kHidden, 41);
  const std::vector<float> x = NormalValues(kRows * kIn, 42);
  const std::vector<int32_t> chosen = {0, 4, 1, 2, 3, 4};
  const std::vector<float> weights = {0.25f, 0.75f, 0.5f, 0.5f, 1.0f, 0.0f};
  const auto slab = [&](const std::vector<float>& values, int rows, int cols) {
    auto packed =
        device_.PackWeight({WeightType::kF32, kExperts, rows, cols, values.data(), values.size() * sizeof(float)});
    EXPECT_TRUE(packed.ok());
    return std::move(packed).value();
  };
  const std::unique_ptr<PackedWeight> up_slab = slab(up, kHidden, kIn), down_slab = slab(down, kIn, kHidden);
  std::vector<float> hidden(kRows * kChosen * kHidden), parts(kRows * kChosen * kIn), out = x;
  stream_->MoeMatMul({up_slab.get(), x.data(), chosen.data(), hidden.data(), kRows, kChosen, false});
  stream_->MoeMatMul({down_slab.get(), hidden.data(), chosen.data(), parts.data(), kRows, kChosen, true});
  stream_->MoeCombine({parts.data(), weights.data(), out.data(), out.data(), kRows, kChosen, kIn});
  ASSERT_TRUE(stream_->Synchronize().ok());
  for (int row = 0; row < kRows; ++row) {
    for (int d = 0; d < kIn; ++d) {
      double want = x[row * kIn + d];
      for (int j = 0; j < kChosen; ++j) {
        const int e = chosen[row * kChosen + j];
        for (int h = 0; h < kHidden; ++h) {
          double dot = 0;
          for (int i = 0; i < kIn; ++i) dot += static_cast<double>(up[(e * kHidden + h) * kIn + i]) * x[row * kIn + i];
          want += weights[row * kChosen + j] * down[(e * kIn + d) * kHidden + h] * dot;
        }
      }
      EXPECT_NEAR(out[row * kIn + d], want, 1e-4);
    }
  }
}

// What a back end may lack, it says before a model is loaded; the CPU lacks nothing.
TEST(OpFamilies, TheCpuHasThemAll) {
  const std::unique_ptr<Device> device = OpenCpu(BestVariant());
  EXPECT_TRUE(device->Supports(OpFamily::kGatedDeltaNet));
  EXPECT_TRUE(device->Supports(OpFamily::kMixtureOfExperts));
}

}  // namespace
}  // namespace layover::kernel_test
