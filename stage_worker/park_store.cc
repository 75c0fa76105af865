#include "stage_worker/park_store.h"

#include <algorithm>

namespace layover {

int64_t ParkImage::bytes() const {
  size_t bytes = tokens.size() * sizeof(int32_t);
  for (const auto& rows : k_rows) bytes += rows.size();
  for (const auto& rows : v_rows) bytes += rows.size();
  return static_cast<int64_t>(bytes);
}

std::shared_ptr<const ParkImage> ParkStore::Copy(Device& device, const KvPages& pages, const StageSession& session) {
  auto image = std::make_shared<ParkImage>();
  image->tokens = session.tokens;
  const std::unique_ptr<Stream> stream = device.NewCopyStream();
  const size_t row_bytes = pages.row_bytes();
  for (int layer = pages.layers().begin; layer < pages.layers().end; ++layer) {
    std::vector<std::byte>& k = image->k_rows.emplace_back(session.tokens.size() * row_bytes);
    std::vector<std::byte>& v = image->v_rows.emplace_back(session.tokens.size() * row_bytes);
    for (size_t begin = 0; begin < session.tokens.size(); begin += kPageTokens) {
      const int rows = static_cast<int>(std::min<size_t>(kPageTokens, session.tokens.size() - begin));
      stream->ReadKvRows(pages.layer(layer), session.pages[begin / kPageTokens], 0, rows, k.data() + begin * row_bytes,
                         v.data() + begin * row_bytes);
    }
  }
  (void)stream->Synchronize();
  return image;
}

void ParkStore::Fill(Device& device, const KvPages& pages, const ParkImage& image, int64_t n_tokens,
                     const std::vector<int32_t>& page_table) {
  const std::unique_ptr<Stream> stream = device.NewCopyStream();
  const size_t row_bytes = pages.row_bytes();
  pages.Zero(*stream, page_table);
  for (int layer = pages.layers().begin; layer < pages.layers().end; ++layer) {
    const auto index = static_cast<size_t>(layer - pages.layers().begin);
    for (int64_t begin = 0; begin < n_tokens; begin += kPageTokens) {
      const int rows = static_cast<int>(std::min<int64_t>(kPageTokens, n_tokens - begin));
      const size_t offset = static_cast<size_t>(begin) * row_bytes;
      stream->WriteKvRows(pages.layer(layer), page_table[static_cast<size_t>(begin / kPageTokens)], 0, rows,
                          image.k_rows[index].data() + offset, image.v_rows[index].data() + offset);
    }
  }
  (void)stream->Synchronize();
}

void ParkStore::Put(uint64_t park, std::shared_ptr<const ParkImage> image) {
  std::lock_guard<std::mutex> lock(mutex_);
  images_[park] = std::move(image);
}

std::shared_ptr<const ParkImage> ParkStore::Get(uint64_t park) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = images_.find(park);
  return found == images_.end() ? nullptr : found->second;
}

void ParkStore::Drop(uint64_t park) {
  std::lock_guard<std::mutex> lock(mutex_);
  images_.erase(park);
}

void ParkStore::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  images_.clear();
}

}  // namespace layover
