#include "common/plan/stage_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/gguf/weight_types.h"
#include "common/hop_memory.h"
#include "common/limits.h"
#include "common/link_choice.h"
#include "common/status.h"

namespace layover {
namespace {

constexpr int kPage = limits::kPageTokens;
constexpr int kLeastLogitsRows = 64;  // a reader of all logits rows takes them in pieces of this many

int PagesFor(int64_t tokens) {
  return static_cast<int>((tokens + kPage - 1) / kPage);
}

// K/V rows are stored like weights of the same name.
const WeightTypeTraits& KvTraits(std::string_view kv_type) {
  if (kv_type == "f32") return WeightTypeInfo(WeightType::kF32);
  if (kv_type == "f16") return WeightTypeInfo(WeightType::kF16);
  if (kv_type == "q8_0") return WeightTypeInfo(WeightType::kQ8_0);
  LAYOVER_CHECK(kv_type == "q4_0");
  return WeightTypeInfo(WeightType::kQ4_0);
}

uint64_t TensorBytes(const GgufFile& file, std::vector<TensorSpec> specs) {
  uint64_t bytes = 0;
  for (const BoundTensor& bound : BindTensors(file, std::move(specs))) bytes += bound.tensor->bytes;
  return bytes;
}

// Back ends keep some types in more bytes than the file has: a codebook's points are looked up when the weights are
// loaded. Bytes of 4,096 weights as the CPU packs them (kernels/cpu/packed_layout.h; cards are within 4 %).
struct PackedType {
  WeightType type;
  uint64_t bytes;
};
constexpr uint64_t kPackedElements = 4096;
constexpr PackedType kPackedTypes[] = {
    {WeightType::kQ3_K, 1824},    {WeightType::kQ4_K, 2368},    {WeightType::kQ5_K, 2880},  {WeightType::kIQ4_XS, 2208},
    {WeightType::kIQ3_S, 2208},   {WeightType::kIQ3_XXS, 2208}, {WeightType::kIQ2_S, 1824}, {WeightType::kIQ2_XS, 1824},
    {WeightType::kIQ2_XXS, 1824}, {WeightType::kIQ1_M, 1824},   {WeightType::kIQ1_S, 1824}, {WeightType::kMXFP4, 2304},
};

// What packing adds to the tensors' bytes.
uint64_t PackingBytes(const GgufFile& file, std::vector<TensorSpec> specs) {
  uint64_t added = 0;
  for (const BoundTensor& bound : BindTensors(file, std::move(specs))) {
    const GgufTensor& tensor = *bound.tensor;
    uint64_t elements = 1;
    for (const int64_t dim : tensor.dims) elements *= static_cast<uint64_t>(dim);
    for (const PackedType& packed : kPackedTypes) {
      if (static_cast<uint32_t>(packed.type) == tensor.type)
        added += elements * packed.bytes / kPackedElements - tensor.bytes;
    }
  }
  return added;
}

// Pages that a sliding window needs of one session: what the window reaches back from a chunk's first row, and the
// chunk, wherever they lie on the grid.
int WindowPages(const ModelShape& shape, const Topology& topology) {
  if (shape.window == 0) return 0;
  const int64_t reach = static_cast<int64_t>(shape.window) - 1 + topology.chunk;
  return std::min(PagesFor(topology.context), PagesFor(reach) + 1);
}

// What each layer and each end of the pipeline costs, so that the cost of any range is a difference of sums.
class CostTable {
 public:
  // `links[i]` is that of the hop into stage i.
  CostTable(const Topology& topology, const GgufFile& file, const ModelShape& shape, const Plan& plan,
            std::vector<LinkKind> links)
      : shape_(shape), plan_(plan), links_(std::move(links)) {
    embedding_weight_ = TensorBytes(file, EmbeddingTensors(shape));
    head_weight_ = TensorBytes(file, HeadTensors(shape));
    tied_weight_ = shape.tied_output ? embedding_weight_ : 0;
    embedding_packing_ = PackingBytes(file, EmbeddingTensors(shape));
    head_packing_ = PackingBytes(file, HeadTensors(shape));
    sums_.resize(shape.n_layers + 1);
    for (int layer = 0; layer < shape.n_layers; ++layer) {
      sums_[layer + 1] = sums_[layer];
      AddLayer(topology, file, layer, &sums_[layer + 1]);
    }
  }

  // Of the `index`-th stage with these layers.
  StagePlan Cost(int index, LayerRange layers) const {
    StagePlan stage;
    stage.stage = index;
    stage.layers = layers;
    stage.owns_embedding = layers.begin == 0;
    stage.owns_head = layers.end == shape_.n_layers;
    const Sum& low = sums_[layers.begin];
    const Sum& high = sums_[layers.end];
    stage.n_full_layers = high.n_full - low.n_full;
    stage.n_window_layers = high.n_window - low.n_window;
    stage.n_recurrent_layers = high.n_recurrent - low.n_recurrent;
    stage.weight_bytes = high.weight - low.weight;
    if (stage.owns_embedding) stage.weight_bytes += embedding_weight_;
    if (stage.owns_head) stage.weight_bytes += head_weight_;
    if (stage.owns_embedding && stage.owns_head) stage.weight_bytes -= tied_weight_;
    stage.kv_bytes = high.kv - low.kv;
    stage.state_bytes = high.state - low.state;
    stage.scratch_bytes = high.scratch - low.scratch + StepBytes(stage);
    if (stage.owns_embedding) stage.scratch_bytes += embedding_packing_;
    const bool head_is_there = stage.owns_embedding && shape_.tied_output;
    if (stage.owns_head && !head_is_there) stage.scratch_bytes += head_packing_;
    stage.checkpoint_bytes = high.checkpoints - low.checkpoints;
    const auto next = static_cast<size_t>(index) + 1;
    if (next < links_.size() && links_[next] == LinkKind::kNccl) {
      stage.hop_device_bytes = limits::kPeerBuffers * plan_.hop_bytes;
      stage.scratch_bytes += stage.hop_device_bytes;
    }
    stage.total_bytes =
        stage.weight_bytes + stage.kv_bytes + stage.state_bytes + stage.checkpoint_bytes + stage.scratch_bytes;
    return stage;
  }

 private:
  // Of layers [0, i).
  struct Sum {
    int n_full = 0;
    int n_window = 0;
    int n_recurrent = 0;
    uint64_t weight = 0;
    uint64_t kv = 0;
    uint64_t state = 0;
    uint64_t checkpoints = 0;
    uint64_t scratch = 0;
  };

  void AddLayer(const Topology& topology, const GgufFile& file, int layer, Sum* sum) {
    sum->weight += TensorBytes(file, LayerTensors(shape_, layer));
    sum->scratch += PackingBytes(file, LayerTensors(shape_, layer));
    if (shape_.layers[layer].kind == LayerKind::kRecurrent) {
      ++sum->n_recurrent;
      sum->state += RecurrentStateBytes(shape_) * plan_.n_state_slots;
      sum->checkpoints += RecurrentStateBytes(shape_) * plan_.n_checkpoint_slots;
      sum->scratch += RecurrentStateBytes(shape_);
      return;
    }
    const bool window = shape_.layers[layer].kind == LayerKind::kSlidingWindow;
    ++(window ? sum->n_window : sum->n_full);
    const uint64_t page = KvBytesPerToken(shape_, layer, topology.kv_type) * kPage;
    sum->kv += page * (window ? plan_.n_window_pages : plan_.n_pages);
    if (window) sum->checkpoints += page * plan_.n_checkpoint_window_pages;
    sum->scratch += page;
  }

  // Buffers of one step, reused by its layers: the residual rows in and out, their normed and prepared copies, the
  // widest layer's products, and on the last stage the logits. All counted as float32.
  uint64_t StepBytes(const StagePlan& stage) const {
    // A gate beside each query makes the queries twice as wide, and they are brought together once more.
    const int64_t queries = static_cast<int64_t>(shape_.recurrent.conv_taps > 0 ? 4 : 2) * shape_.n_head;
    const int64_t attention = (queries + 2 * shape_.n_head_kv) * shape_.head_dim_k;
    const int64_t recurrent = 2 * shape_.recurrent.Channels() + 2 * shape_.recurrent.ValueDim();
    const ExpertShape& experts = shape_.experts;
    const int64_t ff =
        3 * (std::max<int64_t>(shape_.n_ff, static_cast<int64_t>(experts.used) * experts.n_ff) + experts.n_ff_shared);
    const int64_t expert_rows = static_cast<int64_t>(experts.used) * shape_.n_embd + experts.count;
    const int64_t row = 4 * static_cast<int64_t>(shape_.n_embd) + std::max(attention, recurrent) + ff + expert_rows;
    int64_t floats = row * plan_.step_rows;
    if (stage.owns_head) floats += static_cast<int64_t>(shape_.n_vocab) * plan_.logits_rows;
    return static_cast<uint64_t>(floats) * sizeof(float);
  }

  const ModelShape& shape_;
  const Plan& plan_;
  const std::vector<LinkKind> links_;
  uint64_t embedding_weight_ = 0;
  uint64_t head_weight_ = 0;
  uint64_t embedding_packing_ = 0;
  uint64_t head_packing_ = 0;
  uint64_t tied_weight_ = 0;  // counted once where embedding and head share a stage
  std::vector<Sum> sums_;
};

absl::Status CheckKvType(const Topology& topology, const ModelShape& shape) {
  const int block = KvTraits(topology.kv_type).block_elements;
  if (shape.head_dim_k % block == 0) return absl::OkStatus();
  return InvalidArgument("{}: kv_type {} needs heads of a multiple of {} dims, this model's have {}", topology.file,
                         topology.kv_type, block, shape.head_dim_k);
}

absl::StatusOr<std::vector<LayerRange>> GivenLayers(const Topology& topology, const ModelShape& shape) {
  std::vector<LayerRange> ranges;
  for (size_t i = 0; i < topology.stages.size(); ++i) {
    const StageSettings& stage = topology.stages[i];
    if (stage.layers->end > shape.n_layers) {
      return InvalidArgument("{}:{}: stage {}: layers {}-{} go past the model, which has {} layers (0-{})",
                             topology.file, stage.line, i, stage.layers->begin, stage.layers->end - 1, shape.n_layers,
                             shape.n_layers - 1);
    }
    ranges.push_back(*stage.layers);
  }
  if (ranges.back().end != shape.n_layers) {
    return InvalidArgument("{}:{}: stage {}: the last stage ends at layer {}, the model has {} layers (0-{})",
                           topology.file, topology.stages.back().line, ranges.size() - 1, ranges.back().end - 1,
                           shape.n_layers, shape.n_layers - 1);
  }
  return ranges;
}

// The smallest possible size of the largest of `n_stages` stages: least[k][e] is that of the first k stages over layers
// [0, e), least[k][e] = min over b < e of max(least[k-1][b], cost of [b, e)).
uint64_t SmallestLargest(const CostTable& costs, int n_layers, int n_stages) {
  constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  std::vector<uint64_t> least(n_layers + 1, kNever);
  least[0] = 0;
  for (int k = 1; k <= n_stages; ++k) {
    std::vector<uint64_t> next(n_layers + 1, kNever);
    for (int end = k; end <= n_layers; ++end) {
      for (int begin = end - 1; begin >= k - 1; --begin) {
        const uint64_t cost = costs.Cost(k - 1, {begin, end}).total_bytes;
        if (cost >= next[end]) break;  // an earlier begin only makes this stage larger
        next[end] = std::min(next[end], std::max(least[begin], cost));
      }
    }
    least = std::move(next);
  }
  return least[n_layers];
}

// Among the splits whose largest stage is as small as can be, the one where each stage in turn takes the most layers.
std::vector<LayerRange> ChooseLayers(const CostTable& costs, int n_layers, int n_stages) {
  const uint64_t cap = SmallestLargest(costs, n_layers, n_stages);
  // fits[k][b]: layers [b, n) can go to k stages under the cap.
  std::vector<std::vector<char>> fits(n_stages + 1, std::vector<char>(n_layers + 1, 0));
  fits[0][n_layers] = 1;
  for (int k = 1; k <= n_stages; ++k) {
    for (int begin = n_layers - k; begin >= 0; --begin) {
      for (int end = begin + 1; end <= n_layers && !fits[k][begin]; ++end) {
        if (costs.Cost(n_stages - k, {begin, end}).total_bytes > cap) break;
        fits[k][begin] = fits[k - 1][end];
      }
    }
  }
  std::vector<LayerRange> ranges;
  int begin = 0;
  for (int k = n_stages; k >= 1; --k) {
    int best = begin;
    for (int end = begin + 1; end <= n_layers && costs.Cost(n_stages - k, {begin, end}).total_bytes <= cap; ++end) {
      if (fits[k - 1][end]) best = end;
    }
    LAYOVER_CHECK(best > begin);
    ranges.push_back({begin, best});
    begin = best;
  }
  return ranges;
}

bool IsHost(const StagePlan& stage) {
  return stage.device == "cpu" || stage.device.starts_with("emu:");  // an emulated card's memory is the host's
}

// What hops take of the host's memory, and what the coordinator's machine is asked for in all.
void CountHops(Plan* plan) {
  const int n_stages = static_cast<int>(plan->stages.size());
  const uint32_t slots = HopRingSlots(n_stages);
  for (int i = 0; i < n_stages; ++i) {
    StagePlan& stage = plan->stages[static_cast<size_t>(i)];
    if (stage.host.empty() && IsHost(stage)) plan->host_bytes += stage.total_bytes;
    if (i == 0) continue;
    const StagePlan& before = plan->stages[static_cast<size_t>(i) - 1];
    if (stage.link == LinkKind::kZmq) {
      stage.hop_host_bytes = static_cast<uint64_t>(n_stages) * plan->hop_bytes;
    } else {
      stage.hop_host_bytes = HopRingBytes(slots, stage.link == LinkKind::kShm ? plan->hop_bytes : 0);
      stage.hop_pinned = before.device != "cpu" || stage.device != "cpu";
    }
    if (before.host.empty() || stage.host.empty()) plan->host_bytes += stage.hop_host_bytes;
  }
}

}  // namespace

uint64_t KvBytesPerToken(const ModelShape& shape, int layer, std::string_view kv_type) {
  const WeightTypeTraits& traits = KvTraits(kv_type);
  LAYOVER_CHECK(shape.head_dim_k % traits.block_elements == 0);
  const uint64_t head_bytes = static_cast<uint64_t>(shape.head_dim_k / traits.block_elements) * traits.block_bytes;
  return 2 * static_cast<uint64_t>(shape.layers[layer].n_head_kv) * head_bytes;
}

uint64_t RecurrentStateBytes(const ModelShape& shape) {
  const RecurrentShape& r = shape.recurrent;
  const uint64_t delta = static_cast<uint64_t>(r.value_heads) * r.dim * r.dim;
  const uint64_t conv = static_cast<uint64_t>(r.conv_taps - 1) * r.Channels();
  return (delta + conv) * sizeof(float);
}

absl::StatusOr<Plan> MakePlan(const Topology& topology, const GgufFile& file, const ModelShape& shape) {
  LAYOVER_CHECK(!topology.stages.empty());
  RETURN_IF_ERROR(CheckKvType(topology, shape));
  const int n_stages = static_cast<int>(topology.stages.size());
  if (n_stages > shape.n_layers) {
    return InvalidArgument("{}:{}: {} stages for a model of {} layers; a stage owns at least one", topology.file,
                           topology.stages[shape.n_layers].line, n_stages, shape.n_layers);
  }
  Plan plan;
  plan.context = topology.context;
  plan.sessions = topology.sessions;
  plan.kv_type = topology.kv_type;
  plan.step_rows = topology.chunk + topology.sessions;
  plan.hop_bytes = sizeof(float) * static_cast<uint64_t>(plan.step_rows) * static_cast<uint64_t>(shape.n_embd);
  plan.logits_rows = std::max(kLeastLogitsRows, topology.sessions);
  plan.n_pages = topology.sessions * PagesFor(topology.context);
  plan.n_window_pages = topology.sessions * WindowPages(shape, topology);
  plan.n_state_slots = shape.recurrent.conv_taps > 0 ? topology.sessions : 0;
  // One more, because a step that keeps a state writes the next one beside it.
  const int checkpoints = topology.sessions * limits::kCheckpointsPerSession;
  plan.n_checkpoint_slots = plan.n_state_slots > 0 ? checkpoints + 1 : 0;
  plan.n_checkpoint_window_pages =
      shape.window > 0 ? checkpoints * PagesFor(std::min(shape.window, topology.context) + kPage) : 0;
  std::vector<LinkKind> links = {LinkKind::kAuto};
  for (size_t i = 1; i < topology.stages.size(); ++i) {
    ASSIGN_OR_RETURN(const LinkKind link, ChooseLink(topology, i));
    links.push_back(link);
  }
  const CostTable costs(topology, file, shape, plan, links);
  std::vector<LayerRange> ranges;
  if (topology.stages[0].layers.has_value()) {
    ASSIGN_OR_RETURN(ranges, GivenLayers(topology, shape));
  } else {
    ranges = ChooseLayers(costs, shape.n_layers, n_stages);
  }
  for (int i = 0; i < n_stages; ++i) {
    StagePlan stage = costs.Cost(i, ranges[i]);
    stage.device = topology.stages[i].device;
    stage.host = topology.stages[i].host;
    stage.link = links[static_cast<size_t>(i)];
    plan.stages.push_back(std::move(stage));
  }
  CountHops(&plan);
  return plan;
}

}  // namespace layover
