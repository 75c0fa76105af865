// Parked sessions in host memory: what a stage keeps of a session whose pages were given to another one. An image holds
// canonical rows, as a segment does, so that it can be saved from here as well as brought back.
//
// Images are immutable once made and shared: dropping one while a save reads it only ends the store's own hold.
#ifndef LAYOVER_STAGE_WORKER_PARK_STORE_H_
#define LAYOVER_STAGE_WORKER_PARK_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "stage_worker/kv_pages.h"
#include "stage_worker/session_table.h"

namespace layover {

struct ParkImage {
  std::vector<int32_t> tokens;
  // [layer of this stage] canonical rows [tokens, kv_heads, head_dim]
  std::vector<std::vector<std::byte>> k_rows;
  std::vector<std::vector<std::byte>> v_rows;
  int64_t bytes() const;
};

class ParkStore {
 public:
  // Copies the session's rows; the pages must not change meanwhile.
  static std::shared_ptr<const ParkImage> Copy(Device& device, const KvPages& pages, const StageSession& session);
  // Fills pages [0, ceil(n_tokens / 64)) with the image's first rows.
  static void Fill(Device& device, const KvPages& pages, const ParkImage& image, int64_t n_tokens,
                   const std::vector<int32_t>& page_table);

  void Put(uint64_t park, std::shared_ptr<const ParkImage> image);
  std::shared_ptr<const ParkImage> Get(uint64_t park) const;  // null if there is none
  void Drop(uint64_t park);
  void Clear();

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const ParkImage>> images_;  // guarded by mutex_
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_PARK_STORE_H_
