// The K/V memory of one stage: for each of its attention layers a pool of pages. All layers of a class (full attention,
// sliding window) are indexed by the same page ids, which the coordinator's ledger hands out.
#ifndef LAYOVER_STAGE_WORKER_KV_PAGES_H_
#define LAYOVER_STAGE_WORKER_KV_PAGES_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/topology.h"
#include "common/wire/messages.h"
#include "kernels/ops.h"

namespace layover {

class KvPages {
 public:
  struct Counts {
    int full = 0;
    int window = 0;
    int of(LayerKind kind) const { return kind == LayerKind::kSlidingWindow ? window : full; }
  };
  // Allocates the class's pages (and one scratch page behind them) for every attention layer of `layers`.
  static absl::StatusOr<std::unique_ptr<KvPages>> Create(Device& device, const ModelShape& shape, LayerRange layers,
                                                         KvType type, const Counts& n_pages);

  // `layer` counts through the model and must be one of this stage's attention layers.
  const KvLayer& layer(int layer) const;
  // This stage's layers of one class, ascending.
  const std::vector<int>& layers_of(LayerKind kind) const {
    return kind == LayerKind::kSlidingWindow ? window_layers_ : full_layers_;
  }
  LayerRange layers() const { return layers_; }
  KvType type() const { return type_; }
  int n_pages(LayerKind kind) const { return n_pages_.of(kind); }
  // Positions that a sliding-window layer sees, itself included; 0: the model has no such layer.
  int window() const { return window_; }
  // Where the rows begin that the query at position `length` and those after it see of a sliding-window layer.
  int64_t WindowBegin(int64_t length) const { return std::max<int64_t>(0, length - window_ + 1); }
  // Bytes of one token's canonical K row (or V row) in one layer.
  size_t row_bytes(int layer) const;

  // In all layers of the class, in stream order.
  void Zero(Stream& stream, LayerKind kind, std::span<const int32_t> pages) const;
  void Copy(Stream& stream, LayerKind kind, std::span<const wire::PageCopy> copies) const;

 private:
  KvPages() = default;
  LayerRange layers_;
  KvType type_ = KvType::kF16;
  Counts n_pages_;
  int window_ = 0;
  std::vector<int> full_layers_, window_layers_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<KvLayer> pools_;  // [layer of the stage]; without memory where the layer has no attention
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_KV_PAGES_H_
