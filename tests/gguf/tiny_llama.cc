// The tiny llama of gguf_builder.h: tokenizer, seeded weights in any simple type, and the metadata of a real file.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "common/check.h"
#include "common/gguf/weight_types.h"
#include "tests/gguf/gguf_builder.h"

namespace layover::testing {
namespace {

constexpr int kControlTokens = 3;
constexpr int kByteTokens = 256;
constexpr float kEmbeddingDeviation = 0.1f;  // small beside what the layers add, so that the output is not the input
constexpr std::string_view kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

uint16_t HalfOf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  LAYOVER_CHECK(magnitude < 65504.0f);
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  // Round the 13 dropped bits to nearest even; a carry moves into the exponent, as it should.
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - ((127 - 15) << 10));
}

float FloatOfHalf(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

uint16_t Bfloat16Of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void AppendHalf(float value, std::string* out) {
  const uint16_t half = HalfOf(value);
  out->append(reinterpret_cast<const char*>(&half), 2);
}

int Clamped(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::nearbyint(value)), low, high);
}

void EncodeQ8_0(const float* x, std::string* out) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[i]));
  AppendHalf(most / 127, out);
  const float d = FloatOfHalf(HalfOf(most / 127));
  for (int i = 0; i < 32; ++i) out->push_back(static_cast<char>(d == 0 ? 0 : Clamped(x[i] / d, -127, 127)));
}

// Low nibbles hold values 0-15 of the block, high nibbles 16-31.
void EncodeNibbles(const float* x, float d, float minimum, std::string* out) {
  for (int i = 0; i < 16; ++i) {
    const int low = d == 0 ? 0 : Clamped((x[i] - minimum) / d, 0, 15);
    const int high = d == 0 ? 0 : Clamped((x[i + 16] - minimum) / d, 0, 15);
    out->push_back(static_cast<char>(low | high << 4));
  }
}

void EncodeQ4_0(const float* x, std::string* out) {
  float furthest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(furthest)) furthest = x[i];
  }
  AppendHalf(furthest / -8, out);
  const float d = FloatOfHalf(HalfOf(furthest / -8));
  EncodeNibbles(x, d, -8 * d, out);
}

void EncodeQ4_1(const float* x, std::string* out) {
  const auto [least, most] = std::minmax_element(x, x + 32);
  AppendHalf((*most - *least) / 15, out);
  AppendHalf(*least, out);
  EncodeNibbles(x, FloatOfHalf(HalfOf((*most - *least) / 15)), FloatOfHalf(HalfOf(*least)), out);
}

// SplitMix64, so that weights are the same with every standard library.
class Random {
 public:
  Random(uint64_t seed, std::string_view name) : state_(seed * 0x9e3779b97f4a7c15) {
    for (const char c : name) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  // Uniform in [-1, 1).
  float Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<float>(static_cast<int64_t>(z) >> 40) * 0x1p-23f;
  }

 private:
  uint64_t state_;
};

std::string Utf8Of(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for 256, 257, ...
std::vector<std::string> ByteAlphabet() {
  std::vector<std::string> alphabet;
  int next = 256;
  for (int b = 0; b < kByteTokens; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174);
    alphabet.push_back(Utf8Of(printable ? b : next++));
  }
  return alphabet;
}

// Merges in rank order: some that English text uses, then pairs and triples of letters until there are enough.
std::vector<std::pair<std::string, std::string>> MakeMerges(size_t count) {
  std::vector<std::pair<std::string, std::string>> merges;
  std::set<std::string> made;
  const auto add = [&](const std::string& left, const std::string& right) {
    if (merges.size() < count && made.insert(left + right).second) merges.emplace_back(left, right);
  };
  const std::string space = "\u0120";
  for (const auto& [left, right] : {std::pair<std::string, std::string>{space, "t"},
                                    {space, "a"},
                                    {"h", "e"},
                                    {"i", "n"},
                                    {"r", "e"},
                                    {"o", "n"},
                                    {space + "t", "he"},
                                    {"e", "r"},
                                    {space, "s"},
                                    {"a", "t"},
                                    {space, "w"},
                                    {space, "o"},
                                    {"e", "n"},
                                    {space, "c"},
                                    {"i", "t"},
                                    {"i", "s"},
                                    {"a", "n"},
                                    {"o", "r"},
                                    {"e", "s"},
                                    {space, "b"},
                                    {"e", "d"},
                                    {space, "f"},
                                    {"in", "g"},
                                    {space, "p"},
                                    {"o", "u"},
                                    {space + "a", "n"},
                                    {"a", "l"},
                                    {"a", "r"}}) {
    add(left, right);
  }
  for (char a = 'a'; a <= 'z'; ++a) {
    for (char b = 'a'; b <= 'z'; ++b) add({a}, {b});
  }
  for (char a = 'a'; a <= 'z'; ++a) {
    for (char b = 'a'; b <= 'z'; ++b) {
      for (char c = 'a'; c <= 'z'; ++c) add({a, b}, {c});
    }
  }
  LAYOVER_CHECK(merges.size() == count);
  return merges;
}

}  // namespace

void AddTinyTokenizer(int vocab, const std::string& pre_tokenizer, const std::string& chat_template,
                      GgufBuilder* builder) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (const std::string& letter : ByteAlphabet()) tokens.push_back(letter);
  LAYOVER_CHECK(vocab >= kControlTokens + kByteTokens);
  std::vector<std::string> merge_lines;
  for (const auto& [left, right] : MakeMerges(static_cast<size_t>(vocab) - tokens.size())) {
    tokens.push_back(left + right);
    merge_lines.push_back(left + " " + right);
  }
  if (merge_lines.empty())
    merge_lines.push_back("a b");  // a merge to no token is never taken, an empty list is refused
  std::vector<int32_t> types(tokens.size(), 1);
  std::fill_n(types.begin(), kControlTokens, 3);
  builder->String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", pre_tokenizer);
  builder->Strings("tokenizer.ggml.tokens", tokens).I32s("tokenizer.ggml.token_type", types);
  builder->Strings("tokenizer.ggml.merges", merge_lines);
  builder->U32("tokenizer.ggml.bos_token_id", 1).U32("tokenizer.ggml.eos_token_id", 2);
  builder->U32("tokenizer.ggml.unknown_token_id", 0).U32("tokenizer.ggml.padding_token_id", 2);
  builder->Bool("tokenizer.ggml.add_bos_token", false).Bool("tokenizer.ggml.add_space_prefix", false);
  builder->String("tokenizer.chat_template", chat_template.empty() ? kChatMl : chat_template);
}

std::vector<float> SeededValues(uint64_t seed, std::string_view name, size_t count, float middle, float width) {
  Random random(seed, name);
  std::vector<float> values(count);
  for (float& value : values) value = middle + width * random.Next();
  return values;
}

namespace {

class WeightWriter {
 public:
  WeightWriter(const TinyLlamaOptions& options, GgufBuilder* builder) : options_(options), builder_(builder) {}

  // Values of the given standard deviation times the gain.
  void Matrix(const std::string& name, int in, int out, float deviation) {
    const float width = options_.weight_gain * deviation * std::sqrt(3.0f);
    const std::vector<float> values = Values(name, static_cast<size_t>(in) * out, 0, width);
    Add(name, {static_cast<uint64_t>(in), static_cast<uint64_t>(out)}, values, options_.weight_type);
  }
  void Matrix(const std::string& name, int in, int out) {
    Matrix(name, in, out, 1.0f / std::sqrt(static_cast<float>(in)));
  }
  void Norm(const std::string& name, int dim) {
    Add(name, {static_cast<uint64_t>(dim)}, Values(name, dim, 1.0f, 0.2f), WeightType::kF32);
  }
  void RopeFactors(int n_pairs) {
    std::vector<float> factors(n_pairs, 1.0f);
    for (int p = 0; p < n_pairs; ++p) factors[p] += 7.0f * static_cast<float>(p) / static_cast<float>(n_pairs);
    Add("rope_freqs.weight", {static_cast<uint64_t>(n_pairs)}, factors, WeightType::kF32);
  }

 private:
  std::vector<float> Values(const std::string& name, size_t count, float middle, float width) const {
    return SeededValues(options_.seed, name, count, middle, width);
  }
  void Add(const std::string& name, std::vector<uint64_t> dims, const std::vector<float>& values, WeightType type) {
    builder_->Tensor(name, std::move(dims), static_cast<uint32_t>(type), EncodeWeights(values, type));
  }

  const TinyLlamaOptions& options_;
  GgufBuilder* builder_;
};

void AddWeights(const TinyLlamaOptions& options, GgufBuilder* builder) {
  WeightWriter writer(options, builder);
  const int embd = options.embd;
  const int kv = embd / options.heads * options.kv_heads;
  writer.Matrix("token_embd.weight", embd, options.vocab, kEmbeddingDeviation);
  if (options.rope_freqs) writer.RopeFactors(embd / options.heads / 2);
  for (int layer = 0; layer < options.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    writer.Norm(prefix + "attn_norm.weight", embd);
    writer.Matrix(prefix + "attn_q.weight", embd, embd);
    writer.Matrix(prefix + "attn_k.weight", embd, kv);
    writer.Matrix(prefix + "attn_v.weight", embd, kv);
    writer.Matrix(prefix + "attn_output.weight", embd, embd);
    writer.Norm(prefix + "ffn_norm.weight", embd);
    writer.Matrix(prefix + "ffn_gate.weight", embd, options.ff);
    writer.Matrix(prefix + "ffn_up.weight", embd, options.ff);
    writer.Matrix(prefix + "ffn_down.weight", options.ff, embd);
  }
  writer.Norm("output_norm.weight", embd);
  if (!options.tied) writer.Matrix("output.weight", embd, options.vocab, kEmbeddingDeviation);
}

}  // namespace

std::string EncodeWeights(const std::vector<float>& values, WeightType type) {
  std::string out;
  out.reserve(WeightBytes(type, 1, values.size()));
  if (type == WeightType::kF32) {
    out.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return out;
  }
  if (type == WeightType::kF16 || type == WeightType::kBF16) {
    for (const float value : values) {
      const uint16_t bits = type == WeightType::kF16 ? HalfOf(value) : Bfloat16Of(value);
      out.append(reinterpret_cast<const char*>(&bits), 2);
    }
    return out;
  }
  LAYOVER_CHECK(type == WeightType::kQ8_0 || type == WeightType::kQ4_0 || type == WeightType::kQ4_1);
  const auto encode = type == WeightType::kQ8_0 ? EncodeQ8_0 : type == WeightType::kQ4_0 ? EncodeQ4_0 : EncodeQ4_1;
  for (size_t i = 0; i < values.size(); i += 32) encode(values.data() + i, &out);
  return out;
}

std::string BuildTinyLlama(const TinyLlamaOptions& options) {
  LAYOVER_CHECK(options.embd % options.heads == 0 && options.heads % options.kv_heads == 0);
  GgufBuilder builder;
  builder.String("general.architecture", "llama").String("general.type", "model").String("general.name", options.name);
  builder.U32("llama.block_count", options.layers).U32("llama.context_length", options.context);
  builder.U32("llama.embedding_length", options.embd).U32("llama.feed_forward_length", options.ff);
  builder.U32("llama.attention.head_count", options.heads).U32("llama.attention.head_count_kv", options.kv_heads);
  builder.U32("llama.rope.dimension_count", options.embd / options.heads);
  builder.F32("llama.rope.freq_base", options.rope_base).F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  builder.U32("llama.vocab_size", options.vocab).U32("general.quantization_version", 2);
  AddTinyTokenizer(options.vocab, options.pre_tokenizer, options.chat_template, &builder);
  AddWeights(options, &builder);
  return builder.Build();
}

}  // namespace layover::testing
