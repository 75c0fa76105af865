// What decides whether saved state belongs to a model: exactly what changes its bytes (invariant 5). Never a path, a
// clock, the context size, or how many stages there are.
//
// Weights are digested layer by layer over (role, type, dimensions, raw bytes), so the same weights in another split of
// files or of stages, or beside other metadata, are equal. Each stage digests what it owns and sends it to the
// coordinator, which fills `weights`.
#ifndef LAYOVER_COMMON_GGUF_MODEL_IDENTITY_H_
#define LAYOVER_COMMON_GGUF_MODEL_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/digest.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"

namespace layover {

inline constexpr int kStateFormat = 1;  // of the saved state's meaning; raised when old state can no longer be read

struct ModelIdentity {
  std::string architecture;  // "llama", for messages
  Digest arch;               // hyper-parameters
  Digest rope;               // rotation settings and rope_freqs
  Digest tokenizer;
  std::string kv_type;          // "f16"
  std::vector<Digest> weights;  // [n_layers + 2]: layers in order, embedding, head; zero until known
  int format = kStateFormat;
  int page_tokens = 0;
  Digest chat_template;  // a change is a warning only: not in Combined, not in IdentityDifferences

  Digest Combined() const;  // of all fields but chat_template; weights must be known
};

// Which of "weights", "rope", "tokenizer", "kv_type", "arch", "format" differ, in that order; empty: the same.
std::vector<std::string> IdentityDifferences(const ModelIdentity& a, const ModelIdentity& b);

// All but the weights, which stay zero: the coordinator's part.
absl::StatusOr<ModelIdentity> ReadIdentityButWeights(const GgufFile& file, const ModelShape& shape,
                                                     const std::string& kv_type);
// Everything; reads the whole file.
absl::StatusOr<ModelIdentity> ReadModelIdentity(const GgufFile& file, const ModelShape& shape,
                                                const std::string& kv_type);

Digest LayerWeightDigest(const GgufFile& file, const ModelShape& shape, int layer);
Digest EmbeddingDigest(const GgufFile& file, const ModelShape& shape);
Digest HeadDigest(const GgufFile& file,
                  const ModelShape& shape);  // output_norm and the head; a tied one is digested too

Digest ArchDigest(const ModelShape& shape);
Digest RopeDigest(const GgufFile& file, const ModelShape& shape);
// All of the metadata that changes which ids a text gets, or where a reply ends.
absl::StatusOr<Digest> TokenizerDigest(const GgufFile& file);
absl::StatusOr<Digest> ChatTemplateDigest(const GgufFile& file);  // of tokenizer.chat_template; zero if absent

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_MODEL_IDENTITY_H_
