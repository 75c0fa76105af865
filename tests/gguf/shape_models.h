// One small model of every architecture, headers only (all weights zero), with its tensors written out by hand: what
// the tensor tables of the product are compared with.
#ifndef LAYOVER_TESTS_GGUF_SHAPE_MODELS_H_
#define LAYOVER_TESTS_GGUF_SHAPE_MODELS_H_

#include <string>
#include <utility>
#include <vector>

#include "common/gguf/model_shape.h"
#include "tests/gguf/gguf_builder.h"

namespace layover::testing {

struct SmallModel {
  std::string architecture;
  GgufBuilder keys;
  std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors;  // all of them needed
  std::vector<LayerKind> kinds;
  double attention_scale = 0;

  // The whole file's builder, without one tensor if its name is given.
  GgufBuilder Builder(const std::string& without = "") const;
};

std::vector<SmallModel> SmallModels();
SmallModel SmallModelOf(const std::string& architecture);

}  // namespace layover::testing

#endif  // LAYOVER_TESTS_GGUF_SHAPE_MODELS_H_
