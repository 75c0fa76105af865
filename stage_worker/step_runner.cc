#include "stage_worker/step_runner.h"

#include <algorithm>

#include "common/limits.h"
#include "common/status.h"
#include "stage_worker/sampler.h"

namespace layover {

namespace {

int PagesOf(int64_t positions) {
  return static_cast<int>((positions + kPageTokens - 1) / kPageTokens);
}

// What a graph is made for: 3, 4, 6, 8, 12, 16, ... pages. Attention's grid covers the pages beyond the longest sequence
// for nothing; two graphs for every doubling of a conversation keep that below half.
int RoundedPositions(int max_positions, int context) {
  int pages = 3;
  while (pages < PagesOf(max_positions)) pages = pages % 3 == 0 ? pages / 3 * 4 : pages / 2 * 3;
  return std::min(pages, PagesOf(context)) * kPageTokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(Device& device, Stream& stream, Model& model,
                                                               const Config& config) {
  std::unique_ptr<StepRunner> runner(new StepRunner(stream, model, config));
  const size_t rows = static_cast<size_t>(config.step_rows);
  const size_t slices = std::min(rows, static_cast<size_t>(limits::kMaxStepSlices));
  const size_t kinds = config.has_windows ? 2 : 1;
  // Ids, positions, wanted rows; slots; every slice may name the pages of a whole context.
  const size_t numbers = 3 * rows + 2 * slices + kinds * slices * static_cast<size_t>(PagesOf(config.context));
  ASSIGN_OR_RETURN(runner->inputs_, StepInputs::Create(device, stream, numbers * sizeof(int32_t) +
                                                                           kinds * slices * sizeof(SequenceSlice)));
  if (config.owns_head) {
    const size_t logits = static_cast<size_t>(config.logits_rows) * static_cast<size_t>(config.n_vocab);
    const size_t best = static_cast<size_t>(config.logits_rows) * limits::kMaxTopK;
    runner->logits_ = std::make_unique<PinnedMemory>(device, logits * sizeof(float));
    ASSIGN_OR_RETURN(runner->best_ids_, device.Allocate(best * sizeof(int32_t)));
    ASSIGN_OR_RETURN(runner->best_logits_, device.Allocate(best * sizeof(float)));
    runner->host_ids_ = std::make_unique<PinnedMemory>(device, best * sizeof(int32_t));
    runner->host_best_ = std::make_unique<PinnedMemory>(device, best * sizeof(float));
  }
  return runner;
}

absl::StatusOr<int> StepRunner::Prepare(const wire::Step& step, const SessionTable& sessions) {
  ASSIGN_OR_RETURN(const StepSize size, Measure(step, sessions));
  wanted_ = config_.owns_head ? WantedRows(step) : std::vector<Wanted>();
  RETURN_IF_ERROR(inputs_->Begin());
  Pack(step, sessions, size);
  inputs_->Upload();
  ++n_steps_;
  // Decode: a row a sequence. A prefill chunk's sizes hardly come again.
  recurs_ = size.rows == step.slices.size() && size.rows <= static_cast<size_t>(limits::kMostGraphRows) &&
            wanted_.size() == FirstLogits();
  if (recurs_) {
    const int rounded = RoundedPositions(size.max_positions, config_.context);
    input_.slices.max_positions = input_.window_slices.max_positions = rounded;
    key_ = {.n_rows = input_.n_rows,
            .n_slices = input_.slices.n_slices,
            .max_positions = rounded,
            .n_logits = static_cast<int32_t>(wanted_.size()),
            .slot = inputs_->slot()};
  }
  return input_.n_rows;
}

absl::StatusOr<StepRunner::StepSize> StepRunner::Measure(const wire::Step& step, const SessionTable& sessions) const {
  StepSize size;
  for (const wire::StepSlice& slice : step.slices) {
    const auto count = static_cast<int64_t>(slice.tokens.size());
    const int64_t end = slice.begin + count;
    if (count == 0 || end > config_.context) return Internal("a slice of {} tokens ends at {} of {}", count, end, config_.context);
    for (const int32_t id : slice.tokens) {
      if (id < 0 || id >= config_.n_vocab) return Internal("token id {} is not in the vocabulary of {}", id, config_.n_vocab);
    }
    if (config_.has_states && slice.state_to < 0) return Internal("session {}: no slot for its state", slice.session);
    size.rows += slice.tokens.size();
    size.pages += sessions.Find(slice.session)->pages.size();
    size.max_positions = std::max(size.max_positions, static_cast<int>(end));
  }
  if (size.rows == 0 || size.rows > static_cast<size_t>(config_.step_rows) ||
      step.slices.size() > static_cast<size_t>(limits::kMaxStepSlices)) {
    return Internal("a step of {} rows in {} slices", size.rows, step.slices.size());
  }
  return size;
}

// Everything before the page tables lies where the step's numbers of rows, slices and wanted rows put it, so that graphs
// find it there again.
void StepRunner::Pack(const wire::Step& step, const SessionTable& sessions, const StepSize& size) {
  const size_t n_slices = step.slices.size();
  const auto slices = inputs_->Take<SequenceSlice>(n_slices);
  const auto window_slices = inputs_->Take<SequenceSlice>(config_.has_windows ? n_slices : 0);
  const auto ids = inputs_->Take<int32_t>(size.rows);
  const auto positions = inputs_->Take<int32_t>(size.rows);
  const auto from = inputs_->Take<int32_t>(config_.has_states ? n_slices : 0);
  const auto to = inputs_->Take<int32_t>(config_.has_states ? n_slices : 0);
  const auto indices = inputs_->Take<int32_t>(wanted_.size());
  // Those of windows are as long as the others and stand behind them.
  const auto page_tables = inputs_->Take<int32_t>(config_.has_windows ? 2 * size.pages : size.pages);

  int32_t row = 0, pages = 0;
  for (size_t s = 0; s < n_slices; ++s) {
    const wire::StepSlice& slice = step.slices[s];
    const StageSession& session = *sessions.Find(slice.session);
    const SequenceSlice place{.row_begin = row, .row_count = static_cast<int32_t>(slice.tokens.size()),
                              .position_begin = static_cast<int32_t>(slice.begin), .page_table_begin = pages};
    slices.host[s] = place;
    std::copy(session.pages.begin(), session.pages.end(), page_tables.host + pages);
    if (config_.has_windows) {
      window_slices.host[s] = place;
      window_slices.host[s].page_table_begin += static_cast<int32_t>(size.pages);
      std::copy(session.window_pages.begin(), session.window_pages.end(), page_tables.host + size.pages + pages);
    }
    if (config_.has_states) {
      from.host[s] = slice.state_from;
      to.host[s] = slice.state_to;
    }
    for (int32_t i = 0; i < place.row_count; ++i, ++row) {
      ids.host[row] = slice.tokens[static_cast<size_t>(i)];
      positions.host[row] = place.position_begin + i;
    }
    pages += static_cast<int32_t>(session.pages.size());
  }
  for (size_t i = 0; i < wanted_.size(); ++i) indices.host[i] = wanted_[i].row;
  row_indices_ = indices.device;

  const SliceTable table{.slices = slices.device, .n_slices = static_cast<int>(n_slices), .page_tables = page_tables.device,
                         .n_rows = row, .max_positions = size.max_positions};
  input_ = {.ids = ids.device, .positions = positions.device, .slices = table, .n_rows = row};
  if (config_.has_windows) {
    input_.window_slices = table;
    input_.window_slices.slices = window_slices.device;
  }
  if (config_.has_states) input_.states = {from.device, to.device};
}

std::vector<StepRunner::Wanted> StepRunner::WantedRows(const wire::Step& step) const {
  std::vector<Wanted> wanted;
  int32_t row = 0;
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const wire::StepSlice& slice = step.slices[s];
    const int count = static_cast<int>(slice.tokens.size());
    const bool last_only = slice.wish == wire::RowWish::kSample || slice.wish == wire::RowWish::kDigest;
    const bool token_only = slice.wish == wire::RowWish::kSample && slice.top_logprobs < 0 && !slice.row_digest;
    const int best = token_only ? BestNeeded(slice.sampler, static_cast<size_t>(config_.n_vocab_text)) : 0;
    for (int i = 0; i < count; ++i, ++row) {
      if (slice.wish == wire::RowWish::kReport || (last_only && i + 1 == count)) wanted.push_back({s, i, row, best});
    }
  }
  return wanted;
}

void StepRunner::Run() {
  const auto enqueue = [this] {
    model_.Forward(stream_, input_);
    if (!wanted_.empty()) model_.Logits(stream_, row_indices_, static_cast<int>(FirstLogits()));
  };
  if (recurs_) {
    stream_.Replay(key_, enqueue);
  } else {
    enqueue();
  }
}

absl::StatusOr<std::vector<wire::SliceResult>> StepRunner::Results(const wire::Step& step, const SessionTable& sessions) {
  std::vector<wire::SliceResult> results(step.slices.size());
  for (size_t s = 0; s < results.size(); ++s) results[s].session = step.slices[s].session;
  if (wanted_.empty()) RETURN_IF_ERROR(stream_.Synchronize());
  for (size_t begin = 0; begin < wanted_.size(); begin += static_cast<size_t>(config_.logits_rows)) {
    const size_t count = std::min(wanted_.size() - begin, static_cast<size_t>(config_.logits_rows));
    ASSIGN_OR_RETURN(const size_t k, FetchLogits(begin, count));
    for (size_t i = 0; i < count; ++i) {
      const Wanted& w = wanted_[begin + i];
      const wire::StepSlice& slice = step.slices[w.slice];
      const float* logits = logits_->As<float>() + i * static_cast<size_t>(config_.n_vocab);
      if (slice.wish == wire::RowWish::kDigest) {
        results[w.slice].rows.push_back({.position = slice.begin + w.row_in_slice,
                                         .digest = DigestOf(logits, sizeof(float) * static_cast<size_t>(config_.n_vocab))});
      } else if (w.best > 0) {
        SampleBest(slice, {{host_ids_->As<int32_t>() + i * k, k}, {host_best_->As<float>() + i * k, k}}, &results[w.slice]);
      } else if (slice.wish == wire::RowWish::kSample) {
        SampleRow(slice, *sessions.Find(slice.session), logits, &results[w.slice]);
      } else {
        ReportRow(slice, w.row_in_slice, logits, &results[w.slice]);
      }
    }
  }
  return results;
}

// Those of the first lot are enqueued by Run.
absl::StatusOr<size_t> StepRunner::FetchLogits(size_t begin, size_t count) {
  if (begin > 0) model_.Logits(stream_, row_indices_ + begin, static_cast<int>(count));
  size_t k = 0;
  const auto row_floats = static_cast<size_t>(config_.n_vocab);
  for (size_t i = 0; i < count; ++i) {
    const int best = wanted_[begin + i].best;
    k = std::max(k, static_cast<size_t>(best));
    if (best > 0) continue;
    stream_.CopyToHost(logits_->As<float>() + i * row_floats, model_.logits() + i * row_floats, row_floats * sizeof(float));
  }
  if (k > 0) {
    stream_.TopK({.x = model_.logits(),
                  .ids = best_ids_->As<int32_t>(),
                  .values = best_logits_->As<float>(),
                  .n_rows = static_cast<int>(count),
                  .dim = config_.n_vocab_text,
                  .x_stride = config_.n_vocab,
                  .k = static_cast<int>(k)});
    stream_.CopyToHost(host_ids_->data(), best_ids_->data(), count * k * sizeof(int32_t));
    stream_.CopyToHost(host_best_->data(), best_logits_->data(), count * k * sizeof(float));
  }
  RETURN_IF_ERROR(stream_.Synchronize());
  return k;
}

std::string StepRunner::Summary() const {
  const ReplayCounts counts = stream_.Replays();
  if (counts.launched == 0) return {};
  return fmt::format("{} of {} steps ran as graphs ({} made)", counts.launched, n_steps_, counts.captured);
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

void StepRunner::SampleBest(const wire::StepSlice& slice, const BestLogits& best, wire::SliceResult* result) const {
  wire::RowReport report;
  report.position = slice.begin + static_cast<int64_t>(slice.tokens.size()) - 1;
  report.token =
      SampleFromBest(best, slice.sampler, report.position + 1, static_cast<size_t>(config_.n_vocab_text)).id;
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
