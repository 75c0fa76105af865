// One step on one stage: from the message's slices to device inputs, through the model, to activations for the next
// stage or to sampled tokens. Knows nothing of sockets.
//
// Nothing waits for the device between Prepare and the end of the step. Decode steps are given to Stream::Replay: what
// their operations are told by the host follows from the key, the number of positions rounded up for it.
#ifndef LAYOVER_STAGE_WORKER_STEP_RUNNER_H_
#define LAYOVER_STAGE_WORKER_STEP_RUNNER_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "kernels/ops.h"
#include "stage_worker/models/model.h"
#include "stage_worker/pinned_memory.h"
#include "stage_worker/sampler.h"
#include "stage_worker/session_table.h"
#include "stage_worker/step_inputs.h"

namespace layover {

class StepRunner {
 public:
  struct Config {
    int n_vocab = 0;
    int n_vocab_text = 0;  // logits beyond are padding
    int step_rows = 0;
    int logits_rows = 0;
    int context = 0;
    bool owns_head = false;
    bool has_windows = false;    // the model has sliding-window layers
    bool has_states = false;     // ... recurrent layers
  };
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(Device& device, Stream& stream, Model& model, const Config& config);

  // Rows of the step; also checks its size. The sessions have been extended by the slices already.
  absl::StatusOr<int> Prepare(const wire::Step& step, const SessionTable& sessions);

  // Rows of the residual stream in device memory, [n_rows, n_embd]: filled by the caller before Run unless this is the
  // first stage, and to be sent on after Run unless it is the last.
  float* rows() { return model_.x(); }
  // Enqueues the forward pass, and on the last stage the first logits that the step wants.
  void Run();

  // Last stage, after Run: samples and reports, as each slice wishes. The stream is synchronised then.
  absl::StatusOr<std::vector<wire::SliceResult>> Results(const wire::Step& step, const SessionTable& sessions);

  // For the log: how many steps there were, and how many were graphs; empty if none was.
  std::string Summary() const;

 private:
  // A row whose logits are wanted.
  struct Wanted {
    size_t slice;
    int row_in_slice;
    int32_t row;  // of the step
    int best;     // so many of its best logits will do; 0: it takes the row
  };
  struct StepSize {
    size_t rows = 0;
    size_t pages = 0;  // of all slices' tables
    int max_positions = 0;
  };

  StepRunner(Stream& stream, Model& model, const Config& config) : stream_(stream), model_(model), config_(config) {}

  absl::StatusOr<StepSize> Measure(const wire::Step& step, const SessionTable& sessions) const;
  std::vector<Wanted> WantedRows(const wire::Step& step) const;
  void Pack(const wire::Step& step, const SessionTable& sessions, const StepSize& size);
  size_t FirstLogits() const { return std::min(wanted_.size(), static_cast<size_t>(config_.logits_rows)); }
  // Of rows [begin, begin + count) of wanted_: the whole ones, and of the others the k best. k is 0 if there are none.
  absl::StatusOr<size_t> FetchLogits(size_t begin, size_t count);
  void ReportRow(const wire::StepSlice& slice, int row_in_slice, const float* logits, wire::SliceResult* result) const;
  void SampleRow(const wire::StepSlice& slice, const StageSession& session, const float* logits,
                 wire::SliceResult* result) const;
  void SampleBest(const wire::StepSlice& slice, const BestLogits& best, wire::SliceResult* result) const;

  Stream& stream_;
  Model& model_;
  const Config config_;
  std::unique_ptr<StepInputs> inputs_;
  // Of the last stage.
  std::unique_ptr<PinnedMemory> logits_;                   // [logits_rows, n_vocab]
  std::unique_ptr<DeviceBuffer> best_ids_, best_logits_;   // [logits_rows, limits::kMaxTopK]
  std::unique_ptr<PinnedMemory> host_ids_, host_best_;     // of those, [rows, k] of the lot that was fetched

  // Of the step that is prepared.
  StepInput input_;
  std::vector<Wanted> wanted_;            // in row order; last stage
  const int32_t* row_indices_ = nullptr;  // [wanted_.size()], on the device
  GraphKey key_;
  bool recurs_ = false;

  int64_t n_steps_ = 0;
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_STEP_RUNNER_H_
