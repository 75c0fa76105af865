#include "stage_worker/kv_pages.h"

#include "common/status.h"

namespace layover {

absl::StatusOr<std::unique_ptr<KvPages>> KvPages::Create(Device& device, const ModelShape& shape, LayerRange layers,
                                                         KvType type, int n_pages) {
  if (!device.SupportsKv(type, shape.head_dim_k)) {
    return Unimplemented("{} keeps no {} K/V with heads of {}", device.Name(), KvTypeName(type), shape.head_dim_k);
  }
  std::unique_ptr<KvPages> kv(new KvPages());
  kv->layers_ = layers;
  kv->type_ = type;
  kv->n_pages_ = n_pages;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerShape& layer_shape = shape.layers[static_cast<size_t>(layer)];
    KvLayer pool{.type = type, .n_pages = n_pages + 1, .kv_heads = layer_shape.n_head_kv, .head_dim = shape.head_dim_k};
    kv->row_bytes_ = KvRowBytes(type, pool.kv_heads, pool.head_dim);
    const size_t bytes = device.KvPoolBytes(type, pool.n_pages, pool.kv_heads, pool.head_dim);
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> k, device.Allocate(bytes));
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> v, device.Allocate(bytes));
    pool.k_pool = k->data();
    pool.v_pool = v->data();
    kv->buffers_.push_back(std::move(k));
    kv->buffers_.push_back(std::move(v));
    kv->pools_.push_back(pool);
  }
  return kv;
}

void KvPages::Zero(Stream& stream, std::span<const int32_t> pages) const {
  for (const KvLayer& pool : pools_) {
    for (int32_t page : pages) stream.ZeroKvPage(pool, page);
  }
}

void KvPages::Copy(Stream& stream, std::span<const wire::PageCopy> copies) const {
  for (const KvLayer& pool : pools_) {
    for (const wire::PageCopy& copy : copies) stream.CopyKvPage(pool, copy.src, copy.dst, copy.rows);
  }
}

}  // namespace layover
