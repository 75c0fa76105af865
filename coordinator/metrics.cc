#include "coordinator/metrics.h"

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "common/check.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace layover {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

// From a cache hit of a few milliseconds to a long prompt on a slow machine.
const Histogram::BucketBoundaries kLatencySeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                                     5,     10,   25,    50,   100, 250,  500, 1000};
const Histogram::BucketBoundaries kTokenCounts = {1,    4,    16,   64,    256,   512,   1024,
                                                  2048, 4096, 8192, 16384, 32768, 65536, 131072};

Family<Counter>& CounterFamily(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Gauge>& GaugeFamily(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Histogram& OneHistogram(Registry& registry, const char* name, const char* help,
                        const Histogram::BucketBoundaries& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

template <typename Metric, size_t N>
std::array<Metric*, N> Labelled(Family<Metric>& family, const char* label, const std::array<const char*, N>& values) {
  std::array<Metric*, N> out;
  for (size_t i = 0; i < N; ++i) out[i] = &family.Add({{label, values[i]}});
  return out;
}

std::vector<Counter*> PerStage(Family<Counter>& family, int n_stages) {
  std::vector<Counter*> out;
  for (int stage = 0; stage < n_stages; ++stage) out.push_back(&family.Add({{"stage", std::to_string(stage)}}));
  return out;
}

constexpr std::array<const char*, 2> kVerbs = {"save", "restore"};

// [verb][stage]
using VerbStageGauges = std::array<std::vector<Gauge*>, kVerbs.size()>;
VerbStageGauges PerVerbAndStage(Family<Gauge>& family, int n_stages) {
  VerbStageGauges out;
  for (size_t verb = 0; verb < kVerbs.size(); ++verb) {
    for (int stage = 0; stage < n_stages; ++stage) {
      out[verb].push_back(&family.Add({{"verb", kVerbs[verb]}, {"stage", std::to_string(stage)}}));
    }
  }
  return out;
}

constexpr std::array<const char*, 3> kPhases = {"queued", "prefill", "decode"};
constexpr std::array<const char*, 3> kResults = {"ok", "refused", "failed"};
constexpr std::array<const char*, 3> kTiers = {"device", "host", "disk"};
constexpr std::array<const char*, 6> kStates = {"active", "idle", "parked", "saved", "saving", "restoring"};
constexpr std::array<const char*, 4> kPromptKinds = {"cached", "restored", "recomputed", "new"};

}  // namespace

// In declaration order: the registry first, since everything else lives in it.
struct Metrics::Series {
  explicit Series(int n_stages);
  void SetTransferGauges();  // with transfers_mutex held

  Registry registry;
  Gauge& running;
  Gauge& queued;
  Counter& started;
  std::array<Counter*, 3> cancelled;
  std::array<Counter*, 4> prompt_tokens;
  Counter& output_tokens;
  Family<Counter>& http_requests;
  std::vector<Counter*> stage_read;
  std::vector<Counter*> stage_written;
  std::mutex transfers_mutex;
  std::map<uint64_t, TransferProgress> transfers;  // in flight, by number; guarded by transfers_mutex
  std::array<Gauge*, kVerbs.size()> transfers_running;
  VerbStageGauges transfer_done;
  VerbStageGauges transfer_total;
  std::array<Counter*, 3> saves;
  std::array<Counter*, 3> restores;
  std::array<Counter*, 3> evictions;
  std::array<Gauge*, 6> conversations;
  std::array<Gauge*, 3> conversation_bytes;
  Gauge& store_bytes;
  Counter& journal_errors;
  std::vector<Counter*> stage_restarts;
  Histogram& queue_seconds;
  Histogram& prefill_seconds;
  Histogram& first_token_seconds;
  Histogram& inter_token_seconds;
  Histogram& save_seconds;
  Histogram& restore_seconds;
  Histogram& prompt_size;
  Histogram& output_size;
};

Metrics::Series::Series(int n_stages)
    : running(GaugeFamily(registry, "layover_requests_running", "Requests that are being read or answered").Add({})),
      queued(GaugeFamily(registry, "layover_requests_queued", "Requests that wait for a place").Add({})),
      started(CounterFamily(registry, "layover_requests_started_total", "Requests given to the engine").Add({})),
      cancelled(Labelled(CounterFamily(registry, "layover_requests_cancelled_total", "Requests whose client went away"),
                         "phase", kPhases)),
      prompt_tokens(Labelled(CounterFamily(registry, "layover_prompt_tokens_total",
                                           "Prompt tokens of finished requests by where their state came from"),
                             "kind", kPromptKinds)),
      output_tokens(CounterFamily(registry, "layover_output_tokens_total", "Tokens generated").Add({})),
      http_requests(CounterFamily(registry, "layover_http_requests_total", "HTTP replies by route and status")),
      stage_read(PerStage(
          CounterFamily(registry, "layover_stage_store_read_bytes_total", "Bytes that a stage read from its store"),
          n_stages)),
      stage_written(PerStage(
          CounterFamily(registry, "layover_stage_store_written_bytes_total", "Bytes that a stage wrote to its store"),
          n_stages)),
      transfers_running(
          Labelled(GaugeFamily(registry, "layover_transfers_running", "Saves and restores in flight"), "verb", kVerbs)),
      transfer_done(PerVerbAndStage(
          GaugeFamily(registry, "layover_transfer_bytes_done", "Bytes that the transfers in flight have moved"),
          n_stages)),
      transfer_total(PerVerbAndStage(
          GaugeFamily(registry, "layover_transfer_bytes_total", "Bytes that the transfers in flight have to move"),
          n_stages)),
      saves(Labelled(CounterFamily(registry, "layover_saves_total", "Saves by result"), "result", kResults)),
      restores(Labelled(CounterFamily(registry, "layover_restores_total", "Restores by result"), "result", kResults)),
      evictions(Labelled(CounterFamily(registry, "layover_evictions_total", "Conversations moved out of a tier"),
                         "tier", kTiers)),
      conversations(
          Labelled(GaugeFamily(registry, "layover_conversations", "Conversations by state"), "state", kStates)),
      conversation_bytes(Labelled(GaugeFamily(registry, "layover_conversation_bytes", "State of conversations by tier"),
                                  "tier", kTiers)),
      store_bytes(GaugeFamily(registry, "layover_store_bytes", "Size of the store on disk").Add({})),
      journal_errors(CounterFamily(registry, "layover_journal_errors_total", "Journal writes that failed").Add({})),
      stage_restarts(
          PerStage(CounterFamily(registry, "layover_stage_restarts_total", "Stage processes started again"), n_stages)),
      queue_seconds(
          OneHistogram(registry, "layover_queue_seconds", "Time a request waited for a place", kLatencySeconds)),
      prefill_seconds(OneHistogram(registry, "layover_prefill_seconds", "Time to read a prompt", kLatencySeconds)),
      first_token_seconds(OneHistogram(registry, "layover_time_to_first_token_seconds",
                                       "From a request's arrival to its first token", kLatencySeconds)),
      inter_token_seconds(
          OneHistogram(registry, "layover_inter_token_seconds", "Between two tokens of one request", kLatencySeconds)),
      save_seconds(OneHistogram(registry, "layover_save_seconds", "Duration of saves", kLatencySeconds)),
      restore_seconds(OneHistogram(registry, "layover_restore_seconds", "Duration of restores", kLatencySeconds)),
      prompt_size(OneHistogram(registry, "layover_request_prompt_tokens", "Prompt tokens of a request", kTokenCounts)),
      output_size(
          OneHistogram(registry, "layover_request_output_tokens", "Generated tokens of a request", kTokenCounts)) {}

void Metrics::Series::SetTransferGauges() {
  for (size_t verb = 0; verb < kVerbs.size(); ++verb) {
    const size_t n_stages = transfer_done[verb].size();
    int in_flight = 0;
    std::vector<int64_t> done(n_stages);
    std::vector<int64_t> total(n_stages);
    for (const auto& [number, transfer] : transfers) {
      if (transfer.verb != kVerbs[verb]) continue;
      ++in_flight;
      for (const TransferProgress::Stage& stage : transfer.stages) {
        done[static_cast<size_t>(stage.stage)] += stage.bytes_done;
        total[static_cast<size_t>(stage.stage)] += stage.bytes_total;
      }
    }
    transfers_running[verb]->Set(in_flight);
    for (size_t stage = 0; stage < n_stages; ++stage) {
      transfer_done[verb][stage]->Set(static_cast<double>(done[stage]));
      transfer_total[verb][stage]->Set(static_cast<double>(total[stage]));
    }
  }
}

Metrics::Metrics(int n_stages) : series_(std::make_unique<Series>(n_stages)) {}
Metrics::~Metrics() = default;

std::string Metrics::Serialize() const {
  return prometheus::TextSerializer().Serialize(series_->registry.Collect());
}

void Metrics::SetRequestsRunning(int64_t count) {
  series_->running.Set(static_cast<double>(count));
}
void Metrics::SetRequestsQueued(int64_t count) {
  series_->queued.Set(static_cast<double>(count));
}
void Metrics::RequestStarted() {
  series_->started.Increment();
}
void Metrics::RequestCancelled(RequestPhase phase) {
  series_->cancelled[static_cast<size_t>(phase)]->Increment();
}

void Metrics::RequestFinished(const Timings& timings) {
  const int64_t by_kind[] = {timings.cache_n - timings.restored_n, timings.restored_n, timings.recomputed_n,
                             timings.prompt_n};
  for (size_t i = 0; i < kPromptKinds.size(); ++i) {
    series_->prompt_tokens[i]->Increment(static_cast<double>(by_kind[i]));
  }
  series_->output_tokens.Increment(static_cast<double>(timings.predicted_n));
  series_->queue_seconds.Observe(timings.queue_ms / 1e3);
  series_->prefill_seconds.Observe(timings.prompt_ms / 1e3);
  series_->prompt_size.Observe(static_cast<double>(timings.cache_n + timings.recomputed_n + timings.prompt_n));
  series_->output_size.Observe(static_cast<double>(timings.predicted_n));
}

void Metrics::ObserveFirstToken(double seconds) {
  series_->first_token_seconds.Observe(seconds);
}
void Metrics::ObserveInterToken(double seconds) {
  series_->inter_token_seconds.Observe(seconds);
}

void Metrics::HttpRequestDone(std::string_view route, int status) {
  series_->http_requests.Add({{"route", std::string(route)}, {"code", std::to_string(status)}}).Increment();
}

void Metrics::AddStageReadBytes(int stage, int64_t bytes) {
  LAYOVER_CHECK(stage >= 0 && static_cast<size_t>(stage) < series_->stage_read.size());
  series_->stage_read[static_cast<size_t>(stage)]->Increment(static_cast<double>(bytes));
}

void Metrics::AddStageWrittenBytes(int stage, int64_t bytes) {
  LAYOVER_CHECK(stage >= 0 && static_cast<size_t>(stage) < series_->stage_written.size());
  series_->stage_written[static_cast<size_t>(stage)]->Increment(static_cast<double>(bytes));
}

void Metrics::TransferMoved(uint64_t number, const TransferProgress& progress) {
  for (const TransferProgress::Stage& stage : progress.stages) {
    LAYOVER_CHECK(stage.stage >= 0 && static_cast<size_t>(stage.stage) < series_->stage_read.size());
  }
  std::lock_guard lock(series_->transfers_mutex);
  series_->transfers.insert_or_assign(number, progress);
  series_->SetTransferGauges();
}

void Metrics::TransferEnded(uint64_t number) {
  std::lock_guard lock(series_->transfers_mutex);
  if (series_->transfers.erase(number) > 0) series_->SetTransferGauges();
}

void Metrics::SaveDone(TransferResult result, double seconds) {
  series_->saves[static_cast<size_t>(result)]->Increment();
  series_->save_seconds.Observe(seconds);
}

void Metrics::RestoreDone(TransferResult result, double seconds) {
  series_->restores[static_cast<size_t>(result)]->Increment();
  series_->restore_seconds.Observe(seconds);
}

void Metrics::Evicted(StateTier tier) {
  series_->evictions[static_cast<size_t>(tier)]->Increment();
}

void Metrics::SetConversations(ConversationState state, int64_t count) {
  series_->conversations[static_cast<size_t>(state)]->Set(static_cast<double>(count));
}

void Metrics::SetConversationBytes(StateTier tier, int64_t bytes) {
  series_->conversation_bytes[static_cast<size_t>(tier)]->Set(static_cast<double>(bytes));
}

void Metrics::SetStoreBytes(int64_t bytes) {
  series_->store_bytes.Set(static_cast<double>(bytes));
}
void Metrics::JournalError() {
  series_->journal_errors.Increment();
}

void Metrics::StageRestarted(int stage) {
  LAYOVER_CHECK(stage >= 0 && static_cast<size_t>(stage) < series_->stage_restarts.size());
  series_->stage_restarts[static_cast<size_t>(stage)]->Increment();
}

}  // namespace layover
