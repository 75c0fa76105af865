// Writes GGUF files for tests: any header, good or damaged, and whole tiny models that run.
#ifndef LAYOVER_TESTS_GGUF_GGUF_BUILDER_H_
#define LAYOVER_TESTS_GGUF_GGUF_BUILDER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"

namespace layover::testing {

// Values are appended in the order of the calls. Build() gives the file's bytes; every field that a test may want to
// damage can be overridden.
class GgufBuilder {
 public:
  GgufBuilder& U8(std::string_view key, uint8_t value);
  GgufBuilder& U16(std::string_view key, uint16_t value);
  GgufBuilder& U32(std::string_view key, uint32_t value);
  GgufBuilder& I32(std::string_view key, int32_t value);
  GgufBuilder& U64(std::string_view key, uint64_t value);
  GgufBuilder& F32(std::string_view key, float value);
  GgufBuilder& F64(std::string_view key, double value);
  GgufBuilder& Bool(std::string_view key, bool value);
  GgufBuilder& String(std::string_view key, std::string_view value);
  GgufBuilder& Strings(std::string_view key, const std::vector<std::string>& values);
  GgufBuilder& I32s(std::string_view key, const std::vector<int32_t>& values);
  GgufBuilder& F32s(std::string_view key, const std::vector<float>& values);
  // A value of any type id with its bytes as they are.
  GgufBuilder& Raw(std::string_view key, uint32_t type, std::string_view payload);

  // `data` has the tensor's size, or is empty: then the size is right and the bytes are zero.
  GgufBuilder& Tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, std::string data = "");

  GgufBuilder& Alignment(uint32_t alignment);  // also writes general.alignment
  GgufBuilder& OverrideMagic(std::string_view magic);
  GgufBuilder& OverrideVersion(uint32_t version);
  GgufBuilder& OverrideTensorCount(uint64_t count);
  GgufBuilder& OverrideKeyCount(uint64_t count);
  GgufBuilder& OverrideOffset(std::string_view tensor, uint64_t offset);
  GgufBuilder& OverrideDimCount(std::string_view tensor, uint32_t n_dims);

  std::string Build() const;
  // Header and tensor infos only, and how long the whole file would be: for sparse files of true length.
  std::string BuildHeader(uint64_t* file_bytes) const;

 private:
  static constexpr int64_t kNoOverride = INT64_MIN;

  struct PendingTensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::string data;
    uint64_t bytes = 0;
    int64_t offset_override = kNoOverride;
    int64_t n_dims_override = kNoOverride;
  };
  PendingTensor& Find(std::string_view tensor);
  void AppendKey(std::string_view key, uint32_t type);

  std::string keys_;
  uint64_t key_count_ = 0;
  std::vector<PendingTensor> tensors_;
  uint32_t alignment_ = 32;
  std::string magic_ = "GGUF";
  uint32_t version_ = 3;
  int64_t tensor_count_override_ = kNoOverride;
  int64_t key_count_override_ = kNoOverride;
};

// A llama of any small size with seeded weights, a byte-level BPE tokenizer (3 control tokens, 256 bytes, merges) and a
// ChatML template. Equal options give equal bytes.
struct TinyLlamaOptions {
  uint64_t seed = 1;
  int layers = 2;
  int embd = 64;
  int heads = 4;
  int kv_heads = 2;
  int ff = 128;
  int vocab = 320;                            // at least 259
  int context = 2048;                         // as written in the file
  WeightType weight_type = WeightType::kF32;  // of matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1
  bool tied = true;
  bool rope_freqs = false;  // with a llama3-like rope_freqs.weight
  float rope_base = 10000.0f;
  float weight_gain = 1.0f;  // scales all matrices: larger ones give more decided logits
  std::string name = "tiny";
  std::string pre_tokenizer = "smollm";
  std::string chat_template;  // empty: ChatML
};
std::string BuildTinyLlama(const TinyLlamaOptions& options);

// A model of any architecture, small and as varied as it may be: fewer key heads than value heads, layers of every kind
// in odd numbers, a window that is no multiple of a page, a block that is skipped. Seeded weights, the same tokenizer.
// Equal options give equal bytes.
struct TinyModelOptions {
  std::string architecture;  // as in the file, or "llama-moe"; "llama" has frequency factors
  uint64_t seed = 1;
  WeightType weight_type = WeightType::kF32;  // of matrices, except routers: any type there is
  float weight_gain = 1.0f;                   // scales all matrices
  // What a test of the tests gets wrong, "" nothing: "rope" the base of the rotation by 1 % ("local-rope": of the
  // window layers), "heads" two query heads exchanged ("value-heads": of the recurrent layers), "gate" one gate without
  // effect
  // ("attention-gate", "shared-gate": another), "taps" the convolution backwards, "window" one position more.
  std::string fault;
};
std::string BuildTinyModel(const TinyModelOptions& options);
// The architectures that it takes.
std::vector<std::string> TinyArchitectures();
// The faults that an architecture can have.
std::vector<std::string> TinyFaults(std::string_view architecture);

// Uniform in [middle - width, middle + width), by seed and name.
std::vector<float> SeededValues(uint64_t seed, std::string_view name, size_t count, float middle, float width);
// Byte-level BPE of `vocab` tokens, and a chat template.
void AddTinyTokenizer(int vocab, const std::string& pre_tokenizer, const std::string& chat_template,
                      GgufBuilder* builder);

// Seeded values in the block format of `type`; rows are multiples of its block.
std::string EncodeWeights(const std::vector<float>& values, WeightType type);

// Writes `bytes` to NAME in a temporary folder of this process, which is removed at its end, and returns the path.
std::string WriteTestFile(const std::string& name, std::string_view bytes);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_GGUF_GGUF_BUILDER_H_
