#include "stage_worker/step_runner.h"

#include <algorithm>

#include "common/limits.h"
#include "common/status.h"
#include "stage_worker/sampler.h"

namespace layover {

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(Device& device, Stream& stream, Model& model,
                                                               const Config& config) {
  std::unique_ptr<StepRunner> runner(new StepRunner(stream, model, config));
  const size_t rows = static_cast<size_t>(config.step_rows);
  // Every slice may name the pages of a whole context.
  const size_t table_entries = static_cast<size_t>(limits::kMaxStepSlices) *
                               static_cast<size_t>((config.context + kPageTokens - 1) / kPageTokens);
  ASSIGN_OR_RETURN(runner->ids_, device.Allocate(rows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(runner->positions_, device.Allocate(rows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(runner->slices_, device.Allocate(limits::kMaxStepSlices * sizeof(SequenceSlice)));
  ASSIGN_OR_RETURN(runner->page_tables_, device.Allocate(table_entries * sizeof(int32_t)));
  ASSIGN_OR_RETURN(runner->row_indices_, device.Allocate(rows * sizeof(int32_t)));
  if (config.has_windows) {
    ASSIGN_OR_RETURN(runner->window_page_tables_, device.Allocate(table_entries * sizeof(int32_t)));
  }
  if (config.has_states) {
    ASSIGN_OR_RETURN(runner->states_from_, device.Allocate(limits::kMaxStepSlices * sizeof(int32_t)));
    ASSIGN_OR_RETURN(runner->states_to_, device.Allocate(limits::kMaxStepSlices * sizeof(int32_t)));
  }
  if (config.owns_head) {
    runner->logits_.resize(static_cast<size_t>(config.logits_rows) * static_cast<size_t>(config.n_vocab));
  }
  return runner;
}

absl::StatusOr<int> StepRunner::Prepare(const wire::Step& step, const SessionTable& sessions) {
  std::vector<int32_t> ids, positions, page_tables, window_page_tables, states_from, states_to;
  std::vector<SequenceSlice> slices;
  int max_positions = 0;
  for (const wire::StepSlice& slice : step.slices) {
    const StageSession& session = *sessions.Find(slice.session);
    const int32_t count = static_cast<int32_t>(slice.tokens.size());
    const int64_t end = slice.begin + count;
    if (count == 0 || end > config_.context) return Internal("a slice of {} tokens ends at {} of {}", count, end, config_.context);
    slices.push_back({.row_begin = static_cast<int32_t>(ids.size()), .row_count = count,
                      .position_begin = static_cast<int32_t>(slice.begin),
                      .page_table_begin = static_cast<int32_t>(page_tables.size())});
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = slice.tokens[static_cast<size_t>(i)];
      if (id < 0 || id >= config_.n_vocab) return Internal("token id {} is not in the vocabulary of {}", id, config_.n_vocab);
      ids.push_back(id);
      positions.push_back(static_cast<int32_t>(slice.begin) + i);
    }
    page_tables.insert(page_tables.end(), session.pages.begin(), session.pages.end());
    // As long as the other table, so that a slice finds its entries at one place in both.
    window_page_tables.insert(window_page_tables.end(), session.window_pages.begin(), session.window_pages.end());
    if (config_.has_states && slice.state_to < 0) return Internal("session {}: no slot for its state", slice.session);
    states_from.push_back(slice.state_from);
    states_to.push_back(slice.state_to);
    max_positions = std::max(max_positions, static_cast<int>(end));
  }
  const int n_rows = static_cast<int>(ids.size());
  if (n_rows == 0 || n_rows > config_.step_rows || step.slices.size() > static_cast<size_t>(limits::kMaxStepSlices)) {
    return Internal("a step of {} rows in {} slices", n_rows, step.slices.size());
  }
  stream_.CopyToDevice(slices_->data(), slices.data(), slices.size() * sizeof(SequenceSlice));
  Upload(ids_, ids);
  Upload(positions_, positions);
  Upload(page_tables_, page_tables);
  if (config_.has_windows) Upload(window_page_tables_, window_page_tables);
  if (config_.has_states) {
    Upload(states_from_, states_from);
    Upload(states_to_, states_to);
  }
  // The host vectors above end with this call.
  RETURN_IF_ERROR(stream_.Synchronize());
  const SliceTable table{.slices = slices_->As<SequenceSlice>(),
                         .n_slices = static_cast<int>(slices.size()),
                         .page_tables = page_tables_->As<int32_t>(),
                         .n_rows = n_rows,
                         .max_positions = max_positions};
  input_ = {.ids = ids_->As<int32_t>(), .positions = positions_->As<int32_t>(), .slices = table, .n_rows = n_rows};
  if (config_.has_windows) {
    input_.window_slices = table;
    input_.window_slices.page_tables = window_page_tables_->As<int32_t>();
  }
  if (config_.has_states) input_.states = {states_from_->As<int32_t>(), states_to_->As<int32_t>()};
  return n_rows;
}

void StepRunner::Upload(const std::unique_ptr<DeviceBuffer>& buffer, const std::vector<int32_t>& values) {
  stream_.CopyToDevice(buffer->data(), values.data(), values.size() * sizeof(int32_t));
}

absl::StatusOr<std::vector<wire::SliceResult>> StepRunner::Results(const wire::Step& step, const SessionTable& sessions) {
  // Which rows' logits are wanted, in row order, and whose they are.
  struct Wanted {
    size_t slice;
    int row_in_slice;
  };
  std::vector<Wanted> wanted;
  std::vector<int32_t> row_indices;
  int32_t row = 0;
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const wire::StepSlice& slice = step.slices[s];
    const int count = static_cast<int>(slice.tokens.size());
    for (int i = 0; i < count; ++i, ++row) {
      if (slice.wish == wire::RowWish::kReport || ((slice.wish == wire::RowWish::kSample || slice.wish == wire::RowWish::kDigest) && i + 1 == count)) {
        wanted.push_back({s, i});
        row_indices.push_back(row);
      }
    }
  }

  std::vector<wire::SliceResult> results(step.slices.size());
  for (size_t s = 0; s < results.size(); ++s) results[s].session = step.slices[s].session;
  for (size_t begin = 0; begin < wanted.size(); begin += static_cast<size_t>(config_.logits_rows)) {
    const size_t count = std::min(wanted.size() - begin, static_cast<size_t>(config_.logits_rows));
    RETURN_IF_ERROR(ComputeLogits(row_indices, begin, count));
    for (size_t i = 0; i < count; ++i) {
      const Wanted& w = wanted[begin + i];
      const wire::StepSlice& slice = step.slices[w.slice];
      const float* logits = logits_.data() + i * static_cast<size_t>(config_.n_vocab);
      if (slice.wish == wire::RowWish::kDigest) {
        results[w.slice].rows.push_back({.position = slice.begin + w.row_in_slice,
                                         .digest = DigestOf(logits, sizeof(float) * static_cast<size_t>(config_.n_vocab))});
      } else if (slice.wish == wire::RowWish::kSample) {
        SampleRow(slice, *sessions.Find(slice.session), logits, &results[w.slice]);
      } else {
        ReportRow(slice, w.row_in_slice, logits, &results[w.slice]);
      }
    }
  }
  return results;
}

absl::Status StepRunner::ComputeLogits(const std::vector<int32_t>& row_indices, size_t begin, size_t count) {
  stream_.CopyToDevice(row_indices_->data(), row_indices.data() + begin, count * sizeof(int32_t));
  model_.Logits(stream_, row_indices_->As<int32_t>(), static_cast<int>(count));
  stream_.CopyToHost(logits_.data(), model_.logits(), count * static_cast<size_t>(config_.n_vocab) * sizeof(float));
  return stream_.Synchronize();
}

void StepRunner::SampleRow(const wire::StepSlice& slice, const StageSession& session, const float* logits,
                           wire::SliceResult* result) const {
  const std::span<const float> row(logits, static_cast<size_t>(config_.n_vocab_text));
  wire::RowReport report;
  report.position = slice.begin + static_cast<int64_t>(slice.tokens.size()) - 1;
  report.token = Sample(row, slice.sampler, report.position + 1, session.tokens, slice.output_begin).id;
  if (slice.top_logprobs >= 0) {
    const LogSoftmax softmax(row);
    report.logprob = softmax.Logprob(report.token);
    for (const TokenLogprob& top : softmax.Top(slice.top_logprobs)) report.top.emplace_back(top.id, top.logprob);
  }
  if (slice.row_digest) report.digest = DigestOf(logits, sizeof(float) * static_cast<size_t>(config_.n_vocab));
  result->rows.push_back(std::move(report));
}

void StepRunner::ReportRow(const wire::StepSlice& slice, int row_in_slice, const float* logits,
                           wire::SliceResult* result) const {
  const std::span<const float> row(logits, static_cast<size_t>(config_.n_vocab_text));
  const size_t bytes = sizeof(float) * static_cast<size_t>(config_.n_vocab);
  wire::RowReport report;
  report.position = slice.begin + row_in_slice;
  const LogSoftmax softmax(row);
  const size_t next = static_cast<size_t>(row_in_slice) + 1;
  report.token = next < slice.tokens.size() ? slice.tokens[next] : slice.next_token;
  if (report.token >= 0 && report.token < config_.n_vocab_text) report.logprob = softmax.Logprob(report.token);
  for (const TokenLogprob& top : softmax.Top(slice.top_logprobs)) report.top.emplace_back(top.id, top.logprob);
  report.digest = DigestOf(logits, bytes);
  if (slice.raw_rows) report.raw.assign(reinterpret_cast<const char*>(logits), bytes);
  result->rows.push_back(std::move(report));
}

}  // namespace layover
