// How one request wants its tokens drawn. Plain data: the coordinator keeps it (with the seed it drew, if the client
// gave none) and sends it again after a restart; the last stage's sampler (stage_worker/sampler.h) says what each field
// does.
#ifndef LAYOVER_COMMON_WIRE_SAMPLER_SPEC_H_
#define LAYOVER_COMMON_WIRE_SAMPLER_SPEC_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace layover {

struct SamplerSpec {
  float temperature = 1.0f;  // 0 (or below): the highest logit, no chance
  float top_p = 1.0f;        // (0, 1]; 1: off
  float min_p = 0.0f;        // [0, 1]; 0: off
  int32_t top_k = 0;         // 0: off
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // (id, added to its logit); ids outside the row are ignored
  std::vector<int32_t> banned;                        // never drawn, such as the end tokens under ignore_eos

  bool operator==(const SamplerSpec&) const = default;
};

}  // namespace layover

#endif  // LAYOVER_COMMON_WIRE_SAMPLER_SPEC_H_
