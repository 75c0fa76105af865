// Speed of the CUDA back end on a card, beside what bounds it there: memory for decode, cuBLAS for prefill, the copy
// engine for saves. Prints one JSON object; tests/gpu/measure.sh runs it and makes the table.
//
//   card_bench [--tiny] [--rounds N]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/status.h"
#include "tests/gpu/card_measures.h"

namespace layover::gpu {
namespace {

absl::StatusOr<Json> Measured(bool tiny, int rounds) {
  ASSIGN_OR_RETURN(const CardInfo card, OpenCard(0));
  ASSIGN_OR_RETURN(const std::unique_ptr<GpuDevice> device, GpuDevice::Open(0));
  CardMeasures measures(device.get(), tiny ? TinySizes() : BenchSizes());
  RETURN_IF_ERROR(measures.AddAll(card));
  for (int i = 0; i < rounds; ++i) RETURN_IF_ERROR(measures.Round());
  return Json{{"card", card.name},
              {"architecture", card.architecture},
              {"multiprocessors", card.multiprocessors},
              {"memory_bytes", card.memory_bytes},
              {"rounds", rounds},
              {"host_memory_pinned", measures.pinned()},
              {"cublas", measures.cublas()},
              {"measures", measures.Results()}};
}

int Run(int argc, char** argv) {
  bool tiny = false;
  int rounds = 5;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      tiny = true;
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      rounds = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "card_bench [--tiny] [--rounds N]\n");
      return 2;
    }
  }
  const auto result = Measured(tiny, rounds);
  if (!result.ok()) {
    std::fprintf(stderr, "%s:0: %s\n", BackEndKind(), std::string(result.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", result->dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace layover::gpu

int main(int argc, char** argv) {
  return layover::gpu::Run(argc, argv);
}
