#include "common/gguf/model_identity.h"

#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/gguf/weight_types.h"
#include "common/limits.h"
#include "common/status.h"

namespace layover {
namespace {

// Digests a sequence of fields so that no two different sequences give the same bytes: strings carry their length,
// numbers are 8 bytes little-endian, doubles their bit pattern.
class FieldDigest {
 public:
  FieldDigest& Text(std::string_view text) {
    Int(static_cast<int64_t>(text.size()));
    stream_.Update(text.data(), text.size());
    return *this;
  }
  FieldDigest& Int(int64_t value) {
    stream_.Update(&value, sizeof(value));
    return *this;
  }
  FieldDigest& Double(double value) { return Int(std::bit_cast<int64_t>(value)); }
  FieldDigest& Bytes(const void* data, size_t bytes) {
    stream_.Update(data, bytes);
    return *this;
  }
  FieldDigest& Add(const Digest& digest) {
    return Int(std::bit_cast<int64_t>(digest.high)).Int(std::bit_cast<int64_t>(digest.low));
  }
  Digest Value() const { return stream_.Value(); }

 private:
  DigestStream stream_;
};

Digest DigestOfTensors(const GgufFile& file, std::vector<TensorSpec> specs) {
  FieldDigest digest;
  for (const BoundTensor& bound : BindTensors(file, std::move(specs))) {
    digest.Text(bound.spec.role).Int(bound.tensor->type);
    for (const int64_t dim : bound.tensor->dims) digest.Int(dim);
    digest.Bytes(bound.tensor->data, bound.tensor->bytes);
  }
  return digest.Value();
}

// Each of these adds a key's canonical value, or a mark that it is absent; the width of an integer does not matter.
absl::Status AddText(const GgufFile& file, std::string_view key, FieldDigest* digest) {
  ASSIGN_OR_RETURN(const std::optional<std::string> value, file.GetString(key));
  digest->Text(key).Int(value.has_value());
  if (value.has_value()) digest->Text(*value);
  return absl::OkStatus();
}

absl::Status AddInt(const GgufFile& file, std::string_view key, FieldDigest* digest) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, file.GetInt(key));
  digest->Text(key).Int(value.has_value());
  if (value.has_value()) digest->Int(*value);
  return absl::OkStatus();
}

absl::Status AddBool(const GgufFile& file, std::string_view key, FieldDigest* digest) {
  ASSIGN_OR_RETURN(const std::optional<bool> value, file.GetBool(key));
  digest->Text(key).Int(value.has_value() ? 1 + *value : 0);
  return absl::OkStatus();
}

absl::Status AddTexts(const GgufFile& file, std::string_view key, FieldDigest* digest) {
  ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> values, file.GetStrings(key));
  digest->Text(key).Int(values.has_value() ? static_cast<int64_t>(values->size()) : -1);
  if (!values.has_value()) return absl::OkStatus();
  for (const std::string& value : *values) digest->Text(value);
  return absl::OkStatus();
}

absl::Status AddInts(const GgufFile& file, std::string_view key, FieldDigest* digest) {
  ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> values, file.GetInts(key));
  digest->Text(key).Int(values.has_value() ? static_cast<int64_t>(values->size()) : -1);
  if (!values.has_value()) return absl::OkStatus();
  for (const int64_t value : *values) digest->Int(value);
  return absl::OkStatus();
}

absl::Status AddDoubles(const GgufFile& file, std::string_view key, FieldDigest* digest) {
  ASSIGN_OR_RETURN(const std::optional<std::vector<double>> values, file.GetFloats(key));
  digest->Text(key).Int(values.has_value() ? static_cast<int64_t>(values->size()) : -1);
  if (!values.has_value()) return absl::OkStatus();
  for (const double value : *values) digest->Double(value);
  return absl::OkStatus();
}

}  // namespace

Digest ModelIdentity::Combined() const {
  FieldDigest digest;
  digest.Text(architecture).Add(arch).Add(rope).Add(tokenizer).Text(kv_type).Int(format).Int(page_tokens);
  digest.Int(static_cast<int64_t>(weights.size()));
  for (const Digest& weight : weights) {
    LAYOVER_CHECK(!weight.IsZero());
    digest.Add(weight);
  }
  return digest.Value();
}

std::vector<std::string> IdentityDifferences(const ModelIdentity& a, const ModelIdentity& b) {
  std::vector<std::string> fields;
  if (a.weights != b.weights) fields.push_back("weights");
  if (a.rope != b.rope) fields.push_back("rope");
  if (a.tokenizer != b.tokenizer) fields.push_back("tokenizer");
  if (a.kv_type != b.kv_type) fields.push_back("kv_type");
  if (a.architecture != b.architecture || a.arch != b.arch) fields.push_back("arch");
  if (a.format != b.format || a.page_tokens != b.page_tokens) fields.push_back("format");
  return fields;
}

absl::StatusOr<ModelIdentity> ReadIdentityButWeights(const GgufFile& file, const ModelShape& shape,
                                                     const std::string& kv_type) {
  ModelIdentity identity;
  identity.architecture = shape.architecture;
  identity.arch = ArchDigest(shape);
  identity.rope = RopeDigest(file, shape);
  ASSIGN_OR_RETURN(identity.tokenizer, TokenizerDigest(file));
  ASSIGN_OR_RETURN(identity.chat_template, ChatTemplateDigest(file));
  identity.kv_type = kv_type;
  identity.weights.resize(shape.n_layers + 2);
  identity.page_tokens = limits::kPageTokens;
  return identity;
}

absl::StatusOr<ModelIdentity> ReadModelIdentity(const GgufFile& file, const ModelShape& shape,
                                                const std::string& kv_type) {
  ASSIGN_OR_RETURN(ModelIdentity identity, ReadIdentityButWeights(file, shape, kv_type));
  for (int layer = 0; layer < shape.n_layers; ++layer) identity.weights[layer] = LayerWeightDigest(file, shape, layer);
  identity.weights[shape.n_layers] = EmbeddingDigest(file, shape);
  identity.weights[shape.n_layers + 1] = HeadDigest(file, shape);
  return identity;
}

Digest LayerWeightDigest(const GgufFile& file, const ModelShape& shape, int layer) {
  return DigestOfTensors(file, LayerTensors(shape, layer));
}

Digest EmbeddingDigest(const GgufFile& file, const ModelShape& shape) {
  return DigestOfTensors(file, EmbeddingTensors(shape));
}

Digest HeadDigest(const GgufFile& file, const ModelShape& shape) {
  return DigestOfTensors(file, HeadTensors(shape));
}

Digest ArchDigest(const ModelShape& shape) {
  FieldDigest digest;
  digest.Text(shape.architecture).Int(shape.n_layers).Int(shape.n_embd).Int(shape.head_dim_k).Int(shape.head_dim_v);
  digest.Int(shape.n_vocab).Int(shape.window).Double(shape.rms_eps).Double(shape.attention_scale);
  digest.Double(shape.embedding_scale).Double(shape.final_softcap);
  for (const LayerShape& layer : shape.layers) {
    digest.Int(static_cast<int64_t>(layer.kind)).Int(layer.n_head).Int(layer.n_head_kv).Int(layer.n_ff);
  }
  const ExpertShape& experts = shape.experts;
  digest.Int(experts.count).Int(experts.used).Int(experts.n_ff).Int(experts.n_ff_shared).Double(experts.weights_scale);
  const RecurrentShape& recurrent = shape.recurrent;
  digest.Int(recurrent.conv_taps).Int(recurrent.key_heads).Int(recurrent.value_heads).Int(recurrent.dim);
  return digest.Value();
}

// Settings rather than computed frequencies: pow() may differ in the last bit between C libraries, and that is the
// numerics fingerprint's matter.
Digest RopeDigest(const GgufFile& file, const ModelShape& shape) {
  const RopeShape& rope = shape.rope;
  FieldDigest digest;
  digest.Int(rope.n_rot).Double(rope.freq_base).Double(rope.freq_base_window);
  digest.Int(static_cast<int64_t>(rope.scaling)).Double(rope.factor).Int(rope.original_context);
  digest.Double(rope.attn_factor).Double(rope.yarn_ext_factor).Double(rope.yarn_beta_fast).Double(rope.yarn_beta_slow);
  return digest.Add(DigestOfTensors(file, RopeTensors(shape))).Value();
}

absl::StatusOr<Digest> TokenizerDigest(const GgufFile& file) {
  FieldDigest digest;
  for (const std::string_view key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    RETURN_IF_ERROR(AddText(file, key, &digest));
  }
  for (const std::string_view key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    RETURN_IF_ERROR(AddTexts(file, key, &digest));
  }
  RETURN_IF_ERROR(AddDoubles(file, "tokenizer.ggml.scores", &digest));
  for (const std::string_view key : {"tokenizer.ggml.token_type", "tokenizer.ggml.precompiled_charsmap"}) {
    RETURN_IF_ERROR(AddInts(file, key, &digest));
  }
  for (const std::string_view name : {"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"}) {
    RETURN_IF_ERROR(AddInt(file, fmt::format("tokenizer.ggml.{}_token_id", name), &digest));
  }
  for (const std::string_view name :
       {"add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"}) {
    RETURN_IF_ERROR(AddBool(file, fmt::format("tokenizer.ggml.{}", name), &digest));
  }
  return digest.Value();
}

absl::StatusOr<Digest> ChatTemplateDigest(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, file.GetString("tokenizer.chat_template"));
  return text.has_value() ? DigestOf(*text) : Digest{};
}

}  // namespace layover
