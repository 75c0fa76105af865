// The plan's memory of weights is what the CPU back end takes for them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/gguf/weight_types.h"
#include "common/plan/stage_plan.h"
#include "common/topology.h"
#include "kernels/cpu/packed_weight.h"
#include "tests/gguf/gguf_builder.h"

namespace layover {
namespace {

struct Bytes {
  double planned = 0;  // weights and scratch
  double packed = 0;   // of the matrices
};

// A shape that all types of blocks of 256 share.
Bytes BytesOf(WeightType type) {
  const auto file = *GgufFile::FromBytes(
      testing::BuildTinyModel({.architecture = "qwen3moe", .weight_type = type}), "tiny.gguf");
  const ModelShape shape = *ReadModelShape(*file);
  Topology topology;
  topology.context = 64;
  topology.sessions = 1;
  topology.kv_type = "f16";
  topology.stages.resize(1);
  topology.stages[0].device = "cpu";
  const Plan plan = *MakePlan(topology, *file, shape);
  Bytes bytes;
  bytes.planned = static_cast<double>(plan.stages[0].weight_bytes + plan.stages[0].scratch_bytes);
  for (const GgufTensor& tensor : file->tensors()) {
    if (tensor.type != static_cast<uint32_t>(type)) continue;
    bytes.packed += static_cast<double>(PackedCpuWeightBytes(type, static_cast<int>(tensor.dims[2]),
                                                             static_cast<int>(tensor.dims[1]),
                                                             static_cast<int>(tensor.dims[0])));
  }
  return bytes;
}

TEST(PlanTest, WeightsOfEveryTypeTakeWhatTheyTakePacked) {
  const Bytes base = BytesOf(WeightType::kQ2_K);  // packed in its own size
  for (const WeightTypeTraits& traits : AllWeightTypes()) {
    if (!traits.supported || traits.block_elements != 256) continue;
    const Bytes bytes = BytesOf(static_cast<WeightType>(traits.id));
    // Tiles end at cache lines, which matters where they are as narrow as here.
    EXPECT_NEAR(bytes.planned - base.planned, bytes.packed - base.packed, 0.02 * bytes.packed) << traits.name;
  }
}

}  // namespace
}  // namespace layover
