#include "common/gguf/tokenizer_metadata.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

absl::Status CheckCovers(const GgufFile& file, std::string_view key, uint64_t n_tokens) {
  ASSIGN_OR_RETURN(const std::optional<uint64_t> length, file.GetArrayLength(key));
  if (!length.has_value() || *length >= n_tokens) return absl::OkStatus();
  return DataLoss("{}: {} has {} elements for {} tokens", file.path(), key, *length, n_tokens);
}

absl::Status CheckUnique(const GgufFile& file, const std::vector<std::string>& tokens) {
  absl::flat_hash_set<absl::string_view> seen;
  seen.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!seen.insert(ToAbsl(tokens[id])).second) {
      return DataLoss("{}: {}: token {} has the same text as an earlier one", file.path(), kTokens, id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTokenizerMetadata(const GgufFile& file, int n_vocab) {
  ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> tokens, file.GetStrings(kTokens));
  if (!tokens.has_value()) return absl::OkStatus();
  const size_t n_tokens = tokens->size();
  if (n_tokens == 0 || n_tokens > static_cast<size_t>(n_vocab)) {
    return DataLoss("{}: {} has {} tokens, token_embd.weight has {} rows", file.path(), kTokens, n_tokens, n_vocab);
  }
  RETURN_IF_ERROR(CheckUnique(file, *tokens));
  RETURN_IF_ERROR(CheckCovers(file, "tokenizer.ggml.token_type", n_tokens));
  RETURN_IF_ERROR(CheckCovers(file, "tokenizer.ggml.scores", n_tokens));
  ASSIGN_OR_RETURN(const std::optional<std::string> model, file.GetString("tokenizer.ggml.model"));
  if (!model.has_value()) return DataLoss("{}: tokenizer.ggml.model is missing", file.path());
  ASSIGN_OR_RETURN(const std::optional<uint64_t> merges, file.GetArrayLength("tokenizer.ggml.merges"));
  if (*model == "gpt2" && merges.value_or(0) == 0) {
    return DataLoss("{}: tokenizer.ggml.merges is missing or empty", file.path());
  }
  for (const std::string_view name : {"bos", "eos", "eot", "eom", "unknown"}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, file.GetInt(key));
    if (id.has_value() && (*id < 0 || *id >= static_cast<int64_t>(n_tokens))) {
      return DataLoss("{}: {} is {}, there are {} tokens", file.path(), key, *id, n_tokens);
    }
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> chat_template, file.GetString("tokenizer.chat_template"));
  if (chat_template.has_value() && chat_template->size() > limits::kMaxChatTemplateBytes) {
    return DataLoss("{}: tokenizer.chat_template has {} bytes, at most {} are allowed", file.path(),
                    chat_template->size(), limits::kMaxChatTemplateBytes);
  }
  return absl::OkStatus();
}

}  // namespace layover
