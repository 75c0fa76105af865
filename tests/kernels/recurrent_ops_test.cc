// CausalConv and GatedDeltaNet: against double precision token by token, and the same bits for every way to cut a
// sequence into steps, every number of threads and every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/kernels/reference_recurrent.h"

namespace layover::kernel_test {
namespace {

// Ways to read 45 tokens, as numbers of tokens of each step.
const std::vector<std::vector<int>> kCuts = {{45}, {1, 1, 2, 3, 38}, {33, 12}, {20, 20, 5}};
constexpr int kTokens = 45;

// --------------------------------------------------------------------------------------------------------- convolution

struct ConvInputs {
  int channels = 0;
  int taps = 0;
  std::vector<float> u = NormalValues(static_cast<size_t>(kTokens) * channels, 1);
  std::vector<float> weight = NormalValues(static_cast<size_t>(channels) * taps, 2);
};

// Reads the tokens in steps, changing between two slots; the state's other floats are NaN, which must not be looked at.
std::vector<float> RunConv(const ConvInputs& in, const std::vector<int>& cut, const Variant& variant) {
  const std::unique_ptr<Stream> stream = OpenCpu(variant)->NewComputeStream();
  std::vector<float> out(in.u.size(), NAN), state(static_cast<size_t>(2) * (in.taps - 1) * in.channels, NAN);
  int32_t from = -1, to = 0;
  int done = 0;
  for (const int count : cut) {
    StepSlices step;
    step.Add(done, count, {0});
    const ptrdiff_t at = static_cast<ptrdiff_t>(done) * in.channels;
    stream->CausalConv({in.u.data() + at,
                        in.weight.data(),
                        state.data(),
                        out.data() + at,
                        in.channels,
                        in.taps,
                        {&from, &to},
                        step.Table()});
    from = to;
    to = done % 2 ? to : 1 - to;  // in place now and then
    done += count;
  }
  return out;
}

TEST(CausalConv, MatchesReferenceAndBitsDependOnTheRowsOnly) {
  for (const auto& [channels, taps] : {std::pair{5, 4}, {96, 4}, {130, 2}, {33, 1}, {16, 16}}) {
    const ConvInputs in{channels, taps};
    const std::vector<float> want = RunConv(in, {kTokens}, Variants().front());
    for (int ch = 0; ch < channels; ++ch) {
      for (int n = 0; n < kTokens; ++n) {
        std::vector<float> last(taps);
        for (int t = 0; t < taps; ++t) {
          const int at = n - taps + 1 + t;
          last[t] = at < 0 ? 0 : in.u[at * channels + ch];
        }
        ASSERT_TRUE(WithinBounds(&want[n * channels + ch], {reference::CausalConv(last, &in.weight[ch * taps])}))
            << channels << " channels, " << taps << " taps, token " << n;
      }
    }
    for (const Variant& variant : Variants()) {
      for (const std::vector<int>& cut : kCuts) {
        EXPECT_TRUE(SameBits(RunConv(in, cut, variant), want)) << variant.Name() << ", " << channels << " channels";
      }
    }
  }
}

TEST(CausalConv, StateIsTheLastInputsAndNanStaysInItsChannel) {
  ConvInputs in{20, 4};
  const std::vector<float> clean = RunConv(in, {kTokens}, BestVariant());
  in.u[10 * 20 + 3] = NAN;
  const std::vector<float> got = RunConv(in, {7, 4, 34}, BestVariant());
  for (int n = 0; n < kTokens; ++n) {
    for (int ch = 0; ch < 20; ++ch) {
      const float value = got[n * 20 + ch];
      if (ch == 3 && n >= 10 && n < 14) {
        EXPECT_TRUE(std::isnan(value)) << n;
      } else {
        EXPECT_EQ(value, clean[n * 20 + ch]) << n << " " << ch;
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------- gated delta rule

struct DeltaShape {
  int key_heads, value_heads, dim;
  bool modulo;
};
const std::vector<DeltaShape> kDeltaShapes = {
    {2, 4, 16, false}, {2, 4, 16, true}, {1, 3, 40, false}, {2, 2, 128, true}, {3, 3, 8, false}};

struct DeltaInputs {
  DeltaShape shape;
  int width = (2 * shape.key_heads + shape.value_heads) * shape.dim;
  size_t slot_floats = static_cast<size_t>(shape.value_heads) * shape.dim * shape.dim;
  std::vector<float> qkv = NormalValues(static_cast<size_t>(kTokens) * width, 11);
  std::vector<float> alpha = NormalValues(static_cast<size_t>(kTokens) * shape.value_heads, 12, 3.0f);
  std::vector<float> beta = NormalValues(static_cast<size_t>(kTokens) * shape.value_heads, 13, 2.0f);
  std::vector<float> a = {-0.05f, -1.0f, -0.3f, -2.0f};
  std::vector<float> dt_bias = {0.1f, -4.0f, -0.3f, 0.0f};

  GatedDeltaNetArgs Args(int first_token, float* state, float* out) const {
    GatedDeltaNetArgs args;
    args.qkv = qkv.data() + static_cast<ptrdiff_t>(first_token) * width;
    args.alpha = alpha.data() + static_cast<ptrdiff_t>(first_token) * shape.value_heads;
    args.beta = beta.data() + static_cast<ptrdiff_t>(first_token) * shape.value_heads;
    args.a = a.data();
    args.dt_bias = dt_bias.data();
    args.state = state;
    args.out = out + static_cast<ptrdiff_t>(first_token) * shape.value_heads * shape.dim;
    args.key_heads = shape.key_heads;
    args.value_heads = shape.value_heads;
    args.dim = shape.dim;
    args.key_head_is_modulo = shape.modulo;
    args.eps = 1e-6f;
    return args;
  }
  size_t out_floats() const { return static_cast<size_t>(kTokens) * shape.value_heads * shape.dim; }
};

std::string NameOf(const DeltaShape& shape) {
  return fmt::format("{} of {} heads of {}{}", shape.key_heads, shape.value_heads, shape.dim,
                     shape.modulo ? ", modulo" : "");
}

struct DeltaRun {
  std::vector<float> out;
  std::vector<float> state;  // of the slot that was written last
};

DeltaRun RunDelta(const DeltaInputs& in, const std::vector<int>& cut, const Variant& variant) {
  const std::unique_ptr<Stream> stream = OpenCpu(variant)->NewComputeStream();
  DeltaRun run{std::vector<float>(in.out_floats(), NAN), {}};
  std::vector<float> state(2 * in.slot_floats, NAN);
  int32_t from = -1, to = 0;
  int done = 0;
  for (const int count : cut) {
    StepSlices step;
    step.Add(done, count, {0});
    GatedDeltaNetArgs args = in.Args(done, state.data(), run.out.data());
    args.slots = {&from, &to};
    args.slices = step.Table();
    stream->GatedDeltaNet(args);
    const float* const written = state.data() + to * in.slot_floats;
    run.state.assign(written, written + in.slot_floats);
    from = to;
    to = done % 2 ? to : 1 - to;
    done += count;
  }
  return run;
}

TEST(GatedDeltaNet, EveryTokenMatchesTheReferenceFromItsOwnState) {
  for (const DeltaShape& shape : kDeltaShapes) {
    const DeltaInputs in{shape};
    const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
    std::vector<float> state(in.slot_floats), out(in.out_floats(), NAN);
    const int32_t slot = 0;
    for (int t = 0; t < kTokens; ++t) {
      const std::vector<float> before = state;
      StepSlices step;
      step.Add(t, 1, {0});
      GatedDeltaNetArgs args = in.Args(t, state.data(), out.data());
      args.slots = {&slot, &slot};
      args.slices = step.Table();
      stream->GatedDeltaNet(args);
      for (int h = 0; h < shape.value_heads; ++h) {
        const int key_head = shape.modulo ? h % shape.key_heads : h / (shape.value_heads / shape.key_heads);
        const float* const q = args.qkv + key_head * shape.dim;
        const float* const v = args.qkv + (2 * shape.key_heads + h) * shape.dim;
        const reference::DeltaToken token = {
            q,        q + shape.key_heads * shape.dim, v, args.alpha[h], args.beta[h], in.a[h], in.dt_bias[h], 1e-6,
            shape.dim};
        const size_t head_at = static_cast<size_t>(h) * shape.dim * shape.dim;
        const reference::DeltaResult want = reference::DeltaStep(token, &before[head_at]);
        ASSERT_TRUE(WithinBounds(&state[head_at], want.state)) << NameOf(shape) << ", token " << t << " head " << h;
        ASSERT_TRUE(WithinBounds(args.out + h * shape.dim, want.out)) << NameOf(shape) << ", token " << t;
      }
    }
  }
}

TEST(GatedDeltaNet, BitsDependOnTheTokensOnly) {
  for (const DeltaShape& shape : kDeltaShapes) {
    const DeltaInputs in{shape};
    const DeltaRun want = RunDelta(in, {kTokens}, Variants().front());
    for (const Variant& variant : Variants()) {
      for (const std::vector<int>& cut : kCuts) {
        const DeltaRun got = RunDelta(in, cut, variant);
        EXPECT_TRUE(SameBits(got.out, want.out)) << variant.Name() << ", " << NameOf(shape);
        EXPECT_TRUE(SameBits(got.state, want.state)) << variant.Name() << ", " << NameOf(shape);
      }
    }
  }
}

// Three sequences in one step, one from the state that another step left, give what each gives alone; the slot read
// from stays as it was.
TEST(GatedDeltaNet, SlicesOfAStepDoNotKnowOfEachOther) {
  const DeltaInputs in{{2, 4, 32, false}};
  const int row_floats = 4 * 32;
  const auto run = [&](const StepSlices& step, std::vector<int32_t> from, std::vector<int32_t> to, int first,
                       std::vector<float>* state) {
    std::vector<float> out(in.out_floats(), NAN);
    const std::unique_ptr<Stream> stream = OpenCpu({BestCpuIsa(), 3})->NewComputeStream();
    GatedDeltaNetArgs args = in.Args(first, state->data(), out.data());
    args.slots = {from.data(), to.data()};
    args.slices = step.Table();
    stream->GatedDeltaNet(args);
    return std::vector<float>(out.begin() + first * row_floats, out.end());
  };
  StepSlices all, first, middle, last;
  all.Add(0, 10, {0});
  all.Add(10, 1, {0});
  all.Add(0, 20, {0});
  first.Add(0, 10, {0});
  middle.Add(10, 1, {0});
  last.Add(0, 20, {0});
  const std::vector<float> start = NormalValues(6 * in.slot_floats, 14);
  std::vector<float> together = start, apart = start;
  const std::vector<float> out = run(all, {-1, 1, -1}, {2, 3, 5}, 0, &together);
  const std::vector<float> a = run(first, {-1}, {2}, 0, &apart);
  const std::vector<float> b = run(middle, {1}, {3}, 10, &apart);
  const std::vector<float> c = run(last, {-1}, {5}, 11, &apart);
  EXPECT_TRUE(SameBits(together, apart));
  EXPECT_TRUE(SameBits({together.begin(), together.begin() + 2 * in.slot_floats},
                       {start.begin(), start.begin() + 2 * in.slot_floats}));
  const auto rows = [&](const std::vector<float>& x, int begin, int end) {
    return std::vector<float>(x.begin() + begin * row_floats, x.begin() + end * row_floats);
  };
  EXPECT_TRUE(SameBits(rows(out, 0, 10), rows(a, 0, 10)));
  EXPECT_TRUE(SameBits(rows(out, 10, 11), rows(b, 0, 1)));
  EXPECT_TRUE(SameBits(rows(out, 11, 31), rows(c, 0, 20)));
}

TEST(GatedDeltaNet, ExtremeGatesAndZeroKeysStayFinite) {
  DeltaInputs in{{1, 2, 16, false}};
  for (int t = 0; t < kTokens; ++t) {
    in.alpha[2 * t] = t % 3 == 0 ? 300.0f : -300.0f;  // forgets all, keeps all
    in.beta[2 * t + 1] = t % 2 ? 200.0f : -200.0f;
    if (t % 5 == 0) std::fill_n(&in.qkv[t * in.width], 2 * 16, 0.0f);  // q and k
  }
  const DeltaRun scalar = RunDelta(in, {kTokens}, Variants().front());
  for (const float value : scalar.out) EXPECT_TRUE(std::isfinite(value));
  EXPECT_TRUE(SameBits(RunDelta(in, {kTokens}, BestVariant()).out, scalar.out));
}

TEST(GatedDeltaNet, NanStaysInItsHead) {
  DeltaInputs in{{2, 4, 16, false}};
  const DeltaRun clean = RunDelta(in, {kTokens}, BestVariant());
  in.beta[7 * 4 + 2] = NAN;
  const DeltaRun got = RunDelta(in, {kTokens}, BestVariant());
  for (size_t i = 0; i < got.out.size(); ++i) {
    const size_t token = i / 64, head = i % 64 / 16;
    if (head == 2 && token >= 7) {
      EXPECT_TRUE(std::isnan(got.out[i]));
    } else {
      EXPECT_EQ(got.out[i], clean.out[i]);
    }
  }
}

TEST(GatedDeltaNetDeathTest, RefusesSlotsThatCollide) {
  const DeltaInputs in{{1, 1, 16, false}};
  std::vector<float> state(3 * in.slot_floats), out(in.out_floats());
  StepSlices step;
  step.Add(0, 2, {0});
  step.Add(0, 2, {0});
  const int32_t from[2] = {1, -1}, to[2] = {0, 1};
  GatedDeltaNetArgs args = in.Args(0, state.data(), out.data());
  args.slots = {from, to};
  args.slices = step.Table();
  const std::unique_ptr<Stream> stream = OpenCpu(BestVariant())->NewComputeStream();
  EXPECT_DEATH(stream->GatedDeltaNet(args), "slots.to");
}

}  // namespace
}  // namespace layover::kernel_test
