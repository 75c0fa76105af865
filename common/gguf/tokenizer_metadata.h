// Checks of the tokenizer's metadata that need no tokenizer: so that a damaged file is refused before anything runs.
#ifndef LAYOVER_COMMON_GGUF_TOKENIZER_METADATA_H_
#define LAYOVER_COMMON_GGUF_TOKENIZER_METADATA_H_

#include "absl/status/status.h"
#include "common/gguf/reader.h"

namespace layover {

// `n_vocab` is the number of embedding rows; there may be fewer tokens (padded rows), never more. Token strings are
// unique, scores and types cover all tokens, a BPE has merges, and bos, eos, eot, eom and unknown are ids of tokens.
// (Other special ids are not used here and may be out of range, as they are in some published files.) A file without a
// tokenizer passes. DataLoss naming the key.
absl::Status CheckTokenizerMetadata(const GgufFile& file, int n_vocab);

}  // namespace layover

#endif  // LAYOVER_COMMON_GGUF_TOKENIZER_METADATA_H_
