// Parked sessions in host memory: what a stage keeps of a session whose pages were given to another one. An image holds
// canonical rows and states, as a segment does, so that it can be saved from here as well as brought back.
//
// Images are immutable once made and shared: dropping one while a save reads it only ends the store's own hold.
#ifndef LAYOVER_STAGE_WORKER_PARK_STORE_H_
#define LAYOVER_STAGE_WORKER_PARK_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "stage_worker/copy_buffers.h"
#include "stage_worker/session_table.h"
#include "stage_worker/state_pieces.h"

namespace layover {

class ParkImage {
 public:
  // Copies the session's rows, its state and the checkpoints; nothing of them may change meanwhile.
  static absl::StatusOr<std::shared_ptr<const ParkImage>> Copy(PieceCopier& copier, const StatePieces& pieces,
                                                               const StageSession& session,
                                                               const std::vector<wire::StateAt>& checkpoints);

  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }
  // Whether it is possible to go on at `position` from this image; anywhere if the stage's layers keep rows only.
  bool HasStateAt(const StatePieces& pieces, int64_t position) const;
  // The bytes of a piece; null if the image does not hold it. Rows of `piece` may be part of what is held.
  const std::byte* Find(const StatePieces& pieces, const StatePiece& piece) const;

 private:
  // Of one page the window rows of several checkpoints may be kept, each with a part of them.
  using Key = std::tuple<RecordKind, int32_t, int32_t>;  // kind, layer, page (rows) or position (states)
  void Keep(PieceCopier& copier, const StatePieces& pieces, const StatePiece& piece, const StateTables& from);

  struct Part {
    int32_t begin = 0;  // first row
    int32_t end = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<int32_t> tokens_;
  int64_t bytes_ = 0;
  std::map<Key, std::vector<Part>> parts_;
};

class ParkStore {
 public:
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
