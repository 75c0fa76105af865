// `layover logits`: every position's logits of one text, straight from the pipeline: what correctness and invariance
// are checked with.
#include <cstdio>
#include <fstream>
#include <optional>

#include "common/limits.h"
#include "common/log.h"
#include "common/status.h"
#include "common/storage/durable_file.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/http/completion_json.h"
#include "coordinator/pipeline.h"
#include "coordinator/serve.h"
#include "coordinator/setup.h"
#include "coordinator/text/tokenizer.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace layover {
namespace {

using Json = nlohmann::ordered_json;

// Reads the ids once through the stages and collects a report per position.
class LogitsRun : private StageGroup::Listener, private Pipeline::Listener {
 public:
  LogitsRun(const Setup& setup, std::vector<int32_t> ids, const LogitsOptions& options)
      : setup_(setup), ids_(std::move(ids)), options_(options) {}

  absl::StatusOr<std::vector<wire::RowReport>> Run() {
    if (!options_.raw_file.empty()) {
      raw_.open(options_.raw_file, std::ios::binary | std::ios::trunc);
      if (!raw_) return InvalidArgument("{} cannot be written", options_.raw_file);
    }
    ASSIGN_OR_RETURN(stages_, StageGroup::Create(setup_.topology, setup_.plan, this));
    const SchedulerConfig scheduler{.stages = stages_->n_stages(),
                                    .chunk_tokens = setup_.topology.chunk,
                                    .max_slices = setup_.plan.step_rows - setup_.topology.chunk};
    pipeline_ = std::make_unique<Pipeline>(
        stages_.get(), LedgerFor(setup_.plan, setup_.shape), scheduler, setup_.plan.step_rows,
        static_cast<Pipeline::Listener*>(this));
    RETURN_IF_ERROR(stages_->Start());
    while (!done_ && failure_.ok()) {
      std::vector<wire::PollItem> items = stages_->PollItems();
      RETURN_IF_ERROR(wire::Poll(items, 200));
      stages_->HandleEvents(pipeline_->steps_in_flight() > 0);
      pipeline_->Pump();
    }
    RETURN_IF_ERROR(failure_);
    return std::move(rows_);
  }

 private:
  void OnStagesUp() override {
    const auto session = pipeline_->Open();
    if (!session.ok()) {
      failure_ = session.status();
      return;
    }
    pipeline_->Run(
        *session, ids_,
        {.top_logprobs = options_.top, .samples = false, .report_rows = true, .raw_rows = !options_.raw_file.empty()});
  }
  void OnStageLost(int stage, const absl::Status& why) override { failure_ = why; }
  void OnStageDown(int stage, const absl::Status& why) override { failure_ = why; }
  void OnStageMessage(int stage, uint64_t seq, const wire::FromStage& message) override {
    if (const auto* done = std::get_if<wire::StepDone>(&message)) pipeline_->OnStepDone(stage, seq, *done);
  }

  void OnFed(SessionId session, int64_t length) override {}
  void OnRows(SessionId session, std::vector<wire::RowReport> rows) override {
    for (wire::RowReport& row : rows) {
      raw_.write(row.raw.data(), static_cast<std::streamsize>(row.raw.size()));
      row.raw.clear();
      rows_.push_back(std::move(row));
    }
    if (!options_.raw_file.empty() && !raw_) failure_ = Internal("{} cannot be written", options_.raw_file);
    done_ = rows_.size() == ids_.size();
  }
  void OnSampled(SessionId session, const wire::RowReport& row) override {}
  void OnStopped(SessionId session) override { failure_ = Internal("the run was stopped"); }
  bool OnStarved(SessionId session) override { return false; }
  void OnRunFailed(SessionId session, const absl::Status& why) override { failure_ = why; }

  const Setup& setup_;
  const std::vector<int32_t> ids_;
  const LogitsOptions& options_;
  std::ofstream raw_;
  std::unique_ptr<StageGroup> stages_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<wire::RowReport> rows_;
  absl::Status failure_;
  bool done_ = false;
};

absl::StatusOr<std::vector<int32_t>> ReadInput(const std::string& path, const Setup& setup) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, limits::kMaxHttpBodyBytes));
  std::vector<int32_t> ids;
  if (path.ends_with(".json")) {
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_array()) return InvalidArgument("{}: not a JSON array of token ids", path);
    for (const Json& id : json) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= setup.shape.n_vocab) {
        return InvalidArgument("{}: element {} is not a token id below {}", path, ids.size(), setup.shape.n_vocab);
      }
      ids.push_back(id.get<int32_t>());
    }
  } else {
    ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::FromGguf(*setup.file));
    ids = tokenizer->Encode(text, {.add_special = true, .parse_special = false});
  }
  if (ids.empty()) return InvalidArgument("{}: no tokens", path);
  if (static_cast<int64_t>(ids.size()) > setup.plan.context) {
    return InvalidArgument("{}: {} tokens do not fit the context of {}", path, ids.size(), setup.plan.context);
  }
  return ids;
}

std::string TopText(const wire::RowReport& row) {
  std::string text;
  for (const auto& [id, logprob] : row.top) {
    text += fmt::format("{}[{},{}]", text.empty() ? "" : ",", id, JsonFloat(logprob));
  }
  return text;
}

// One line a position, so that a text of thousands need not be held as one JSON value; numbers with the digits of a
// float, not of the double that a JSON library makes of it.
void Print(const Setup& setup, const std::vector<int32_t>& ids, const std::vector<wire::RowReport>& rows) {
  fmt::print(R"({{"model": {}, "kv_type": {}, "stages": {}, "n_vocab": {}, "positions": [)",
             Json(setup.topology.model).dump(), Json(setup.plan.kv_type).dump(), setup.plan.stages.size(),
             setup.shape.n_vocab);
  for (size_t i = 0; i < rows.size(); ++i) {
    fmt::print("{}\n{}", i == 0 ? "" : ",",
               fmt::format(R"({{"pos":{},"id":{},"logprob":{},"row_xxh3":"{}","top":[{}]}})", i, ids[i],
                           i == 0 ? "null" : JsonFloat(rows[i - 1].logprob), rows[i].digest.Hex(), TopText(rows[i])));
  }
  fmt::print("\n]}}\n");
}

}  // namespace

int RunLogits(const LogitsOptions& options) {
  InitLog("layover");
  const auto setup = LoadSetup(options.topology);
  if (!setup.ok()) {
    std::fprintf(stderr, "%s\n", std::string(setup.status().message()).c_str());
    return ExitCodeOfSetup(setup.status());
  }
  const auto ids = ReadInput(options.input, **setup);
  if (!ids.ok()) {
    std::fprintf(stderr, "%s\n", std::string(ids.status().message()).c_str());
    return 2;
  }
  const auto rows = LogitsRun(**setup, *ids, options).Run();
  if (!rows.ok()) {
    std::fprintf(stderr, "%s\n", std::string(rows.status().message()).c_str());
    return 1;
  }
  Print(**setup, *ids, *rows);
  return 0;
}

}  // namespace layover
