// What this stage holds of a session, cut into the pieces that segments and park images are made of: rows of one layer
// within one page, and the recurrent and convolution state of one layer. Knows where each piece lies on the device and
// what its canonical bytes are; knows nothing of files.
#ifndef LAYOVER_STAGE_WORKER_STATE_PIECES_H_
#define LAYOVER_STAGE_WORKER_STATE_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/storage/segment_format.h"
#include "common/wire/messages.h"
#include "stage_worker/kv_pages.h"
#include "stage_worker/recurrent_state.h"

namespace layover {

// Rows [begin, end), which lie in one page; or, with begin 0, the state after `end` tokens.
struct StatePiece {
  RecordKind kind = RecordKind::kKRows;
  int32_t layer = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

// Pieces of one layer and kind, ascending: what a segment writes in one run.
using PieceRun = std::vector<StatePiece>;

// Where a session's pieces lie.
struct StateTables {
  const std::vector<int32_t>& pages;
  const std::vector<int32_t>& window_pages;
  int32_t slot = -1;
};

class StatePieces {
 public:
  StatePieces(const KvPages& pages, const RecurrentState& states) : pages_(pages), states_(states) {}

  // Rows [begin, end) of the full-attention layers.
  std::vector<PieceRun> Rows(int64_t begin, int64_t end) const;
  // What it takes to go on at `position`: states, and the rows of sliding windows that those after it see, without the
  // ones below window_base. Nothing at position 0.
  std::vector<PieceRun> StateAt(int64_t position, int64_t window_base = 0) const;

  size_t Bytes(const StatePiece& piece) const;
  ElementType Element(const StatePiece& piece) const;

  // In stream order; `payload` is Bytes(piece) of canonical bytes.
  void Read(Stream& stream, const StatePiece& piece, const StateTables& from, std::byte* payload) const;
  void Write(Stream& stream, const StatePiece& piece, const StateTables& to, const std::byte* payload) const;

  // Before rows [0, n_tokens) of the full-attention layers are written to `pages`: zeroes the page that they do not fill.
  void ZeroUnfilled(Stream& stream, std::span<const int32_t> pages, int64_t n_tokens) const;
  // Before a state is written: window pages are filled only from the first row that is seen, so they are zeroed whole.
  void ZeroWindow(Stream& stream, std::span<const int32_t> window_pages) const;

  // Internal if the tables cannot hold the state at `position`: a missing slot, a short table.
  absl::Status CheckTables(int64_t position, const StateTables& tables) const;

  const KvPages& pages() const { return pages_; }
  const RecurrentState& states() const { return states_; }

 private:
  void AddRows(const std::vector<int>& layers, RecordKind k, RecordKind v, int64_t begin, int64_t end,
               std::vector<PieceRun>* runs) const;

  const KvPages& pages_;
  const RecurrentState& states_;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_STATE_PIECES_H_
