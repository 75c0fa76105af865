// SentencePiece-style encoding ("llama" vocabularies): starts from characters and joins the neighbours whose joined
// spelling is the token with the highest score, ties from the left; what is no token becomes byte tokens. O(n log n).
#ifndef LAYOVER_COORDINATOR_TEXT_SPM_H_
#define LAYOVER_COORDINATOR_TEXT_SPM_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/text/vocabulary.h"

namespace layover {

class SpmEncoder {
 public:
  // `vocabulary` outlives it. InvalidArgument: not one score per token.
  static absl::StatusOr<std::unique_ptr<SpmEncoder>> Create(const Vocabulary* vocabulary, std::vector<float> scores,
                                                            int32_t unk_id);

  // Appends the ids of `text`, valid UTF-8, spaces included (U+2581 is put in here). Bytes without a token become unk,
  // or are dropped where there is none; returns how many were dropped.
  int64_t Encode(std::string_view text, std::vector<int32_t>* ids) const;

 private:
  SpmEncoder(const Vocabulary* vocabulary, std::vector<float> scores, int32_t unk_id)
      : vocabulary_(vocabulary), scores_(std::move(scores)), unk_id_(unk_id) {}
  int64_t EmitSymbol(std::string_view symbol, std::vector<int32_t>* ids) const;

  const Vocabulary* vocabulary_;
  std::vector<float> scores_;
  int32_t unk_id_;
};

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_SPM_H_
