#include "stage_worker/models/model.h"

#include "common/status.h"
#include "stage_worker/models/transformer.h"

namespace layover {
namespace {

LayerMaker LayerMakerOf(Architecture kind) {
  switch (kind) {
    case Architecture::kLlama:
      return MakeLlamaLayer;
    case Architecture::kQwen2:
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
      return MakeQwenLayer;
    case Architecture::kGemma3:
      return MakeGemma3Layer;
    case Architecture::kQwen3Next:
    case Architecture::kQwen35:
    case Architecture::kQwen35Moe:
      return MakeQwenHybridLayer;
    case Architecture::kGptOss:
      return MakeGptOssLayer;
  }
  LAYOVER_CHECK(false);
}

// What the device cannot do, and what no forward pass here does.
absl::Status CheckSupported(const Device& device, const GgufFile& file, const ModelShape& shape) {
  const auto refuse = [&](std::string_view what) {
    return Unimplemented("{}: {} does not compute {}", file.path(), device.Name(), what);
  };
  // Gemma's sums are made by the mixture's operation.
  const bool mixes = shape.experts.count > 0 || shape.kind == Architecture::kGemma3;
  if (mixes && !device.Supports(OpFamily::kMixtureOfExperts)) return refuse("mixtures of experts");
  if (shape.recurrent.conv_taps > 0 && !device.Supports(OpFamily::kGatedDeltaNet)) return refuse("gated delta nets");
  if (shape.final_softcap != 0) {
    return Unimplemented("{}: {}.final_logit_softcapping is not supported", file.path(), shape.architecture);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(Device& device, const GgufFile& file, const ModelShape& shape,
                                                 const StageMemory& memory, const ModelPlacement& placement) {
  RETURN_IF_ERROR(CheckSupported(device, file, shape));
  return MakeTransformer({device, file, shape, memory, placement}, LayerMakerOf(shape.kind));
}

}  // namespace layover
