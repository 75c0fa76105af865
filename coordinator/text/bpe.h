// Byte-level BPE over one pre-tokenized piece: starts from single bytes and joins the neighbours whose merge ranks
// first, ties from the left, until no merge applies. O(n log n) in the piece's length.
#ifndef LAYOVER_COORDINATOR_TEXT_BPE_H_
#define LAYOVER_COORDINATOR_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/text/vocabulary.h"

namespace layover {

class BpeEncoder {
 public:
  // Buffers of one Encode call, reused from piece to piece.
  struct Scratch {
    std::vector<int32_t> symbol, previous, next;
    std::vector<uint32_t> rank;  // of the merge with the next symbol
    std::vector<uint64_t> heap;
    std::string mapped;
  };

  // `vocabulary` outlives it. InvalidArgument: a merge that is not two parts (says which).
  static absl::StatusOr<std::unique_ptr<BpeEncoder>> Create(const Vocabulary* vocabulary,
                                                            const std::vector<std::string>& merges, bool ignore_merges);

  // Appends the ids of a piece's bytes. Bytes that the vocabulary has no token for are dropped; returns how many.
  int64_t EncodePiece(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  BpeEncoder(const Vocabulary* vocabulary, bool ignore_merges)
      : vocabulary_(vocabulary), ignore_merges_(ignore_merges) {}
  uint32_t RankOf(int32_t left, int32_t right) const;
  void MergeAll(Scratch* scratch) const;
  int64_t EmitSymbol(int32_t symbol, std::string_view bytes, std::vector<int32_t>* ids) const;

  const Vocabulary* vocabulary_;
  bool ignore_merges_;
  // Symbols are token ids, and numbers from vocabulary size on for strings that only merges know.
  std::array<int32_t, 256> byte_symbols_;
  absl::flat_hash_map<uint64_t, uint32_t> ranks_;  // (left, right) to rank
  std::vector<int32_t> merged_;                    // rank to symbol
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_BPE_H_
