// What one token asks of a model's weights, from headers alone: what speeds are divided by.
#ifndef LAYOVER_COMMON_PLAN_TOKEN_WORK_H_
#define LAYOVER_COMMON_PLAN_TOKEN_WORK_H_

#include <cstdint>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"

namespace layover {

struct TokenWork {
  // Bytes, as in the file, that a decoded token reads: all layers and the head, of experts those that are used; of an
  // embedding that is not the head too, nothing (one row). K/V is not in it.
  uint64_t weight_bytes = 0;
  // Multiplications and additions of a prompt's token in the layers' matrices; its logits are not wanted.
  uint64_t layer_operations = 0;
};

TokenWork WorkOfToken(const GgufFile& file, const ModelShape& shape);

}  // namespace layover

#endif  // LAYOVER_COMMON_PLAN_TOKEN_WORK_H_
