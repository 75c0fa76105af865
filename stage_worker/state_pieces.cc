#include "stage_worker/state_pieces.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace layover {
namespace {

bool IsWindow(RecordKind kind) {
  return kind == RecordKind::kWindowKRows || kind == RecordKind::kWindowVRows;
}
bool IsK(RecordKind kind) {
  return kind == RecordKind::kKRows || kind == RecordKind::kWindowKRows;
}
bool IsState(RecordKind kind) {
  return kind == RecordKind::kRecurrent || kind == RecordKind::kConv;
}

}  // namespace

void StatePieces::AddRows(const std::vector<int>& layers, RecordKind k, RecordKind v, int64_t begin, int64_t end,
                          std::vector<PieceRun>* runs) const {
  if (begin >= end) return;
  for (const int layer : layers) {
    for (const RecordKind kind : {k, v}) {
      PieceRun& run = runs->emplace_back();
      for (int64_t at = begin; at < end;) {
        const int64_t stop = std::min(end, (at / kPageTokens + 1) * kPageTokens);
        run.push_back({kind, layer, static_cast<int32_t>(at), static_cast<int32_t>(stop)});
        at = stop;
      }
    }
  }
}

std::vector<PieceRun> StatePieces::Rows(int64_t begin, int64_t end) const {
  std::vector<PieceRun> runs;
  AddRows(pages_.layers_of(LayerKind::kFullAttention), RecordKind::kKRows, RecordKind::kVRows, begin, end, &runs);
  return runs;
}

std::vector<PieceRun> StatePieces::StateAt(int64_t position, int64_t window_base) const {
  std::vector<PieceRun> runs;
  if (position == 0) return runs;
  AddRows(pages_.layers_of(LayerKind::kSlidingWindow), RecordKind::kWindowKRows, RecordKind::kWindowVRows,
          std::max(window_base, pages_.WindowBegin(position)), position, &runs);
  for (const int layer : states_.layers()) {
    for (const RecordKind kind : {RecordKind::kRecurrent, RecordKind::kConv}) {
      runs.push_back({{kind, layer, 0, static_cast<int32_t>(position)}});
    }
  }
  return runs;
}

size_t StatePieces::Bytes(const StatePiece& piece) const {
  if (piece.kind == RecordKind::kRecurrent) return states_.recurrent_bytes();
  if (piece.kind == RecordKind::kConv) return states_.conv_bytes();
  return static_cast<size_t>(piece.end - piece.begin) * pages_.row_bytes(piece.layer);
}

ElementType StatePieces::Element(const StatePiece& piece) const {
  return IsState(piece.kind) ? ElementType::kF32 : static_cast<ElementType>(pages_.type());
}

void StatePieces::Read(Stream& stream, const StatePiece& piece, const StateTables& from, std::byte* payload) const {
  if (IsState(piece.kind)) {
    const bool recurrent = piece.kind == RecordKind::kRecurrent;
    states_.Read(stream, piece.layer, from.slot, recurrent ? payload : nullptr, recurrent ? nullptr : payload);
    return;
  }
  const std::vector<int32_t>& table = IsWindow(piece.kind) ? from.window_pages : from.pages;
  const int32_t page = table[static_cast<size_t>(piece.begin / kPageTokens)], row = piece.begin % kPageTokens;
  stream.ReadKvRows(pages_.layer(piece.layer), page, row, row + piece.end - piece.begin,
                    IsK(piece.kind) ? payload : nullptr, IsK(piece.kind) ? nullptr : payload);
}

void StatePieces::Write(Stream& stream, const StatePiece& piece, const StateTables& to,
                        const std::byte* payload) const {
  if (IsState(piece.kind)) {
    const bool recurrent = piece.kind == RecordKind::kRecurrent;
    states_.Write(stream, piece.layer, to.slot, recurrent ? payload : nullptr, recurrent ? nullptr : payload);
    return;
  }
  const std::vector<int32_t>& table = IsWindow(piece.kind) ? to.window_pages : to.pages;
  const int32_t page = table[static_cast<size_t>(piece.begin / kPageTokens)], row = piece.begin % kPageTokens;
  stream.WriteKvRows(pages_.layer(piece.layer), page, row, row + piece.end - piece.begin,
                     IsK(piece.kind) ? payload : nullptr, IsK(piece.kind) ? nullptr : payload);
}

void StatePieces::ZeroUnfilled(Stream& stream, std::span<const int32_t> pages, int64_t n_tokens) const {
  const auto filled = std::min(static_cast<size_t>(n_tokens / kPageTokens), pages.size());
  pages_.Zero(stream, LayerKind::kFullAttention, pages.subspan(filled));
}

void StatePieces::ZeroWindow(Stream& stream, std::span<const int32_t> window_pages) const {
  pages_.Zero(stream, LayerKind::kSlidingWindow, window_pages);
}

absl::Status StatePieces::CheckTables(int64_t position, const StateTables& tables) const {
  if (position == 0) return absl::OkStatus();
  if (!states_.layers().empty() && (tables.slot < 0 || tables.slot > states_.n_slots())) {
    return Internal("no slot for the state at {}", position);
  }
  if (pages_.layers_of(LayerKind::kSlidingWindow).empty()) return absl::OkStatus();
  const int64_t last = (position - 1) / kPageTokens;
  for (int64_t j = pages_.WindowBegin(position) / kPageTokens; j <= last; ++j) {
    const bool named = j < static_cast<int64_t>(tables.window_pages.size()) && tables.window_pages[j] >= 0 &&
                       tables.window_pages[j] <= pages_.n_pages(LayerKind::kSlidingWindow);
    if (!named) return Internal("no page for the sliding window at {}", position);
  }
  return absl::OkStatus();
}

}  // namespace layover
