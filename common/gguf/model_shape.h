// What a model is: its hyper-parameters and the tensors they demand, read from a GGUF file and checked against it.
//
// What must stay true:
//  - After ReadModelShape every tensor that the architecture needs is in the file with exactly the expected dimensions,
//    and no tensor of a layer that runs is unknown: a file with a part that we would silently leave out is refused.
//  - It reads headers only, no tensor data, so it also serves for files whose data is absent (sparse).
//  - Adding an architecture is one row in kArchitectures (model_shape.cc) and, if its layers differ, one function in
//    model_tensors.cc.
#ifndef LAYOVER_COMMON_GGUF_MODEL_SHAPE_H_
#define LAYOVER_COMMON_GGUF_MODEL_SHAPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/gguf/reader.h"

namespace layover {

enum class Architecture : uint8_t {
  kLlama,
  kQwen2,
  kQwen3,
  kQwen3Moe,
  kGemma3,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kGptOss,
};

enum class LayerKind : uint8_t { kFullAttention, kSlidingWindow, kRecurrent };

enum class RopeScaling : uint8_t { kNone, kLinear, kYarn };

// Everything that the rotation's frequencies follow from, defaults filled in, so that equal rotations compare equal.
struct RopeShape {
  int n_rot = 0;  // rotated dims of a head, even
  double freq_base = 10000;
  double freq_base_window = 0;  // of sliding-window layers; 0: the same as the others
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;             // > 0; 1 for kNone
  int64_t original_context = 0;  // kYarn only, else 0
  double attn_factor = 1;        // multiplies cos and sin
  double yarn_ext_factor = 0;    // these three: kYarn only, else 0
  double yarn_beta_fast = 0;
  double yarn_beta_slow = 0;
  bool has_freq_factors = false;  // rope_freqs.weight, a divisor per pair
};

struct LayerShape {
  LayerKind kind = LayerKind::kFullAttention;
  int n_head = 0;     // query heads; 0 in a recurrent layer
  int n_head_kv = 0;  // 0 in a recurrent layer
  int n_ff = 0;       // width of the dense feed-forward; 0 if the layer has experts only
};

// Mixture of experts; count 0: dense.
struct ExpertShape {
  int count = 0;
  int used = 0;
  int n_ff = 0;
  int n_ff_shared = 0;  // 0: no shared expert
  double weights_scale = 1;
};

// Gated delta net; conv_taps 0: the model has no recurrent layer.
struct RecurrentShape {
  int conv_taps = 0;    // ssm.conv_kernel
  int key_heads = 0;    // ssm.group_count
  int value_heads = 0;  // ssm.time_step_rank
  int dim = 0;          // ssm.state_size, of key and value heads
  int Channels() const { return (2 * key_heads + value_heads) * dim; }
  int ValueDim() const { return value_heads * dim; }
};

struct ModelShape {
  Architecture kind = Architecture::kLlama;
  std::string architecture;  // as written: "llama"
  std::string name;          // general.name, for display; may be empty
  int n_layers = 0;          // that run: next-token-prediction blocks are not counted
  int n_extra_blocks = 0;    // blocks [n_layers, n_layers + n_extra_blocks) are skipped
  int n_embd = 0;
  int n_head = 0;  // the largest of any layer, as the next two
  int n_head_kv = 0;
  int n_ff = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  int n_vocab = 0;  // rows of token_embd
  int64_t context_train = 0;
  double rms_eps = 0;
  double attention_scale = 0;  // what q k is multiplied by
  double embedding_scale = 1;  // gemma: sqrt(n_embd)
  double final_softcap = 0;    // 0: none
  bool tied_output = false;    // the head is token_embd
  int window = 0;              // positions a sliding-window layer sees, itself included; 0: no such layer
  RopeShape rope;
  ExpertShape experts;
  RecurrentShape recurrent;
  std::vector<LayerShape> layers;  // [n_layers]
};

absl::StatusOr<ModelShape> ReadModelShape(const GgufFile& file);

// --- Tensors

struct TensorSpec {
  std::string role;           // canonical: "attn_q", "attn_q_bias", "token_embd"
  std::string gguf_name;      // "blk.3.attn_q.weight"
  std::vector<int64_t> dims;  // GGUF order, {in, out, ...}
  bool required = true;
  bool f32_only = false;  // norms, biases and the like
};

// Expected tensors in role order: fixed per architecture and layer kind.
std::vector<TensorSpec> LayerTensors(const ModelShape& shape, int layer);
std::vector<TensorSpec> EmbeddingTensors(const ModelShape& shape);
std::vector<TensorSpec> HeadTensors(const ModelShape& shape);  // "output" names token_embd.weight when tied
std::vector<TensorSpec> RopeTensors(const ModelShape& shape);  // rope_freqs, optional

struct BoundTensor {
  TensorSpec spec;
  const GgufTensor* tensor = nullptr;
};
// The expected tensors that the file has, in role order. Of a shape that ReadModelShape made from this file.
std::vector<BoundTensor> BindTensors(const GgufFile& file, std::vector<TensorSpec> specs);

// Presence, dimensions and types of all tensors; part of ReadModelShape.
absl::Status CheckTensors(const GgufFile& file, const ModelShape& shape);

// --- RoPE (the formulas stand in rope_frequencies.cc)

// [n_rot / 2] radians per position, frequency factors and scaling applied; of the layers of one kind. DataLoss if the
// file's factors are not finite and positive.
absl::StatusOr<std::vector<double>> RopeFrequencies(const ModelShape& shape, const GgufFile& file,
                                                    LayerKind kind = LayerKind::kFullAttention);
// What cos and sin are multiplied by.
double RopeMagnitude(const ModelShape& shape, LayerKind kind = LayerKind::kFullAttention);

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_MODEL_SHAPE_H_
