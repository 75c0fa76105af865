#include "stage_worker/kv_pages.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<KvPages>> KvPages::Create(Device& device, const ModelShape& shape, LayerRange layers,
                                                         KvType type, const Counts& n_pages) {
  if (!device.SupportsKv(type, shape.head_dim_k)) {
    return Unimplemented("{} keeps no {} K/V with heads of {}", device.Name(), KvTypeName(type), shape.head_dim_k);
  }
  std::unique_ptr<KvPages> kv(new KvPages());
  kv->layers_ = layers;
  kv->type_ = type;
  kv->n_pages_ = n_pages;
  kv->window_ = shape.window;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerShape& layer_shape = shape.layers[static_cast<size_t>(layer)];
    kv->pools_.emplace_back();
    if (layer_shape.kind == LayerKind::kRecurrent) continue;
    KvLayer& pool = kv->pools_.back();
    pool = {.type = type,
            .n_pages = n_pages.of(layer_shape.kind) + 1,
            .kv_heads = layer_shape.n_head_kv,
            .head_dim = shape.head_dim_k};
    const size_t bytes = device.KvPoolBytes(type, pool.n_pages, pool.kv_heads, pool.head_dim);
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> k, device.Allocate(bytes));
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> v, device.Allocate(bytes));
    pool.k_pool = k->data();
    pool.v_pool = v->data();
    kv->buffers_.push_back(std::move(k));
    kv->buffers_.push_back(std::move(v));
    (layer_shape.kind == LayerKind::kSlidingWindow ? kv->window_layers_ : kv->full_layers_).push_back(layer);
  }
  return kv;
}

const KvLayer& KvPages::layer(int layer) const {
  const KvLayer& pool = pools_[static_cast<size_t>(layer - layers_.begin)];
  LAYOVER_CHECK(pool.k_pool != nullptr);
  return pool;
}

size_t KvPages::row_bytes(int of_layer) const {
  const KvLayer& pool = layer(of_layer);
  return KvRowBytes(pool.type, pool.kv_heads, pool.head_dim);
}

void KvPages::Zero(Stream& stream, LayerKind kind, std::span<const int32_t> pages) const {
  for (const int of_layer : layers_of(kind)) {
    for (const int32_t page : pages) {
      if (page >= 0) stream.ZeroKvPage(layer(of_layer), page);
    }
  }
}

void KvPages::Copy(Stream& stream, LayerKind kind, std::span<const wire::PageCopy> copies) const {
  for (const int of_layer : layers_of(kind)) {
    for (const wire::PageCopy& copy : copies) stream.CopyKvPage(layer(of_layer), copy.src, copy.dst, copy.rows);
  }
}

}  // namespace layover
