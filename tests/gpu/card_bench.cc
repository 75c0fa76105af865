// Speed of the CUDA back end on a card, beside what bounds it: memory for decode, the tensor cores for prefill, the
// copy engine for saves. Printed by tests/gpu/measure.sh.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "common/check.h"
#include "kernels/cuda/gpu_device.h"
#include "tests/kernels/reference_matmul.h"

namespace layover {
namespace {

Device& Card() {
  static Device& card = *gpu::GpuDevice::Open(0).value().release();
  return card;
}

void Finish(Stream* stream) {
  const absl::Status status = stream->Synchronize();
  LAYOVER_CHECK(status.ok());
}

// range 0: rows; 1: outputs; 2: columns. Decode: GB/s of weights. Prefill: 10^12 multiply-adds a second, times two.
void Product(benchmark::State& state, WeightType type) {
  const int rows = static_cast<int>(state.range(0)), n_out = static_cast<int>(state.range(1)),
            cols = static_cast<int>(state.range(2));
  const RawWeight raw = RandomWeight(type, n_out, cols, 1);
  // Several weights, so that the card's cache does not hold them.
  std::vector<std::unique_ptr<PackedWeight>> weights;
  for (size_t bytes = 0; bytes < (size_t{512} << 20) && weights.size() < 64; bytes += weights.back()->device_bytes) {
    weights.push_back(Card().PackWeight(raw.Source()).value());
  }
  const ActivationFormat format = weights[0]->activation;
  const auto x = Card().Allocate(static_cast<size_t>(rows) * cols * sizeof(float)).value();
  const auto prepared = Card().Allocate(Card().ActivationBytes(format, rows, cols)).value();
  const auto out = Card().Allocate(static_cast<size_t>(rows) * n_out * sizeof(float)).value();
  const auto stream = Card().NewComputeStream();
  stream->PrepareActivation({x->As<float>(), rows, cols, cols, format, prepared->data()});
  Finish(stream.get());
  for (auto _ : state) {
    for (const auto& weight : weights) {
      stream->MatMul({weight.get(), prepared->data(), rows, out->As<float>(), n_out, nullptr, nullptr});
    }
    Finish(stream.get());
  }
  const double products = static_cast<double>(state.iterations()) * static_cast<double>(weights.size());
  state.counters["weights_GBps"] =
      benchmark::Counter(products * static_cast<double>(weights[0]->device_bytes) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["Tops"] = benchmark::Counter(2e-12 * products * rows * n_out * cols, benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(Product, decode_Q4_0, WeightType::kQ4_0)->Args({1, 4096, 4096})->Args({8, 4096, 4096})->UseRealTime();
BENCHMARK_CAPTURE(Product, decode_Q6_K, WeightType::kQ6_K)->Args({1, 4096, 4096})->UseRealTime();
BENCHMARK_CAPTURE(Product, decode_Q8_0, WeightType::kQ8_0)->Args({1, 4096, 14336})->UseRealTime();
BENCHMARK_CAPTURE(Product, decode_F16, WeightType::kF16)->Args({1, 4096, 4096})->UseRealTime();
BENCHMARK_CAPTURE(Product, prefill_Q4_0, WeightType::kQ4_0)->Args({512, 4096, 4096})->UseRealTime();
BENCHMARK_CAPTURE(Product, prefill_Q6_K, WeightType::kQ6_K)->Args({512, 4096, 4096})->UseRealTime();
BENCHMARK_CAPTURE(Product, prefill_F16, WeightType::kF16)->Args({512, 4096, 4096})->UseRealTime();

// range 0: rows of one sequence; 1: its length. 32 heads of 128, 8 of K/V, f16. GB/s of K/V as if read once.
void Attention(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0)), length = static_cast<int>(state.range(1));
  const int pages = (length + kPageTokens - 1) / kPageTokens, heads = 32, kv_heads = 8, dim = 128;
  const size_t pool = Card().KvPoolBytes(KvType::kF16, pages, kv_heads, dim);
  const auto k = Card().Allocate(pool).value(), v = Card().Allocate(pool).value();
  const auto q = Card().Allocate(static_cast<size_t>(rows) * heads * dim * sizeof(float)).value();
  const auto out = Card().Allocate(q->bytes()).value();
  std::vector<int32_t> table(pages);
  for (int i = 0; i < pages; ++i) table[i] = i;
  const SequenceSlice slice{0, rows, length - rows, 0};
  const auto table_memory = Card().Allocate(table.size() * sizeof(int32_t)).value();
  const auto slice_memory = Card().Allocate(sizeof(slice)).value();
  const auto stream = Card().NewComputeStream();
  stream->CopyToDevice(table_memory->data(), table.data(), table.size() * sizeof(int32_t));
  stream->CopyToDevice(slice_memory->data(), &slice, sizeof(slice));
  Finish(stream.get());
  AttentionArgs args;
  args.cache = {k->data(), v->data(), KvType::kF16, pages, kv_heads, dim};
  args.q = q->As<float>();
  args.out = out->As<float>();
  args.q_stride = args.out_stride = heads * dim;
  args.heads = heads;
  args.scale = 0.088f;
  args.slices = {slice_memory->As<SequenceSlice>(), 1, table_memory->As<int32_t>(), rows, length};
  for (auto _ : state) {
    stream->Attention(args);
    Finish(stream.get());
  }
  state.counters["kv_GBps"] = benchmark::Counter(
      2e-9 * static_cast<double>(pool) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(Attention)->Args({1, 4096})->Args({1, 32768})->Args({512, 4096})->UseRealTime();

// A page's rows to the host and back, 8 heads of 128, f16: the state path as it is.
void SavePages(benchmark::State& state) {
  const int pages = 64, kv_heads = 8, dim = 128;
  const size_t pool = Card().KvPoolBytes(KvType::kF16, pages, kv_heads, dim);
  const auto k = Card().Allocate(pool).value(), v = Card().Allocate(pool).value();
  const KvLayer cache = {k->data(), v->data(), KvType::kF16, pages, kv_heads, dim};
  std::vector<uint8_t> rows(2 * pool / pages);
  const auto stream = Card().NewCopyStream();
  for (auto _ : state) {
    for (int page = 0; page < pages; ++page) {
      stream->ReadKvRows(cache, page, 0, kPageTokens, rows.data(), rows.data() + rows.size() / 2);
      Finish(stream.get());
    }
  }
  state.counters["GBps"] = benchmark::Counter(
      2e-9 * static_cast<double>(pool) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(SavePages)->UseRealTime();

}  // namespace
}  // namespace layover
