// What a model file says about its tokenizer, as plain data, so that tests can write one by hand and only one file
// knows GGUF keys.
#ifndef LAYOVER_COORDINATOR_TEXT_TOKENIZER_SPEC_H_
#define LAYOVER_COORDINATOR_TEXT_TOKENIZER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace layover {

class GgufFile;

// The values are those of `tokenizer.ggml.token_type`.
enum class TokenType : uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct TokenizerSpec {
  std::string model;  // "gpt2" (byte-level BPE) or "llama" (SPM)
  std::string pre;    // pre-tokenizer of a gpt2 model; empty: the file does not say
  std::vector<std::string> tokens;
  std::vector<TokenType> types;     // one per token, or empty: all normal
  std::vector<float> scores;        // llama: one per token
  std::vector<std::string> merges;  // gpt2: "LEFT RIGHT", best first

  // -1: not given.
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t eot_id = -1;
  int32_t eom_id = -1;
  int32_t unk_id = -1;
  int32_t pad_id = -1;
  int32_t fim_pad_id = -1;
  int32_t fim_rep_id = -1;
  int32_t fim_sep_id = -1;

  // Absent: the model type's default.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
};

// InvalidArgument names the key that is missing or of the wrong type.
absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const GgufFile& file);

}  // namespace layover

#endif  // LAYOVER_COORDINATOR_TEXT_TOKENIZER_SPEC_H_
