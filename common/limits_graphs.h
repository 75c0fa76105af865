// Bounds of decode steps that run as graphs (kernels/cuda/graph_cache, stage_worker/step_runner).
#ifndef LAYOVER_COMMON_LIMITS_GRAPHS_H_
#define LAYOVER_COMMON_LIMITS_GRAPHS_H_

#include <cstddef>

namespace layover::limits {

// Sets of a step's input buffers, used in turn: one is filled while the step before may still be read from the other.
inline constexpr int kStepSlots = 2;

// Decode steps of more rows run kernel by kernel: on a card they take longer than putting their kernels in the queue, and
// every number of rows is a graph of its own.
inline constexpr int kMostGraphRows = 16;

// Graphs that a stream keeps, the least recently used goes first. Every number of rows with every slot is half of it, so
// that a conversation's growing out of one rounded length into the next pushes nothing out that is still in use.
inline constexpr size_t kMostGraphs = 2 * kStepSlots * kMostGraphRows;

}  // namespace layover::limits

#endif  // LAYOVER_COMMON_LIMITS_GRAPHS_H_
