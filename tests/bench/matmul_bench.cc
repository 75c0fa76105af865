// Speed of MatMul on one core. GEMV as in decoding: a set of weights larger than the caches, each read once, so GB/s is
// of packed weight bytes. GEMM as in reading a prompt: Gop/s counts a multiplication and an addition per weight and
// row.
//
//   layover_bench --benchmark_filter=Decode --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/dequantize.h"

namespace layover {
namespace {

// Beyond any cache of one core; the last level may be larger, so a decode pass touches all of it between two visits.
constexpr size_t kColdBytes = size_t{600} << 20;

CpuWeightArena& Arena() {
  static auto& arena = *new CpuWeightArena;
  return arena;
}

std::unique_ptr<PackedWeight> MakeWeight(WeightType type, int rows, int cols) {
  std::vector<uint8_t> data(RowBytes(type, cols) * rows);
  std::mt19937 random(1);
  // 0x2c and 0x2d as every high byte of a two-byte field: halves near 0.07, whatever the type's layout (MXFP4's blocks
  // are of an odd number of bytes: some of its scales are huge, which costs no time).
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i % 2 ? 0x2c + random() % 2 : random());
  // Its scale is a byte of exponent: subnormal sums would be measured.
  for (size_t i = 0; type == WeightType::kMXFP4 && i < data.size(); i += BlockBytes(type)) data[i] = 120;
  auto packed = PackCpuWeight({type, 1, rows, cols, data.data(), data.size()}, &Arena());
  if (!packed.ok()) std::abort();
  return *std::move(packed);
}

std::vector<uint8_t> MakeActivation(const PackedWeight& weight, int n_rows) {
  std::vector<float> x(static_cast<size_t>(n_rows) * weight.cols);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  std::vector<uint8_t> prepared(CpuActivationBytes(weight.activation, n_rows, weight.cols));
  CpuPrepareActivationRange(
      BestCpuIsa(), {x.data(), n_rows, weight.cols, weight.cols, weight.activation, prepared.data()}, 0, n_rows);
  return prepared;
}

void RunOnce(CpuIsa isa, const MatMulArgs& args) {
  CpuMatMulRange(isa, args, 0, CpuMatMulTasks(args));
}

struct Case {
  WeightType type;
  int rows, cols;
};

void Decode(benchmark::State& state, CpuIsa isa, Case c) {
  std::vector<std::unique_ptr<PackedWeight>> weights;
  size_t bytes = 0;
  while (bytes < kColdBytes) {
    weights.push_back(MakeWeight(c.type, c.rows, c.cols));
    bytes += weights.back()->device_bytes;
  }
  const int n_rows = static_cast<int>(state.range(0));
  const std::vector<uint8_t> x = MakeActivation(*weights[0], n_rows);
  std::vector<float> out(static_cast<size_t>(n_rows) * c.rows);
  for (auto _ : state) {
    for (const auto& weight : weights) RunOnce(isa, {weight.get(), x.data(), n_rows, out.data(), c.rows});
  }
  state.counters["GB/s"] = benchmark::Counter(1e-9 * bytes, benchmark::Counter::kIsIterationInvariantRate);
}

void Prefill(benchmark::State& state, CpuIsa isa, Case c) {
  const auto weight = MakeWeight(c.type, c.rows, c.cols);
  const int n_rows = static_cast<int>(state.range(0));
  const std::vector<uint8_t> x = MakeActivation(*weight, n_rows);
  std::vector<float> out(static_cast<size_t>(n_rows) * c.rows);
  const MatMulArgs args{weight.get(), x.data(), n_rows, out.data(), c.rows};
  for (auto _ : state) RunOnce(isa, args);
  const double ops = 2.0 * n_rows * c.rows * c.cols;
  state.counters["Gop/s"] = benchmark::Counter(1e-9 * ops, benchmark::Counter::kIsIterationInvariantRate);
}

void Prepare(benchmark::State& state, CpuIsa isa, int dim) {
  const int n_rows = static_cast<int>(state.range(0));
  std::vector<float> x(static_cast<size_t>(n_rows) * dim);
  std::mt19937 random(2);
  for (float& value : x) value = static_cast<float>(random()) * 1e-9f - 2.0f;
  std::vector<uint8_t> out(CpuActivationBytes(ActivationFormat::kA16, n_rows, dim));
  for (auto _ : state) {
    CpuPrepareActivationRange(isa, {x.data(), n_rows, dim, dim, ActivationFormat::kA16, out.data()}, 0, n_rows);
    benchmark::DoNotOptimize(out.data());
  }
  state.counters["ns/row"] =
      benchmark::Counter(1e-9 * n_rows, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// The demo model's products, then other types on one shape.
const Case kCases[] = {
    {WeightType::kQ4_1, 576, 576},  {WeightType::kQ4_1, 192, 576},   {WeightType::kQ4_1, 1536, 576},
    {WeightType::kQ4_1, 576, 1536}, {WeightType::kQ8_0, 49152, 576}, {WeightType::kQ8_0, 576, 576},
    {WeightType::kQ4_0, 576, 576},  {WeightType::kQ6_K, 576, 768},   {WeightType::kF16, 576, 576},
    {WeightType::kF32, 576, 576},   {WeightType::kQ4_1, 4096, 4096}, {WeightType::kQ6_K, 4096, 14336},
};

// Every type on one shape: --benchmark_filter=_2048x2048
std::vector<Case> AllCases() {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  for (const WeightTypeTraits& traits : AllWeightTypes()) {
    if (traits.supported) cases.push_back({static_cast<WeightType>(traits.id), 2048, 2048});
  }
  return cases;
}

void Register(CpuIsa isa) {
  for (const Case& c : AllCases()) {
    const std::string name = std::string(CpuIsaName(isa)) + "/" + std::string(WeightTypeName(c.type)) + "_" +
                             std::to_string(c.rows) + "x" + std::to_string(c.cols);
    const auto decode = [isa, c](benchmark::State& state) { Decode(state, isa, c); };
    benchmark::RegisterBenchmark(("Decode/" + name).c_str(), decode)->Arg(1)->Arg(4)->Unit(benchmark::kMillisecond);
    const auto prefill = [isa, c](benchmark::State& state) { Prefill(state, isa, c); };
    benchmark::RegisterBenchmark(("Prefill/" + name).c_str(), prefill)
        ->Arg(16)
        ->Arg(64)
        ->Arg(512)
        ->Unit(benchmark::kMicrosecond);
  }
  for (const int dim : {576, 1536}) {
    const std::string name = "Prepare/" + std::string(CpuIsaName(isa)) + "/" + std::to_string(dim);
    benchmark::RegisterBenchmark(name.c_str(), [isa, dim](benchmark::State& state) {
      Prepare(state, isa, dim);
    })->Arg(64);
  }
}

const bool kRegistered = [] {
  for (int isa = 0; isa <= static_cast<int>(BestCpuIsa()); ++isa) Register(static_cast<CpuIsa>(isa));
  return true;
}();

}  // namespace
}  // namespace layover
