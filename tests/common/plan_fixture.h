// Models in memory for the tests of plans, and sums over their tensors and stages.
#ifndef LAYOVER_TESTS_COMMON_PLAN_FIXTURE_H_
#define LAYOVER_TESTS_COMMON_PLAN_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/plan/stage_plan.h"
#include "tests/gguf/gguf_builder.h"

namespace layover {

struct Model {
  std::unique_ptr<GgufFile> file;
  ModelShape shape;
};

inline Model LoadModel(const std::string& bytes) {
  auto file = GgufFile::FromBytes(bytes, "m.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  auto shape = ReadModelShape(**file);
  EXPECT_TRUE(shape.ok()) << shape.status();
  return {*std::move(file), *std::move(shape)};
}

inline Model LoadTiny(const testing::TinyLlamaOptions& options) {
  return LoadModel(testing::BuildTinyLlama(options));
}

inline uint64_t BytesOf(const GgufFile& file, const std::function<bool(const std::string&)>& wanted) {
  uint64_t bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) bytes += wanted(tensor.name) ? tensor.bytes : 0;
  return bytes;
}

inline uint64_t LargestOf(const Plan& plan) {
  uint64_t largest = 0;
  for (const StagePlan& stage : plan.stages) largest = std::max(largest, stage.total_bytes);
  return largest;
}

}  // namespace layover

#endif  // LAYOVER_TESTS_COMMON_PLAN_FIXTURE_H_
