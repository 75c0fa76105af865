#include "coordinator/text/tokenizer_spec.h"

#include <string_view>
#include <utility>

#include "common/gguf/reader.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

constexpr int64_t kHighestTokenType = static_cast<int64_t>(TokenType::kByte);

absl::Status ReadTypes(const GgufFile& file, std::vector<TokenType>* types) {
  ASSIGN_OR_RETURN(auto values, file.GetInts("tokenizer.ggml.token_type"));
  if (!values.has_value()) return absl::OkStatus();
  types->reserve(values->size());
  for (size_t i = 0; i < values->size(); ++i) {
    const int64_t value = (*values)[i];
    if (value < 0 || value > kHighestTokenType) {
      return InvalidArgument("{}: tokenizer.ggml.token_type: entry {} is {}; 0 to {} are known", file.path(), i, value,
                             kHighestTokenType);
    }
    types->push_back(static_cast<TokenType>(value));
  }
  return absl::OkStatus();
}

// An id that does not fit counts as not given, as an id outside the vocabulary does.
absl::Status ReadId(const GgufFile& file, std::string_view key, int32_t* id) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, file.GetInt(key));
  if (value.has_value() && *value >= 0 && *value < limits::kMaxVocab) *id = static_cast<int32_t>(*value);
  return absl::OkStatus();
}

absl::Status ReadIds(const GgufFile& file, TokenizerSpec* spec) {
  const std::pair<const char*, int32_t*> fields[] = {
      {"tokenizer.ggml.bos_token_id", &spec->bos_id},         {"tokenizer.ggml.eos_token_id", &spec->eos_id},
      {"tokenizer.ggml.eot_token_id", &spec->eot_id},         {"tokenizer.ggml.eom_token_id", &spec->eom_id},
      {"tokenizer.ggml.unknown_token_id", &spec->unk_id},     {"tokenizer.ggml.padding_token_id", &spec->pad_id},
      {"tokenizer.ggml.fim_pad_token_id", &spec->fim_pad_id}, {"tokenizer.ggml.fim_rep_token_id", &spec->fim_rep_id},
      {"tokenizer.ggml.fim_sep_token_id", &spec->fim_sep_id},
  };
  for (const auto& [key, id] : fields) RETURN_IF_ERROR(ReadId(file, key, id));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const GgufFile& file) {
  TokenizerSpec spec;
  ASSIGN_OR_RETURN(auto model, file.GetString("tokenizer.ggml.model"));
  if (!model.has_value()) return InvalidArgument("{}: it has no tokenizer (no tokenizer.ggml.model)", file.path());
  spec.model = *std::move(model);
  ASSIGN_OR_RETURN(auto pre, file.GetString("tokenizer.ggml.pre"));
  spec.pre = std::move(pre).value_or("");
  ASSIGN_OR_RETURN(auto tokens, file.GetStrings("tokenizer.ggml.tokens"));
  if (!tokens.has_value()) return InvalidArgument("{}: tokenizer.ggml.tokens is missing", file.path());
  spec.tokens = *std::move(tokens);
  RETURN_IF_ERROR(ReadTypes(file, &spec.types));
  ASSIGN_OR_RETURN(auto scores, file.GetFloats("tokenizer.ggml.scores"));
  if (scores.has_value()) spec.scores.assign(scores->begin(), scores->end());
  ASSIGN_OR_RETURN(auto merges, file.GetStrings("tokenizer.ggml.merges"));
  spec.merges = std::move(merges).value_or(std::vector<std::string>());
  if (spec.model == "gpt2" && spec.merges.empty()) {
    return InvalidArgument("{}: tokenizer.ggml.merges is missing or empty", file.path());
  }
  RETURN_IF_ERROR(ReadIds(file, &spec));
  ASSIGN_OR_RETURN(spec.add_bos, file.GetBool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(spec.add_eos, file.GetBool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(spec.add_space_prefix, file.GetBool("tokenizer.ggml.add_space_prefix"));
  return spec;
}

}  // namespace layover
