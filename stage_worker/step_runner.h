// One step on one stage: from the message's slices to device inputs, through the model, to activations for the next
// stage or to sampled tokens. Knows nothing of sockets.
#ifndef LAYOVER_STAGE_WORKER_STEP_RUNNER_H_
#define LAYOVER_STAGE_WORKER_STEP_RUNNER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "kernels/ops.h"
#include "stage_worker/models/model.h"
#include "stage_worker/session_table.h"

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
  // Enqueues the forward pass.
  void Run() { model_.Forward(stream_, input_); }

  // Last stage, after Run: samples and reports, as each slice wishes.
  absl::StatusOr<std::vector<wire::SliceResult>> Results(const wire::Step& step, const SessionTable& sessions);

 private:
  StepRunner(Stream& stream, Model& model, const Config& config) : stream_(stream), model_(model), config_(config) {}

  void Upload(const std::unique_ptr<DeviceBuffer>& buffer, const std::vector<int32_t>& values);
  absl::Status ComputeLogits(const std::vector<int32_t>& row_indices, size_t begin, size_t count);
  void ReportRow(const wire::StepSlice& slice, int row_in_slice, const float* logits, wire::SliceResult* result) const;
  void SampleRow(const wire::StepSlice& slice, const StageSession& session, const float* logits,
                 wire::SliceResult* result) const;

  Stream& stream_;
  Model& model_;
  const Config config_;
  std::unique_ptr<DeviceBuffer> ids_, positions_, slices_, page_tables_, row_indices_;
  std::unique_ptr<DeviceBuffer> window_page_tables_, states_from_, states_to_;  // null: the model has no such layers
  StepInput input_;
  std::vector<float> logits_;  // [logits_rows, n_vocab]
};

}  // namespace layover

#endif  // LAYOVER_STAGE_WORKER_STEP_RUNNER_H_
