// Products of weights: one weight with a few rows, as decode has them, or with a prompt's; and of experts.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/gguf/weight_types.h"
#include "common/status.h"
#include "tests/gpu/card_measures.h"
#include "tests/kernels/reference_matmul.h"

namespace layover::gpu {
namespace {

using Buffer = std::unique_ptr<DeviceBuffer>;

constexpr int kMostClones = 256;

// Streams are the last members: they go first and wait for what uses the others.
struct ProductWork {
  std::vector<std::unique_ptr<PackedWeight>> weights;  // copies of one, so that no cache holds what a turn reads
  size_t next = 0;
  Buffer x, prepared, out;
  std::unique_ptr<Stream> stream;
};

struct ExpertsWork {
  std::unique_ptr<PackedWeight> weight;
  int n_sets = 1;  // of choices, taken in turn
  int next = 0;
  Buffer prepared, chosen, out;
  std::unique_ptr<Stream> stream;
};

absl::StatusOr<std::unique_ptr<PackedWeight>> Clone(const PackedWeight& weight, Queue* queue) {
  const auto& packed = static_cast<const GpuPackedWeight&>(weight);
  auto clone = std::make_unique<GpuPackedWeight>();
  static_cast<PackedWeight&>(*clone) = packed;
  clone->table = packed.table;
  ASSIGN_OR_RETURN(clone->data, GpuBuffer::Allocate(0, packed.device_bytes));
  queue->CopyOnDevice(clone->data->data(), packed.data->data(), packed.device_bytes);
  return clone;
}

}  // namespace

absl::Status CardMeasures::AddProduct(const char* group, WeightType type, int rows, size_t least_bytes) {
  const int n_out = sizes_.n_out, cols = sizes_.cols;
  const RawWeight raw = RandomWeight(type, n_out, cols, 1);
  const auto work = std::make_shared<ProductWork>();
  work->weights.emplace_back();
  ASSIGN_OR_RETURN(work->weights[0], device_.PackWeight(raw.Source()));
  const size_t bytes = work->weights[0]->device_bytes;
  const std::unique_ptr<Queue> copies = NewQueue(0);
  while (bytes * work->weights.size() < least_bytes && work->weights.size() < kMostClones) {
    ASSIGN_OR_RETURN(auto clone, Clone(*work->weights[0], copies.get()));
    work->weights.push_back(std::move(clone));
  }
  RETURN_IF_ERROR(copies->Synchronize());
  const ActivationFormat format = work->weights[0]->activation;
  const auto n_rows = static_cast<size_t>(rows);
  ASSIGN_OR_RETURN(work->x, device_.Allocate(n_rows * static_cast<size_t>(cols) * sizeof(float)));
  ASSIGN_OR_RETURN(work->prepared, device_.Allocate(device_.ActivationBytes(format, rows, cols)));
  ASSIGN_OR_RETURN(work->out, device_.Allocate(n_rows * static_cast<size_t>(n_out) * sizeof(float)));
  work->stream = device_.NewComputeStream();
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(n_rows * static_cast<size_t>(cols));
  for (float& value : x) value = normal(random);
  work->stream->CopyToDevice(work->x->data(), x.data(), x.size() * sizeof(float));
  work->stream->PrepareActivation({work->x->As<float>(), rows, cols, cols, format, work->prepared->data()});
  RETURN_IF_ERROR(work->stream->Synchronize());

  const bool decode = least_bytes > 0;
  const double operations = 2.0 * rows * n_out * cols;
  measures_.push_back({.what = {{"group", group},
                                {"type", std::string(WeightTypeName(type))},
                                {"rows", rows},
                                {"n_out", n_out},
                                {"cols", cols},
                                {"bytes", bytes}},
                       .amount = decode ? static_cast<double>(bytes) : operations,
                       .unit = decode ? 1e9 : 1e12,
                       .run = [work, rows, n_out](int times) {
                         for (int i = 0; i < times; ++i) {
                           const PackedWeight* weight = work->weights[work->next++ % work->weights.size()].get();
                           work->stream->MatMul(
                               {weight, work->prepared->data(), rows, work->out->As<float>(), n_out, nullptr, nullptr});
                         }
                         return work->stream->Synchronize();
                       }});
  return absl::OkStatus();
}

// Of one row the experts are other ones each time, until all have been read; rows of a prompt choose at random.
absl::Status CardMeasures::AddExperts(const char* group, int rows) {
  const int experts = sizes_.experts, used = sizes_.experts_used, n_out = sizes_.experts_n_out,
            cols = sizes_.experts_cols;
  const RawWeight raw = RandomWeight(WeightType::kQ4_K, n_out, cols, 1, experts);
  const auto work = std::make_shared<ExpertsWork>();
  ASSIGN_OR_RETURN(work->weight, device_.PackWeight(raw.Source()));
  const bool decode = rows == 1;
  if (decode) work->n_sets = experts / used;
  std::vector<int32_t> chosen, all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 random(4);
  for (int row = 0; row < work->n_sets * rows; ++row) {
    if (!decode) std::shuffle(all.begin(), all.end(), random);
    const auto first = all.begin() + (decode ? row * used : 0);
    chosen.insert(chosen.end(), first, first + used);
    std::sort(chosen.end() - used, chosen.end());
  }
  const auto n_rows = static_cast<size_t>(rows), n_used = static_cast<size_t>(used);
  const ActivationFormat format = work->weight->activation;
  ASSIGN_OR_RETURN(work->prepared, device_.Allocate(device_.ActivationBytes(format, rows, cols)));
  ASSIGN_OR_RETURN(work->chosen, device_.Allocate(chosen.size() * sizeof(int32_t)));
  ASSIGN_OR_RETURN(work->out, device_.Allocate(n_rows * n_used * static_cast<size_t>(n_out) * sizeof(float)));
  work->stream = device_.NewComputeStream();
  work->stream->CopyToDevice(work->chosen->data(), chosen.data(), chosen.size() * sizeof(int32_t));
  RETURN_IF_ERROR(work->stream->Synchronize());
  const double bytes = static_cast<double>(work->weight->device_bytes) / experts * used;
  measures_.push_back({.what = {{"group", group},
                                {"type", "Q4_K"},
                                {"rows", rows},
                                {"n_out", n_out},
                                {"cols", cols},
                                {"experts", experts},
                                {"used", used}},
                       .amount = decode ? bytes : 2.0 * rows * used * n_out * cols,
                       .unit = decode ? 1e9 : 1e12,
                       .run = [work, rows, used](int times) {
                         for (int i = 0; i < times; ++i) {
                           const int set = work->next++ % work->n_sets;
                           work->stream->MoeMatMul({.weight = work->weight.get(),
                                                    .x = work->prepared->data(),
                                                    .chosen = work->chosen->As<int32_t>() + set * rows * used,
                                                    .out = work->out->As<float>(),
                                                    .n_rows = rows,
                                                    .k = used});
                         }
                         return work->stream->Synchronize();
                       }});
  return absl::OkStatus();
}

}  // namespace layover::gpu
