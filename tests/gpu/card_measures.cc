#include "tests/gpu/card_measures.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "common/status.h"
#include "tests/gpu/probe_kernels.h"

namespace layover::gpu {
namespace {

using Buffer = std::unique_ptr<DeviceBuffer>;
using Clock = std::chrono::steady_clock;

constexpr int kMostTimes = 1 << 16;

// Host memory that copies go through, pinned if that is allowed.
class HostMemory {
 public:
  HostMemory(Device* device, size_t bytes) : device_(device) {
    if (posix_memalign(&data_, 4096, bytes) != 0) data_ = nullptr;
    if (data_ == nullptr) return;
    std::memset(data_, 0x5a, bytes);
    pinned_ = device->PinHost(data_, bytes);
  }
  ~HostMemory() {
    if (pinned_) device_->UnpinHost(data_);
    std::free(data_);
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  bool pinned() const { return pinned_; }

 private:
  Device* const device_;
  void* data_ = nullptr;
  bool pinned_ = false;
};

// In what follows, queues and streams are the last members: they go first and wait for what uses the others.
struct Sweep {
  Buffer data, copy, sums;
  std::unique_ptr<Queue> queue;
};

struct HostCopy {
  HostCopy(Device* device, size_t bytes) : host(device, bytes), queue(NewQueue(0)) {}
  HostMemory host;
  Buffer card;
  std::unique_ptr<Queue> queue;
};

struct AttentionWork {
  Buffer k, v, q, out, table, slices;
  AttentionArgs args;
  std::unique_ptr<Stream> stream;
};

struct StateWork {
  StateWork(Device* device, size_t bytes) : host(device, bytes), stream(device->NewCopyStream()) {}
  void MoveAll(bool save, size_t page_bytes) {
    for (int i = 0; i < 2 * layer.n_pages; ++i) {
      uint8_t* const at = host.data() + static_cast<size_t>(i) * page_bytes;
      uint8_t* const k_rows = i < layer.n_pages ? at : nullptr;
      uint8_t* const v_rows = i < layer.n_pages ? nullptr : at;
      const int page = i % layer.n_pages;
      save ? stream->ReadKvRows(layer, page, 0, kPageTokens, k_rows, v_rows)
           : stream->WriteKvRows(layer, page, 0, kPageTokens, k_rows, v_rows);
    }
  }

  Buffer k, v;
  KvLayer layer;
  HostMemory host;
  std::unique_ptr<Stream> stream;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::StatusOr<double> SecondsOf(const Measure& measure, int times) {
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(measure.run(times));
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

BenchSizes TinySizes() {
  return {.swept_bytes = size_t{96} << 10,
          .copied_bytes = size_t{64} << 10,
          .prefill_rows = 20,
          .n_out = 72,
          .cols = 256,
          .experts = 5,
          .experts_used = 2,
          .experts_n_out = 24,
          .experts_cols = 256,
          .long_context = 200,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .state_pages = 2,
          .turn_seconds = 0};
}

absl::Status CardMeasures::AddAll(const CardInfo& card) {
  RETURN_IF_ERROR(AddSweeps(card));
  RETURN_IF_ERROR(AddHostCopies());
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ4_K, WeightType::kQ6_K, WeightType::kQ8_0,
                                WeightType::kIQ4_XS, WeightType::kMXFP4, WeightType::kF16}) {
    RETURN_IF_ERROR(AddProduct("decode", type, 1, sizes_.swept_bytes));
  }
  RETURN_IF_ERROR(AddProduct("decode", WeightType::kQ4_0, 8, sizes_.swept_bytes));
  RETURN_IF_ERROR(AddExperts("decode", 1));
  RETURN_IF_ERROR(AddAttention(1, sizes_.long_context));
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ4_K, WeightType::kQ6_K, WeightType::kQ8_0,
                                WeightType::kIQ4_XS, WeightType::kF16}) {
    RETURN_IF_ERROR(AddProduct("prefill", type, sizes_.prefill_rows, 0));
  }
  RETURN_IF_ERROR(AddExperts("prefill", sizes_.prefill_rows));
  RETURN_IF_ERROR(AddCublas());
  return AddState();
}

absl::Status CardMeasures::AddSweeps(const CardInfo& card) {
  const auto sweep = std::make_shared<Sweep>();
  const size_t bytes = sizes_.swept_bytes;
  const int threads = card.multiprocessors * 8 * 256;
  ASSIGN_OR_RETURN(sweep->data, device_.Allocate(bytes));
  ASSIGN_OR_RETURN(sweep->copy, device_.Allocate(bytes));
  ASSIGN_OR_RETURN(sweep->sums, device_.Allocate(static_cast<size_t>(threads) * sizeof(uint32_t)));
  sweep->queue = NewQueue(0);
  sweep->queue->Fill(sweep->data->data(), 0x5a, bytes);
  const ReadProbe probe{sweep->data->data(), static_cast<long long>(bytes), sweep->sums->As<uint32_t>(), threads};
  measures_.push_back({.what = {{"group", "limit"}, {"name", "read"}, {"bytes", bytes}},
                       .amount = static_cast<double>(bytes),
                       .run = [sweep, probe](int times) {
                         for (int i = 0; i < times; ++i) LaunchReadMemory(probe, sweep->queue.get());
                         return sweep->queue->Synchronize();
                       }});
  measures_.push_back({.what = {{"group", "limit"}, {"name", "copy"}, {"bytes", bytes}},
                       .amount = 2 * static_cast<double>(bytes),  // read and written
                       .run = [sweep, bytes](int times) {
                         for (int i = 0; i < times; ++i) {
                           sweep->queue->CopyOnDevice(sweep->copy->data(), sweep->data->data(), bytes);
                         }
                         return sweep->queue->Synchronize();
                       }});
  return absl::OkStatus();
}

absl::Status CardMeasures::AddHostCopies() {
  const size_t bytes = sizes_.copied_bytes;
  const auto copy = std::make_shared<HostCopy>(&device_, bytes);
  if (copy->host.data() == nullptr) return ResourceExhausted("no host memory for {} bytes", bytes);
  pinned_ = copy->host.pinned();
  ASSIGN_OR_RETURN(copy->card, device_.Allocate(bytes));
  for (const bool to_host : {true, false}) {
    measures_.push_back({.what = {{"group", "limit"}, {"name", to_host ? "to_host" : "to_card"}, {"bytes", bytes}},
                         .amount = static_cast<double>(bytes),
                         .run = [copy, to_host, bytes](int times) {
                           for (int i = 0; i < times; ++i) {
                             to_host ? copy->queue->CopyToHost(copy->host.data(), copy->card->data(), bytes)
                                     : copy->queue->CopyToDevice(copy->card->data(), copy->host.data(), bytes);
                           }
                           return copy->queue->Synchronize();
                         }});
  }
  return absl::OkStatus();
}

// `rows` rows of one sequence of `length` tokens. Bytes of K/V as if read once.
absl::Status CardMeasures::AddAttention(int rows, int length) {
  const int pages = (length + kPageTokens - 1) / kPageTokens;
  const int heads = sizes_.heads, kv_heads = sizes_.kv_heads, dim = sizes_.head_dim;
  const auto work = std::make_shared<AttentionWork>();
  const size_t pool = device_.KvPoolBytes(KvType::kF16, pages, kv_heads, dim);
  const size_t query_bytes = static_cast<size_t>(rows) * static_cast<size_t>(heads * dim) * sizeof(float);
  std::vector<int32_t> table(static_cast<size_t>(pages));
  for (int i = 0; i < pages; ++i) table[static_cast<size_t>(i)] = i;
  const SequenceSlice slice{0, rows, length - rows, 0};
  ASSIGN_OR_RETURN(work->k, device_.Allocate(pool));
  ASSIGN_OR_RETURN(work->v, device_.Allocate(pool));
  ASSIGN_OR_RETURN(work->q, device_.Allocate(query_bytes));
  ASSIGN_OR_RETURN(work->out, device_.Allocate(query_bytes));
  ASSIGN_OR_RETURN(work->table, device_.Allocate(table.size() * sizeof(int32_t)));
  ASSIGN_OR_RETURN(work->slices, device_.Allocate(sizeof(slice)));
  work->stream = device_.NewComputeStream();
  work->stream->CopyToDevice(work->table->data(), table.data(), table.size() * sizeof(int32_t));
  work->stream->CopyToDevice(work->slices->data(), &slice, sizeof(slice));
  RETURN_IF_ERROR(work->stream->Synchronize());
  work->args = {.cache = {work->k->data(), work->v->data(), KvType::kF16, pages, kv_heads, dim},
                .q = work->q->As<float>(),
                .out = work->out->As<float>(),
                .q_stride = heads * dim,
                .out_stride = heads * dim,
                .heads = heads,
                .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                .slices = {work->slices->As<SequenceSlice>(), 1, work->table->As<int32_t>(), rows, length}};
  measures_.push_back({.what = {{"group", "attention"},
                                {"rows", rows},
                                {"tokens", length},
                                {"heads", heads},
                                {"kv_heads", kv_heads},
                                {"head_dim", dim}},
                       .amount = 2 * static_cast<double>(pool),
                       .run = [work](int times) {
                         for (int i = 0; i < times; ++i) work->stream->Attention(work->args);
                         return work->stream->Synchronize();
                       }});
  return absl::OkStatus();
}

// Whole pages, K's and then V's, between the card and page-locked memory by a copy stream: what a save or a restore has
// of it where the disk does not hold it up.
absl::Status CardMeasures::AddState() {
  const int pages = sizes_.state_pages;
  const size_t pool = device_.KvPoolBytes(KvType::kF16, pages, sizes_.kv_heads, sizes_.head_dim);
  const auto work = std::make_shared<StateWork>(&device_, 2 * pool);
  if (work->host.data() == nullptr) return ResourceExhausted("no host memory for {} bytes", 2 * pool);
  ASSIGN_OR_RETURN(work->k, device_.Allocate(pool));
  ASSIGN_OR_RETURN(work->v, device_.Allocate(pool));
  work->layer = {work->k->data(), work->v->data(), KvType::kF16, pages, sizes_.kv_heads, sizes_.head_dim};
  const size_t page_bytes = pool / static_cast<size_t>(pages);
  for (const bool save : {true, false}) {
    measures_.push_back({.what = {{"group", "state"},
                                  {"name", save ? "save" : "restore"},
                                  {"pages", pages},
                                  {"page_bytes", page_bytes}},
                         .amount = 2 * static_cast<double>(pool),
                         .run = [work, save, page_bytes](int times) {
                           for (int i = 0; i < times; ++i) work->MoveAll(save, page_bytes);
                           return work->stream->Synchronize();
                         }});
  }
  return absl::OkStatus();
}

absl::Status CardMeasures::Round() {
  for (Measure& measure : measures_) {
    while (measure.times == 0 || (measure.rates.empty() && measure.times < kMostTimes)) {
      const int times = std::max(1, 2 * measure.times);
      ASSIGN_OR_RETURN(const double seconds, SecondsOf(measure, times));
      measure.times = times;
      if (seconds >= sizes_.turn_seconds) break;
    }
    ASSIGN_OR_RETURN(const double seconds, SecondsOf(measure, measure.times));
    measure.rates.push_back(measure.amount * measure.times / seconds / measure.unit);
  }
  return absl::OkStatus();
}

Json CardMeasures::Results() const {
  Json results = Json::array();
  for (const Measure& measure : measures_) {
    Json result = measure.what;
    result["rate"] = Median(measure.rates);
    result["least"] = *std::min_element(measure.rates.begin(), measure.rates.end());
    result["most"] = *std::max_element(measure.rates.begin(), measure.rates.end());
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace layover::gpu
