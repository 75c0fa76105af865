#include "kernels/cuda/graph_cache.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"

namespace layover::gpu {

absl::Status GraphCache::Replay(const GraphKey& key, const std::function<void()>& enqueue) {
  LAYOVER_CHECK(!capturing_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  if (off_ || found == entries_.end()) {
    enqueue();
    if (off_) return absl::OkStatus();
    if (entries_.size() == limits::kMostGraphs) entries_.pop_back();
    entries_.push_front({key, nullptr});
    return absl::OkStatus();
  }
  entries_.splice(entries_.begin(), entries_, found);
  Entry& entry = entries_.front();
  if (entry.graph != nullptr) {
    if (queue_.ComparesGraphs()) RETURN_IF_ERROR(Compare(entry, enqueue));
  } else {
    auto graph = Capture(enqueue);
    if (!graph.ok()) {
      LogWarning("steps run kernel by kernel, not as graphs: {}", ToStd(graph.status().message()));
      off_ = true;
      entries_.clear();
      enqueue();
      return absl::OkStatus();
    }
    entry.graph = *std::move(graph);
    ++counts_.captured;
    LogDebug("a graph of {} rows, up to {} positions, {} logits, slot {}", key.n_rows, key.max_positions, key.n_logits,
             key.slot);
  }
  entry.graph->Launch();
  ++counts_.launched;
  return absl::OkStatus();
}

void GraphCache::DropGraphs() {
  LAYOVER_CHECK(!capturing_);
  for (Entry& entry : entries_) entry.graph.reset();
}

absl::StatusOr<std::unique_ptr<QueueGraph>> GraphCache::Capture(const std::function<void()>& enqueue) {
  RETURN_IF_ERROR(queue_.BeginCapture());
  capturing_ = true;
  enqueue();
  capturing_ = false;
  return queue_.EndCapture();
}

absl::Status GraphCache::Compare(const Entry& entry, const std::function<void()>& enqueue) {
  ASSIGN_OR_RETURN(const std::unique_ptr<QueueGraph> now, Capture(enqueue));
  const std::string difference = entry.graph->DifferenceTo(*now);
  if (difference.empty()) return absl::OkStatus();
  const GraphKey& key = entry.key;
  return Internal(
      "the graph of {} rows in {} slices, up to {} positions, {} logits, slot {} is not what is asked for now: {}",
      key.n_rows, key.n_slices, key.max_positions, key.n_logits, key.slot, difference);
}

}  // namespace layover::gpu
