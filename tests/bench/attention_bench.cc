// Speed of attention and of the K/V state path on one core, for the demo model's shape (30 layers of 9 heads, 3 K/V
// heads, head_dim 64). Times are per token over all layers. Decode reads K/V that no cache holds; GB/s is of K/V bytes.
// Prefill reads a whole prompt in chunks of 512; GF/s counts visible keys only.
//
//   layover_bench --benchmark_filter=Attention --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

namespace layover {
namespace {

constexpr int kLayers = 30, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kContext = 4096, kChunk = 512;
constexpr int kPages = kContext / kPageTokens;
constexpr double kMacsPerKey = 2.0 * kHeads * kHeadDim;  // multiplications of a query with one key and its value

struct Layer {
  std::unique_ptr<DeviceBuffer> k, v;
  KvLayer cache;
};

// All layers' K/V for kContext tokens, pages in random order.
class Model {
 public:
  Model(KvType type, const std::string& isa) : device_(OpenDevice("cpu", {1, isa}).value()) {
    stream_ = device_->NewComputeStream();
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    pages_.resize(kPages);
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), random);
    q_.resize(static_cast<size_t>(kContext) * kHeads * kHeadDim);
    out_.resize(q_.size());
    for (float& value : q_) value = normal(random);
    const size_t bytes = device_->KvPoolBytes(type, kPages, kKvHeads, kHeadDim);
    for (int i = 0; i < kLayers; ++i) {
      Layer& layer = layers_.emplace_back();
      layer.k = device_->Allocate(bytes).value();
      layer.v = device_->Allocate(bytes).value();
      layer.cache = {layer.k->data(), layer.v->data(), type, kPages, kKvHeads, kHeadDim};
      const SequenceSlice slice = {0, kContext, 0, 0};
      stream_->StoreKv({layer.cache, q_.data(), q_.data() + kKvHeads * kHeadDim, kHeads * kHeadDim, Table(&slice)});
    }
  }

  SliceTable Table(const SequenceSlice* slice) const {
    return {slice, 1, pages_.data(), slice->row_count, slice->position_begin + slice->row_count};
  }

  void Attend(const Layer& layer, int position, int rows) {
    const SequenceSlice slice = {0, rows, position, 0};
    AttentionArgs args;
    args.cache = layer.cache;
    args.q = q_.data();
    args.out = out_.data();
    args.q_stride = args.out_stride = kHeads * kHeadDim;
    args.heads = kHeads;
    args.scale = 0.125f;
    args.slices = Table(&slice);
    stream_->Attention(args);
  }

  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<int32_t>& pages() const { return pages_; }
  Device* device() { return device_.get(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<int32_t> pages_;
  std::vector<float> q_, out_;
  std::vector<Layer> layers_;
};

void AttentionDecode(benchmark::State& state, KvType type, const std::string& isa) {
  Model model(type, isa);
  const int context = static_cast<int>(state.range(0));
  std::vector<char> other(96 << 20);  // a step reads the weights between two visits to a layer's K/V
  for (auto _ : state) {
    state.PauseTiming();
    for (size_t i = 0; i < other.size(); i += 64) ++other[i];
    state.ResumeTiming();
    for (const Layer& layer : model.layers()) model.Attend(layer, context - 1, 1);
  }
  const double bytes = 2.0 * kLayers * context * static_cast<double>(KvRowBytes(type, kKvHeads, kHeadDim));
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void AttentionPrefill(benchmark::State& state, KvType type, const std::string& isa) {
  Model model(type, isa);
  const int context = static_cast<int>(state.range(0));
  for (auto _ : state) {
    for (int begin = 0; begin < context; begin += kChunk) model.Attend(model.layers()[0], begin, kChunk);
  }
  const double flops = 2.0 * kMacsPerKey * (static_cast<double>(context) * (context + 1) / 2);
  state.counters["GF/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["s/token/layers"] =
      benchmark::Counter(static_cast<double>(context) / kLayers,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Pages to or from buffers of the size of a disk request, which stay in the cache.
void KvRows(benchmark::State& state, KvType type, bool read) {
  Model model(type, "");
  const std::unique_ptr<Stream> stream = model.device()->NewCopyStream();
  const size_t page_bytes = KvRowBytes(type, kKvHeads, kHeadDim) * kPageTokens;
  std::vector<uint8_t> buffer(limits::kIoBufferBytes);
  const size_t fit = buffer.size() / (2 * page_bytes);
  size_t n = 0;
  for (auto _ : state) {
    for (const Layer& layer : model.layers()) {
      for (const int32_t page : model.pages()) {
        uint8_t* const rows = &buffer[n++ % fit * 2 * page_bytes];
        if (read) {
          stream->ReadKvRows(layer.cache, page, 0, kPageTokens, rows, rows + page_bytes);
        } else {
          stream->WriteKvRows(layer.cache, page, 0, kPageTokens, rows, rows + page_bytes);
        }
      }
    }
  }
  const double bytes = 2.0 * static_cast<double>(page_bytes) * kLayers * kPages;
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void RegisterAll() {
  for (int isa = static_cast<int>(CpuIsa::kAvx2); isa <= static_cast<int>(BestCpuIsa()); ++isa) {
    const std::string name(CpuIsaName(static_cast<CpuIsa>(isa)));
    for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
      const std::string suffix = name + "/" + std::string(KvTypeName(type));
      for (auto* benchmark :
           {benchmark::RegisterBenchmark(("AttentionDecode/" + suffix).c_str(), AttentionDecode, type, name),
            benchmark::RegisterBenchmark(("AttentionPrefill/" + suffix).c_str(), AttentionPrefill, type, name)}) {
        benchmark->Arg(512)->Arg(2048)->Arg(4096)->Unit(benchmark::kMillisecond);
      }
    }
  }
  for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
    for (const bool read : {true, false}) {
      const std::string name = std::string(read ? "KvRowsRead/" : "KvRowsWrite/") + std::string(KvTypeName(type));
      benchmark::RegisterBenchmark(name.c_str(), KvRows, type, read)->Unit(benchmark::kMillisecond);
    }
  }
}

const int kRegistered = (RegisterAll(), 0);

}  // namespace
}  // namespace layover
