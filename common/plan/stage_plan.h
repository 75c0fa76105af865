// Which layers each stage owns and what memory that takes, computed from headers before anything is loaded. The worker
// allocates by the same numbers (page and slot counts, rows of a step), the coordinator's ledger counts by them.
#ifndef LAYOVER_COMMON_PLAN_STAGE_PLAN_H_
#define LAYOVER_COMMON_PLAN_STAGE_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf/model_shape.h"
#include "common/gguf/reader.h"
#include "common/topology.h"

namespace layover {

struct StagePlan {
  int stage = 0;
  std::string device;
  std::string host;  // of a remote stage, else empty
  LayerRange layers;
  LinkKind link = LinkKind::kAuto;  // of the hop into this stage, as chosen; kAuto: the first, there is none
  bool owns_embedding = false;      // the first stage
  bool owns_head = false;           // the last stage
  int n_full_layers = 0;            // attention layers of each page class, and recurrent layers
  int n_window_layers = 0;
  int n_recurrent_layers = 0;
  uint64_t weight_bytes = 0;      // as in the file; a tied head on another stage than the embedding counts there again
  uint64_t kv_bytes = 0;          // pages of all sessions at full context
  uint64_t state_bytes = 0;       // recurrent and convolution state of all sessions
  uint64_t checkpoint_bytes = 0;  // states and sliding-window pages of the checkpoints
  uint64_t scratch_bytes = 0;     // buffers of one step, the scratch page and slot, what packing adds, NCCL's buffers
  uint64_t total_bytes = 0;       // of the five above: on the stage's own device
  // Hops. Of the one into this stage what it takes of the host's memory: its ring (page-locked if an end is a GPU), or
  // over zmq as many of the largest frames as may be under way. Of the one out of it, over NCCL, the buffers on the
  // device, which scratch_bytes has too.
  uint64_t hop_host_bytes = 0;
  bool hop_pinned = false;
  uint64_t hop_device_bytes = 0;
};

struct Plan {
  int context = 0;
  int sessions = 0;
  std::string kv_type;
  int step_rows = 0;       // most rows of one step: buffers are made for it, the scheduler keeps to it
  uint64_t hop_bytes = 0;  // largest payload between two stages: [step_rows, n_embd] floats
  int logits_rows = 0;     // most rows of one step whose logits are wanted
  // The same on every stage (one ledger); each comes with one scratch page or slot outside the capacity, for probes.
  int n_pages = 0;                    // of the full-attention class: sessions * ceil(context / 64)
  int n_window_pages = 0;             // of the sliding-window class; 0 if the model has none
  int n_state_slots = 0;              // sessions if the model is recurrent, else 0
  int n_checkpoint_window_pages = 0;  // besides
  int n_checkpoint_slots = 0;
  uint64_t host_bytes = 0;  // of the coordinator's machine: its CPU stages whole, and the hops that have an end there
  std::vector<StagePlan> stages;
};

// Layers as the topology says, or else the contiguous split whose largest stage (total_bytes, embedding and head
// counted) is smallest; among equals, earlier stages take more. InvalidArgument (FILE:LINE) if the layers given do not
// cover the model exactly, if there are more stages than layers, or if the K/V type does not fit the head size.
absl::StatusOr<Plan> MakePlan(const Topology& topology, const GgufFile& file, const ModelShape& shape);

// Bytes of one token's K and V in one layer. kv_type as in the topology; head sizes are multiples of its block.
uint64_t KvBytesPerToken(const ModelShape& shape, int layer, std::string_view kv_type);
// Bytes of one sequence's recurrent and convolution state in one recurrent layer (float32).
uint64_t RecurrentStateBytes(const ModelShape& shape);

}  // namespace layover

#endif  // LAYOVER_COMMON_PLAN_STAGE_PLAN_H_
