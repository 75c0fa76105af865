// The sampler: pure functions of a logits row, the request's parameters, the position and the history.
//
// What must stay true:
//  - Same arguments, same token, on every machine: no state, no clock, no library exp or log (their last bit depends on
//    the processor), one fixed order of every sum, a counter-based generator keyed by (seed, position).
//  - Equal logits: the lower id comes first, everywhere.
//
// Order of operations, as llama.cpp's default chain has it, so that settings mean the same here as there:
//   1. banned ids get -infinity, logit_bias is added
//   2. repeat_penalty: of ids among the last limits::kRepeatPenaltyWindow tokens of prompt and output a positive logit
//      is divided, a negative one multiplied; then presence and frequency, counted over the output, are subtracted
//   3. temperature <= 0: the highest logit. Else:
//   4. top_k, then top_p over what is left (the shortest head that holds top_p of its probability), then min_p
//      (relative to the most likely one); all three see the distribution before temperature
//   5. the rest is drawn with probabilities exp(logit / temperature)
//
// A row is passed without the vocabulary's padding: `row.first(n_vocab_text)`. NaN counts as -infinity; +infinity as
// the largest float. If every id is excluded, the lowest id that is not banned is returned (id 0 if all are).
#ifndef LAYOVER_STAGE_WORKER_SAMPLER_H_
#define LAYOVER_STAGE_WORKER_SAMPLER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/sampler_spec.h"

namespace layover {

struct SampledToken {
  int32_t id = 0;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// row: [n_vocab_text] raw logits. `history`: all tokens before `position`, those from `output_begin` on are output.
SampledToken Sample(std::span<const float> row, const SamplerSpec& spec, int64_t position,
                    std::span<const int32_t> history, int64_t output_begin);

// Where a token depends on nothing but a row's best logits, they will do, and the row may stay on its device. How many
// of them, limits::kMaxTopK at most; 0: it takes the row, of `n_ids`.
int BestNeeded(const SamplerSpec& spec, size_t n_ids);

// As TopK (kernels/ops.h) gives them: best first, -1 where a row has no more.
struct BestLogits {
  std::span<const int32_t> ids;
  std::span<const float> logits;
};
// Sample's token, from at least BestNeeded(spec, n_ids) of a row's best.
SampledToken SampleFromBest(const BestLogits& best, const SamplerSpec& spec, int64_t position, size_t n_ids);

// Natural logarithm of the softmax of raw logits: logit - max - log(sum of exp(logit - max)). The sum goes over blocks
// of 64 ids in ascending order; inside a block eight float lanes take ids modulo 8 in ascending order and are then
// added, lane 0 first, to the total in double.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> row);
  float Logprob(int32_t id) const;
  // The k most likely ids, highest first, ties by the lower id; fewer if the row is shorter.
  std::vector<TokenLogprob> Top(int k) const;

 private:
  std::span<const float> row_;
  float max_ = 0;
  double log_sum_ = 0;
};

std::vector<TokenLogprob> TopLogprobs(std::span<const float> row, int k);

// A number in [0, 1) with 53 random bits: Philox4x32-10 with key `seed` (low word first) and counter (position, 0).
double UniformAt(uint64_t seed, int64_t position);

// The generator itself (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_SAMPLER_H_
