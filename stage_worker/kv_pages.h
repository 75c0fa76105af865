// The K/V memory of one stage: for each of its attention layers a pool of pages, all layers of a class indexed by the
// same page ids, which the coordinator's ledger hands out.
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
  // Allocates `n_pages` pages (and one scratch page behind them) for every full-attention layer of `layers`.
  static absl::StatusOr<std::unique_ptr<KvPages>> Create(Device& device, const ModelShape& shape, LayerRange layers,
                                                         KvType type, int n_pages);

  // `layer` counts through the model and must be one of this stage's attention layers.
  const KvLayer& layer(int layer) const { return pools_[static_cast<size_t>(layer - layers_.begin)]; }
  LayerRange layers() const { return layers_; }
  KvType type() const { return type_; }
  int n_pages() const { return n_pages_; }
  // Bytes of one token's canonical K row (or V row) in one layer.
  size_t row_bytes() const { return row_bytes_; }

  // In all layers, in stream order.
  void Zero(Stream& stream, std::span<const int32_t> pages) const;
  void Copy(Stream& stream, std::span<const wire::PageCopy> copies) const;

 private:
  KvPages() = default;
  LayerRange layers_;
  KvType type_ = KvType::kF16;
  int n_pages_ = 0;
  size_t row_bytes_ = 0;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<KvLayer> pools_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_KV_PAGES_H_
