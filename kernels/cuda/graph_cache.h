// The graphs of one stream. What comes again and again is put in the queue kernel by kernel the first time (scratch
// memory grows, kernels are loaded), captured the second time, and from then on started whole.
//
// Graphs hold addresses: DropGraphs() before memory that they name goes. Where the runtime refuses to make a graph, one
// line says so and everything is done kernel by kernel from there on.
#ifndef LAYOVER_KERNELS_CUDA_GRAPH_CACHE_H_
#define LAYOVER_KERNELS_CUDA_GRAPH_CACHE_H_

#include <functional>
#include <list>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace layover::gpu {

class GraphCache {
 public:
  explicit GraphCache(Queue& queue) : queue_(queue) {}  // which outlives it

  // Stream::Replay. Internal if `enqueue` did not do what it did for this key before, where the queue can tell.
  absl::Status Replay(const GraphKey& key, const std::function<void()>& enqueue);
  // What is known of the keys stays: the next call of each captures it anew.
  void DropGraphs();
  bool capturing() const { return capturing_; }
  const ReplayCounts& counts() const { return counts_; }

 private:
  struct Entry {
    GraphKey key;
    std::unique_ptr<QueueGraph> graph;  // null: seen once, or dropped
  };
  absl::StatusOr<std::unique_ptr<QueueGraph>> Capture(const std::function<void()>& enqueue);
  absl::Status Compare(const Entry& entry, const std::function<void()>& enqueue);

  Queue& queue_;
  std::list<Entry> entries_;  // used last first
  bool capturing_ = false;
  bool off_ = false;
  ReplayCounts counts_;
};

}  // namespace layover::gpu

#endif  // LAYOVER_KERNELS_CUDA_GRAPH_CACHE_H_
