#include "stage_worker/park_store.h"

#include <algorithm>
#include <new>

#include "common/status.h"
#include "common/storage/fault_point.h"

namespace layover {
namespace {

bool IsState(RecordKind kind) {
  return kind == RecordKind::kRecurrent || kind == RecordKind::kConv;
}

// Where in the map a piece is: rows by page, states by position.
int32_t PlaceOf(const StatePiece& piece) {
  return IsState(piece.kind) ? piece.end : piece.begin / kPageTokens;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ParkImage>> ParkImage::Copy(PieceCopier& copier, const StatePieces& pieces,
                                                                 const StageSession& session,
                                                                 const std::vector<wire::StateAt>& checkpoints) {
  FaultPoint point(FaultKind::kCopy, "host memory");
  if (point.error() != 0) return ErrnoStatus(point.error(), "copy into host memory");
  const auto image = std::make_shared<ParkImage>();
  const auto length = static_cast<int64_t>(session.tokens.size());
  image->tokens_ = session.tokens;
  image->bytes_ = length * static_cast<int64_t>(sizeof(int32_t));
  const auto keep = [&](const std::vector<PieceRun>& runs, const StateTables& from) {
    for (const PieceRun& run : runs) {
      for (const StatePiece& piece : run) image->Keep(copier, pieces, piece, from);
    }
  };
  const StateTables tables{session.pages, session.window_pages, session.state_slot};
  RETURN_IF_ERROR(pieces.CheckTables(length, tables));
  for (const wire::StateAt& checkpoint : checkpoints) {
    RETURN_IF_ERROR(pieces.CheckTables(checkpoint.position, {session.pages, checkpoint.window_pages, checkpoint.slot}));
  }
  try {
    keep(pieces.Rows(0, length), tables);
    keep(pieces.StateAt(length), tables);
    for (const wire::StateAt& checkpoint : checkpoints) {
      const StateTables at{session.pages, checkpoint.window_pages, checkpoint.slot};
      keep(pieces.StateAt(checkpoint.position), at);
    }
  } catch (const std::bad_alloc&) {
    (void)copier.Finish();  // what is copied still writes into the image
    return ResourceExhausted("the host has no memory for the image of {} tokens", length);
  }
  RETURN_IF_ERROR(copier.Finish());
  point.Done();
  return image;
}

void ParkImage::Keep(PieceCopier& copier, const StatePieces& pieces, const StatePiece& piece, const StateTables& from) {
  std::vector<Part>& parts = parts_[{piece.kind, piece.layer, PlaceOf(piece)}];
  for (const Part& part : parts) {
    if (part.begin <= piece.begin && part.end >= piece.end) return;  // equal positions have equal rows
  }
  Part& part = parts.emplace_back();
  part.begin = piece.begin;
  part.end = piece.end;
  part.bytes.resize(pieces.Bytes(piece));
  bytes_ += static_cast<int64_t>(part.bytes.size());
  copier.Read(part.bytes, [&](Stream& stream, std::byte* room) { pieces.Read(stream, piece, from, room); });
}

bool ParkImage::HasStateAt(const StatePieces& pieces, int64_t position) const {
  for (const PieceRun& run : pieces.StateAt(position)) {
    for (const StatePiece& piece : run) {
      if (Find(pieces, piece) == nullptr) return false;
    }
  }
  return true;
}

const std::byte* ParkImage::Find(const StatePieces& pieces, const StatePiece& piece) const {
  const auto found = parts_.find({piece.kind, piece.layer, PlaceOf(piece)});
  if (found == parts_.end()) return nullptr;
  for (const Part& part : found->second) {
    if (part.begin > piece.begin || part.end < piece.end) continue;
    if (IsState(piece.kind)) return part.bytes.data();
    return part.bytes.data() + static_cast<size_t>(piece.begin - part.begin) * pieces.pages().row_bytes(piece.layer);
  }
  return nullptr;
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
