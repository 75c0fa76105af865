// What is measured on a card, by rounds: each round takes one turn of every measure, limits among them, so that what a
// rate is divided by was measured next to it. Medians are reported; tests/gpu/card_table.py makes the table of them.
#ifndef LAYOVER_TESTS_GPU_CARD_MEASURES_H_
#define LAYOVER_TESTS_GPU_CARD_MEASURES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/runtime.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/cublas.h"

namespace layover::gpu {

using Json = nlohmann::ordered_json;

// One rate: what `amount` of is done in one time.
struct Measure {
  Json what;                                   // its group and what tells it from others of the group
  double amount = 0;                           // bytes or operations
  double unit = 1e9;                           // of the rate that is reported
  std::function<absl::Status(int times)> run;  // puts the work in a queue so many times and waits until it is done
  int times = 0;                               // of a turn; 0: not yet known
  std::vector<double> rates;                   // one of each turn
};

struct BenchSizes {
  size_t swept_bytes = size_t{512} << 20;  // read one after the other: no card's cache holds them
  size_t copied_bytes = size_t{64} << 20;  // one copy between card and host
  int prefill_rows = 512;
  int n_out = 14336;  // the widest product of a model of 8 billion weights
  int cols = 4096;
  int experts = 128;  // of a mixture of 30 billion weights, its first products
  int experts_used = 8;
  int experts_n_out = 768;
  int experts_cols = 2048;
  int long_context = 32768;
  int heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  int state_pages = 256;       // 64 MiB
  double turn_seconds = 0.05;  // what the host's clock and a launch add is nothing beside it
};
// For a rehearsal under emulation: every line runs, the numbers mean nothing.
BenchSizes TinySizes();

class CardMeasures {
 public:
  CardMeasures(GpuDevice* device, const BenchSizes& sizes) : device_(*device), sizes_(sizes) {}

  // All memory is taken here. Groups: "limit" (names: read, copy, to_host, to_card), "decode", "attention", "prefill",
  // "cublas" (kinds: int8, f16), "state" (names: save, restore).
  absl::Status AddAll(const CardInfo& card);
  // One more turn of each.
  absl::Status Round();
  // Each measure's `what` with "rate" (the median), "least" and "most".
  Json Results() const;
  // {"version"}, or {"absent"}: why there is none; {"int8"}, {"f16"}: why there is no such product.
  const Json& cublas() const { return cublas_facts_; }
  bool pinned() const { return pinned_; }

 private:
  absl::Status AddSweeps(const CardInfo& card);
  absl::Status AddHostCopies();
  absl::Status AddProduct(const char* group, WeightType type, int rows, size_t least_bytes);
  absl::Status AddExperts(const char* group, int rows);
  absl::Status AddAttention(int rows, int length);
  absl::Status AddCublas();
  absl::Status AddCublasKind(Cublas::Kind kind);
  absl::Status AddState();

  GpuDevice& device_;
  const BenchSizes sizes_;
  std::vector<Measure> measures_;
  Json cublas_facts_ = Json::object();
  bool pinned_ = false;  // the host memory of the copies
};

}  // namespace layover::gpu

#endif  // LAYOVER_TESTS_GPU_CARD_MEASURES_H_
